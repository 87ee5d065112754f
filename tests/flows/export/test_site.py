"""A run's pages as a static site: all of them, no broken link, equal bytes, nothing that runs, whole or not at all."""

import json
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.browser.app import make_app
from flows.config import RunConfig
from flows.export.adapter import export_adapter
from flows.export.site import export_site
from flows.export.site_page import static_page
from flows.export.site_places import place, safe_name
from flows.export.tasks import export_tasks
from flows.notes.note_data import NoteBuilder
from flows.notes.note_text import generation_note
from flows.report.report import report as write_report
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import Damaged, StoreRefused, StoreUnavailable
from flows.store.file_store import FileStore
from stages.core import tables
from stages.core.places import apart, for_others, is_place
from tests.support import example_run
from tests.support.report_run import made
from tests.support.static_site import broken_links, pages

MB = 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with births and real adapters, and one with hostile texts that is not finished."""
    root = tmp_path_factory.mktemp("store")
    files = FileStore(root)
    with hold(files, "whole") as epoch:
        example_run.build(Run(files, "whole", epoch), 3)
    with made(root, "hostile", 2, until="grade"):
        pass
    return root


@pytest.fixture(scope="module")
def site(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "whole"
    said = export_site(Run(FileStore(store), "whole"), folder, 10 * MB)
    assert "pages and" in said and said.endswith(f" in {folder}; open {folder}/index.html")
    return folder


@pytest.fixture(scope="module")
def hostile(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "hostile"
    export_site(Run(FileStore(store), "hostile"), folder, 0)
    return folder


def test_no_link_is_broken_and_none_leaves_the_site(site: Path, hostile: Path) -> None:
    assert broken_links(site) == []
    assert broken_links(hostile) == []


def test_every_page_of_the_run_is_there(site: Path, store: Path) -> None:
    run = Run(FileStore(store), "whole")
    there = {file.relative_to(site).as_posix() for file in site.rglob("*") if file.is_file()}
    generations = run.history.generations()
    tasks = [row["proposal_id"] for number in generations for row in run.read_table(number, "proposals").to_pylist()]
    assert {f"tasks/{name}.html" for name in [*tasks, "seed-deduction"]} <= there
    outputs = [ref.uri for manifest in run.history.walk() for ref in manifest.outputs]
    tables = [uri for uri in outputs if uri.endswith(".parquet")]
    assert {f"{kind}/{uri}.html" for uri in tables for kind in ("tables", "complete")} <= there
    assert {f"files/{uri}" for uri in outputs} <= there
    adapters = {uri.split("/")[1] for uri in outputs if uri.startswith("adapters/")}
    assert {f"adapters/{name}.html" for name in adapters} <= there
    assert {f"generations/{name}.html" for name in ("start", *generations)} <= there
    assert {"index.html", "figures.html", "adapters.html", "static/browser.css", "site.json"} <= there
    folders = ["start", *(f"generation={number:04d}" for number in generations)]
    assert {f"manifests/{folder}" for folder in folders} == {
        file.parent.relative_to(site).as_posix() for file in (site / "manifests").rglob("*.html")}  # fmt: skip


def test_a_long_table_has_all_its_pages_and_rows_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_run, "KINDS", example_run.KINDS * 20)
    files = FileStore(tmp_path / "store")
    with hold(files, "long") as epoch:
        run = Run(files, "long", epoch)
        example_run.build(run, 0)
    rows = run.read_table(None, "seeds").num_rows
    assert rows > 50
    site = tmp_path / "site"
    export_site(Run(files, "long"), site, 0)
    read = pages(site)
    for number in (0, 49, 50, rows - 1):
        mark = f"~p{number // 50 + 1}" if number >= 50 else ""
        assert f"row-{number}" in read[f"complete/start/seeds.parquet{mark}.html"].ids
    first, second = (site / f"tables/start/seeds.parquet{mark}.html" for mark in ("", "~p2"))
    assert "seeds.parquet~p2.html" in first.read_text() and "seeds.parquet.html" in second.read_text()


def test_nothing_on_a_page_runs_or_asks_a_server(site: Path, hostile: Path) -> None:
    for folder in (site, hostile):
        for name, page in pages(folder).items():
            assert not page.tags & {"script", "form", "iframe", "object", "embed", "base", "style"}, name
            assert not {one for one in page.attributes if one.startswith("on") and len(one) > 2}, name
            assert page.policy.startswith("default-src 'none'; ") and "script" not in page.policy, name
            text = (folder / name).read_text()
            assert "\u202e" not in text and "\x1b" not in text and "<script" not in text, name


def test_equal_runs_give_equal_bytes_wherever_the_store_is(site: Path, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "elsewhere")
    export_site(Run(FileStore(tmp_path / "elsewhere"), "whole"), tmp_path / "again", 10 * MB)
    written = {file.relative_to(site): file.read_bytes() for file in site.rglob("*") if file.is_file()}
    assert written == {
        file.relative_to(tmp_path / "again"): file.read_bytes() for file in (tmp_path / "again").rglob("*") if file.is_file()
    }
    assert not [name for name, data in written.items() if str(store).encode() in data]


def test_files_over_the_limit_are_left_out_and_say_so(hostile: Path, store: Path) -> None:
    assert not (hostile / "files").exists()
    listed = json.loads((hostile / "site.json").read_text())
    assert listed["files"] == 0 and "generation=0000/tasks.parquet" in listed["left_out"]
    assert listed["head"] == Run(FileStore(store), "hostile").history.head()
    table = (hostile / "tables/generation=0000/tasks.parquet.html").read_text()
    assert 'title="left out of this copy: ' in table and ">Download</span>" in table


def test_a_damaged_artifact_or_a_folder_in_use_leaves_nothing(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store / "whole", tmp_path / "store" / "whole")
    (tmp_path / "store" / "whole" / "generation=0001" / "tasks.parquet").write_bytes(b"damaged")
    run = Run(FileStore(tmp_path / "store"), "whole")
    with pytest.raises(Damaged, match="populora fsck whole"):
        export_site(run, tmp_path / "out" / "site", 0)
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    with pytest.raises(StoreRefused, match="already exists"):
        export_site(run, tmp_path / "taken", 0)
    assert [file.name for file in (tmp_path / "taken").iterdir()] == ["mine"]
    with pytest.raises(StoreRefused, match="no run none"):
        export_site(Run(FileStore(store), "none"), tmp_path / "none", 0)


@pytest.mark.parametrize("fault", [StoreRefused, StoreUnavailable])
@pytest.mark.parametrize("name", ["generation=0001/grades.parquet", "generation=0001/match.json"])
def test_a_fault_of_the_store_ends_the_export_and_is_no_page(
    store: Path, tmp_path: Path, fault: type[Exception], name: str
) -> None:
    """Grades are first read for the figures of the run's page, which are part of the exported page. The fault passes."""
    asked: list[str] = []

    class Failing(FileStore):
        def read(self, uri: str) -> bytes:
            self.fail(uri)
            return super().read(uri)

        def open(self, uri: str) -> BinaryIO:
            self.fail(uri)
            return super().open(uri)

        def fail(self, uri: str) -> None:
            if uri.endswith(name) and not asked:
                asked.append(uri)
                raise fault(f"store {self.url}: {uri}: refused")

    with pytest.raises(fault, match="refused"):
        export_site(Run(Failing(store), "whole"), tmp_path / "out" / "site", 0)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_copy_for_others_says_nothing_of_the_machine_or_its_user(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(store / "whole", tmp_path / "store" / "whole")
    for file in (tmp_path / "store").rglob("*.json"):
        values = json.loads(file.read_bytes())
        if "clock" in values:
            values["clock"] |= {"host": "build7.internal", "command": ["/home/ann/venv/bin/populora"], "container": "c0ffee"}
        if file.name == "run.json":
            values["versions"] |= {"diff": "+TOKEN = 'hunter2'", "choices": {"/home/ann/rule.py:mine": "ab" * 32}}
            values["config"]["model"]["name"] = "/home/ann/models/base"
            values["config"]["engine"]["python"] = "https://ann:hunter2@build7.internal/python"
        file.write_text(json.dumps(values))
    monkeypatch.setenv("POPULORA_FORMS_URL", "http://build7.internal:4200")
    export_site(Run(FileStore(tmp_path / "store"), "whole"), tmp_path / "site", 10 * MB)
    written = b"".join(file.read_bytes() for file in (tmp_path / "site").rglob("*") if file.is_file())
    assert b">base</code>" in written and b"/python" not in written and b">python</code>" in written
    for word in ("build7", "ann/", "hunter2", "c0ffee", str(tmp_path), "/forms/"):
        assert word.encode() not in written, word
    assert broken_links(tmp_path / "site") == []
    left = json.loads((tmp_path / "site" / "site.json").read_text())["left_out"]
    assert left["adapters/t0-g0001/adapter_config.json"].endswith("it names the base model's folder")


def test_folders_of_a_users_own_functions_are_in_the_browser_and_in_no_copy_report_or_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, gate = "/home/ann/long/op.py:mine", "~/ann/gate.py:dull"
    births, judged, solved = example_run._offspring, example_run._tasks, example_run._rollouts

    def offspring(*given: Any) -> Any:
        rows, refs = births(*given)
        return [row | {"operator": operator} for row in rows], refs

    def tasks(proposals: Any) -> Any:
        rows = judged(proposals).to_pylist()
        return tables.table([row | {"gate": None if number % 6 else gate} for number, row in enumerate(rows)], tables.TASKS)

    def rollouts(matches: Any, tasks: Any, *more: Any) -> Any:
        return solved(matches, tasks.filter(tasks["gate"].is_null()), *more)

    monkeypatch.setattr(example_run, "_offspring", offspring)
    monkeypatch.setattr(example_run, "_tasks", tasks)
    monkeypatch.setattr(example_run, "_rollouts", rollouts)
    own = {"evolution": {"every": 1, "mutations": [operator, "M1"], "crossovers": []}, "reward": {"gates": ["constant", gate]}}
    config = RunConfig.model_validate(example_run.CONFIG.model_dump() | own)
    files = FileStore(tmp_path / "store")
    with hold(files, "own") as epoch:
        run = example_run.build(Run(files, "own", epoch), 2, config)
    export_site(Run(files, "own"), tmp_path / "site", 10 * MB)
    export_adapter(Run(files, "own"), "s2-start", tmp_path / "adapter", merge=False)
    export_tasks(Run(files, "own"), tmp_path / "tasks")
    write_report(Run(files, "own"), tmp_path / "page" / "report.html")
    (tmp_path / "page" / "note.md").write_text(generation_note(NoteBuilder(Run(files, "own"), 2, "").told(0)))
    assert "op.py:mine(" in (tmp_path / "page" / "note.md").read_text()
    assert "op.py:mine, M1" in (tmp_path / "page" / "report.html").read_text()
    copies = [file for folder in ("page", "site", "adapter", "tasks") for file in (tmp_path / folder).rglob("*")]
    assert not [file for file in copies if file.is_file() and (b"ann/" in file.read_bytes() or b"/home" in file.read_bytes())]
    task = next(row["task_id"] for row in run.read_table(1, "tasks").to_pylist() if row["gate"])
    shown = dict.fromkeys(("generations/0", "adapters/s2-start", "adapters", "figures"), "op.py:mine")
    shown |= {
        "index": "op.py:mine, M1]",
        "tables/generation=0000/offspring.parquet": "op.py:mine",
        f"tasks/{task}": "gate.py:dull",
    }
    shown |= {f"{kind}/generation=0001/tasks.parquet": "gate.py:dull" for kind in ("tables", "complete")}
    for name, text in shown.items():
        assert text in (tmp_path / "site" / f"{name}.html").read_text(), name
    assert "op\\.py\\:mine" in (tmp_path / "adapter" / "README.md").read_text()
    assert "gate.py:dull" in pq.read_table(tmp_path / "tasks" / "tasks.parquet")["gate"].to_pylist()
    left = json.loads((tmp_path / "site" / "site.json").read_text())["left_out"]
    assert {"generation=0000/offspring.parquet", "generation=0001/tasks.parquet"} <= left.keys()
    assert "generation=0001/grades.parquet" not in left and broken_links(tmp_path / "site") == []
    with TestClient(make_app(str(tmp_path / "store")), base_url="http://127.0.0.1") as browser:
        assert "/home/ann/long/</span>op.py:mine" in browser.get("/runs/own/adapters/s2-start").text


@pytest.mark.parametrize("name", ["M1", "ops/mine.py:f", "propose.gate.constant", "solve.rate", "", "a / b"])
def test_other_names_are_no_places(name: str) -> None:
    assert apart(name) == (name, "", "") and for_others(name) == name


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("/a/b.py:f", ("", "/a/", "b.py:f")),
        ("../b.py:f", ("", "../", "b.py:f")),
        ("propose.gate.~/x/g.py:h", ("propose.gate.", "~/x/", "g.py:h")),
        ("https://ann:word@host/x", ("", "https://ann:word@host/", "x")),
    ],
)
def test_of_a_place_the_last_part_is_for_others(text: str, pieces: tuple[str, str, str]) -> None:
    assert apart(text) == pieces and is_place(text) and for_others(text) == pieces[0] + pieces[2]


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("/runs/r", "index.html"),
        ("/runs/r#configuration", "index.html"),
        ("/runs/r/tables/generation=0001/tasks.parquet?page=3", "tables/generation=0001/tasks.parquet~p3.html"),
        ("/runs/r/tables/start/seeds.parquet?column=kind&value=deduction&page=2", "tables/start/seeds.parquet.html"),
        ("/runs/r/rows/117/start/seeds.parquet", "complete/start/seeds.parquet~p3.html"),
        ("/runs/r/files/adapters/a/x.html", "files/adapters/a/x.html.bin"),
        ("/runs/r/tasks/..%2F..%2Fetc", None),
        ("/runs/r/tables/generation=0001/tasks.parquet?sort=kind", None),
        ("/runs/r/tasks/g0000-m00-p000?later=2", None),
        ("/runs/r/figures/solve-rate", None),
        ("/runs/r/figures/solve-rate.svg", None),
        ("/runs/r/figures/solve-rate.png", None),
        ("/runs/r/figures/solve-rate.json", None),
        ("/runs/other", None),
        ("/", None),
        ("/compare?run=r", None),
        ("/runs/r/live", None),
        ("/runs/r/live/events", None),
        ("/metrics", None),
        ("http://127.0.0.1:4200/deployments", None),
        ("javascript:alert(1)", None),
        ("//elsewhere.example/runs/r", None),
    ],
)  # fmt: skip
def test_what_needs_the_server_has_no_place(address: str, file: str | None) -> None:
    found = place("r", address)
    assert (found and found.file) == file


