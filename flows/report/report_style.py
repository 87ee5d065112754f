"""How a report looks: light and dark by the reader's preference, one column on a phone, nothing loaded from elsewhere."""

CSS = """
:root{color-scheme:light dark;--page:#f6f8fa;--card:#fff;--ink:#24292f;--muted:#6b7480;--grid:#d5dbe1;--link:#0757a8;
  --teacher:#d55e00;--student:#0072b2;--both:#5b5f97;--deduction:#009e73;--abduction:#b0569a;--induction:#96700a;
  --good:#1a7f37;--bad:#b3261e;--warn:#fff4d6;--warnline:#d29922;--kw:#a01c64;--str:#0a5c36;--num:#0b57a4;
  --com:#68707a;--fn:#6f42c1}
@media (prefers-color-scheme:dark){
:root{--page:#0e1116;--card:#171b22;--ink:#e3e8ee;--muted:#9aa4b0;--grid:#343b45;--link:#7db7ff;--teacher:#ff9447;
  --student:#56b4f5;--both:#a9add8;--deduction:#2fc79a;--abduction:#e08fca;--induction:#d9ad3c;--good:#57c974;
  --bad:#ff8177;--warn:#332a12;--warnline:#9e7420;--kw:#ff8fc4;--str:#8fdcab;--num:#85bdff;--com:#8e99a6;--fn:#cdb2ff}
}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:1.2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .3rem}
h2{font-size:1.3rem;margin:2.4rem 0 .8rem;scroll-margin-top:1rem}
h3{font-size:1.05rem;margin:1.4rem 0 .5rem}
p{margin:.4rem 0}
.lead{color:var(--muted);max-width:75ch;overflow-wrap:anywhere}
a{color:var(--link)}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.86em}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1rem;margin:1rem 0;font-size:.95rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,10.5rem),1fr));gap:.7rem}
.tile,.card{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:.75rem .9rem;min-width:0}
.tile b{display:block;font-size:1.3rem;white-space:nowrap;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span,.small{color:var(--muted);font-size:.85rem}
.plates{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,29rem),1fr));gap:1rem;align-items:start}
figure{margin:0}
figure h3{margin:0}
figure svg{display:block;width:100%;height:auto;max-width:38rem;margin:0 auto}
figcaption{color:var(--muted);font-size:.85rem;margin-top:.5rem;overflow-wrap:anywhere}
.none{padding:1.6rem 0;color:var(--muted)}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.28rem .7rem .28rem 0;border-bottom:1px solid var(--grid);vertical-align:top;
  white-space:nowrap}
th{color:var(--muted);font-weight:600}
td.wrap{white-space:normal;overflow-wrap:anywhere;min-width:12rem}
.note{background:var(--warn);border:1px solid var(--warnline);border-radius:10px;padding:.6rem .9rem}
.note ul{margin:.2rem 0;padding-left:1.2rem}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--link)}
.tasks{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,23rem),1fr));gap:1rem;align-items:start}
.code,.value{overflow-x:auto;background:var(--page);border-radius:7px;padding:.6rem .7rem;margin:.5rem 0;
  line-height:1.45;unicode-bidi:isolate}
.value{max-height:16rem;overflow-y:auto}
td.wrap code,.columns code{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate}
.code [class^=k],.code .ow{color:var(--kw)}
.code [class^=s]{color:var(--str)}
.code [class^=m]{color:var(--num)}
.code [class^=c]{color:var(--com);font-style:italic}
.code .nf,.code .nc,.code .nb{color:var(--fn)}
.code .err{color:var(--bad)}
.kind{font-weight:600}
.deduction{color:var(--deduction)}
.abduction{color:var(--abduction)}
.induction{color:var(--induction)}
.teacher{color:var(--teacher)}
.student{color:var(--student)}
.correct{color:var(--good)}
.wrong,.format{color:var(--bad)}
.changed td{font-weight:600}
.columns{columns:24rem 2;column-gap:2rem}
.columns td{width:55%;white-space:normal}
.columns td:first-child{width:45%}
.columns table{break-inside:avoid;width:100%;margin-bottom:1rem}
@media (max-width:480px){
main{padding:.8rem .6rem 3rem}
.card{padding:.6rem}
.tiles{grid-template-columns:1fr 1fr}
.tile{padding:.6rem}
.tile b{font-size:1.15rem}
}
@media print{
.card,.tile{break-inside:avoid}
}
"""