@given(st.lists(st.text(min_size=1, max_size=120), unique=True, max_size=20))
@settings(max_examples=100, deadline=None)
def test_names_are_safe_on_every_file_system_and_differ(texts: list[str]) -> None:
    names = [safe_name(text) for text in texts]
    assert len({name.casefold() for name in names}) == len(texts)
    for name in names:
        assert 0 < len(name) <= 120 and name.isascii() and not set(name) & set('<>:"/\\|?* %#&')
        assert name[0] not in ".-_" and not name.endswith((".", " ")) and name.strip(".")


@pytest.mark.parametrize(
    "name", ["con", "nul.parquet", "com1", "aux.json", "..", ".", "", "UPPER", "a b", "tail.", "é", "x" * 300]
)
def test_odd_names_are_replaced(name: str) -> None:
    assert safe_name(name) != name and "~" in safe_name(name)
    assert safe_name("g0001-m00-p000") == "g0001-m00-p000" and safe_name("tasks.parquet") == "tasks.parquet"


def test_scripts_forms_and_live_parts_of_a_page_go_and_their_fallback_stays() -> None:
    page = (
        '<html><head><link rel="stylesheet" href="/static/a.css"><link rel="preload" href="/x">'
        '<meta http-equiv="refresh" content="1">'
        '<script src="/static/plot.js" defer></script></head><body><form action="/go"><b>gone</b></form>'
        '<div data-server><div>inner</div> live</div><noscript><p>figure</p></noscript>'
        '<a href="/runs/r/live">Live</a><a class="tile" href="/runs/r" onclick="x()">run</a><button data-server>Fork</button>'
        '<img src="/runs/r/figures/a.png" alt="a"><img src="https://elsewhere.example/a.png" alt="b">'
        '<svg><use xlink:href="#mark"></use><image xlink:href="https://elsewhere.example/b.png"></image></svg>'
        "&lt;script&gt;<footer>end</footer></body></html>"
    )  # fmt: skip
    known = {"/static/a.css": "a.css", "/runs/r": "index.html", "/runs/r/figures/a.png": "a.png"}
    shown = static_page(page, lambda address: (known.get(address, ""), ""), "note")
    body = shown.partition("</head>")[2]
    assert body == (
        "<body><p>figure</p>"
        '<span>Live</span><a href="index.html" class="tile">run</a>'
        '<img src="a.png" alt="a"><img alt="b">'
        '<svg><use xlink:href="#mark"></use><image></image></svg>'
        "&lt;script&gt;<footer>end<p>note</p></footer></body></html>"
    )  # fmt: skip
    assert "script" not in shown.partition("<body>")[0] and "refresh" not in shown and 'href="a.css"' in shown
