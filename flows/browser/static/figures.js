// Turns curves into plots with zoom and hover. The numbers come from this server and are those of the drawn figure, which stays
// where there is no script; every text is written as text, never as markup.
"use strict";

(function () {
  if (!window.uPlot || !window.IntersectionObserver || !window.ResizeObserver) return;
  const HEIGHT = 240;
  const MARKED = 40; // points; beyond, marks would touch
  const ZOOM = 0.6;
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
  const DASHES = { "-": [], "--": [7, 4], ":": [2, 3], "-.": [7, 3, 2, 3] };
  const FONT = "12px system-ui, sans-serif";
  const plots = new Set();

  const style = (name) => window.getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (name) => (name.startsWith("--") ? style(name) : name);
  const faint = (value) => (/^#[0-9a-f]{6}$/i.test(value) ? `${value}33` : "transparent");
  const written = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 }).replace("-", "−");

  function make(name, properties = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key in element) element[key] = value;
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  // Aligned columns: every x of any line, then value, upper and lower end of the error of each line. A line that the figure breaks
  // where generations are missing gets an empty place there.
  function columns(lines) {
    const every = new Set();
    for (const line of lines) {
      line.x.forEach((x, at) => {
        every.add(x);
        if (line.broken && at + 1 < line.x.length && line.x[at + 1] - x > 1) every.add(x + 1);
      });
    }
    const xs = [...every].sort((a, b) => a - b);
    const found = [xs];
    for (const line of lines) {
      const place = new Map(line.x.map((x, at) => [x, at]));
      const value = (x) => (place.has(x) ? line.y[place.get(x)] : null);
      const error = (x) => (place.has(x) && line.error.length ? line.error[place.get(x)] : null);
      const end = (sign) => (x) => (value(x) === null || error(x) === null ? null : value(x) + sign * error(x));
      found.push(xs.map(value), xs.map(end(1)), xs.map(end(-1)));
    }
    return found;
  }

  function options(panel, xs, width, name, moved) {
    const series = [{}];
    const bands = [];
    for (const line of panel.lines) {
      const at = series.length;
      const look = { stroke: () => colour(line.colour), dash: DASHES[line.dashes] ?? [], width: 1.6, spanGaps: !line.broken };
      const end = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: !line.broken };
      series.push({ ...look, label: line.name, points: { show: xs.length <= MARKED, size: 5 } }, end, { ...end });
      bands.push({ series: [at + 1, at + 2], fill: () => faint(colour(line.colour)) });
    }
    const axis = { stroke: () => style("--ink"), font: FONT, labelFont: FONT, labelSize: 18, ticks: { stroke: () => style("--grid") } };
    axis.grid = { stroke: () => style("--grid"), width: 1 };
    return {
      width,
      height: HEIGHT,
      series,
      bands,
      scales: { x: { time: false }, y: panel.limits ? { range: panel.limits } : {} },
      axes: [
        { ...axis, label: panel.x, incrs: STEPS, size: 34 },
        { ...axis, label: panel.y, size: 54, values: (_, splits) => splits.map(written) },
      ],
      legend: { show: false },
      cursor: { sync: { key: name, scales: ["x", null] }, points: { size: (_, at) => (at % 3 === 1 ? 7 : 0) }, y: false },
      hooks: { setCursor: [moved] },
    };
  }

  function said(panel, line, x) {
    const at = line.x.indexOf(x);
    if (at < 0 || line.y[at] === null) return "–";
    const error = line.error.length && line.error[at] !== null ? ` ± ${written(line.error[at])}` : "";
    return `${written(line.y[at])}${error}${line.n.length ? ` (n = ${line.n[at].toLocaleString("en")})` : ""}`;
  }

  function button(text, label, press) {
    const made = make("button", { type: "button", textContent: text, "aria-label": label });
    made.addEventListener("click", press);
    return made;
  }

  // A line's dashes as a background: the styles of borders have no dots between dashes.
  function stripes(dashes, colour) {
    let at = 0;
    const parts = dashes.map((length, place) => `${place % 2 ? "transparent" : colour} ${at}px ${(at += length)}px`);
    return parts.length ? `repeating-linear-gradient(90deg, ${parts.join(", ")})` : colour;
  }

  // A key switches its line off and on, and shows the line's value at the cursor.
  function key(line, toggled) {
    const swatch = make("span", { className: "swatch", "aria-hidden": "true" });
    swatch.style.background = stripes(DASHES[line.dashes] ?? [], line.colour.startsWith("--") ? `var(${line.colour})` : line.colour);
    const value = make("span", { className: "at" });
    const made = make("button", { type: "button", className: "key", "aria-pressed": "true" }, swatch, line.name, " ", value);
    made.addEventListener("click", () => {
      const on = made.getAttribute("aria-pressed") !== "true";
      made.setAttribute("aria-pressed", String(on));
      toggled(on);
    });
    return { made, value };
  }

  function build(panel, name, question, into) {
    const data = columns(panel.lines);
    const xs = data[0];
    const unit = panel.x || "x";
    const where = make("span", { className: "small where", textContent: unit });
    const loud = make("p", { className: "unseen", "aria-live": "polite" });
    const field = make("div", { className: "field", tabIndex: 0, role: "group" });
    field.setAttribute("aria-label", `${question} ${panel.title} ${panel.y}: arrow keys move the cursor, plus and minus zoom, 0 shows everything`);
    const keys = panel.lines.map((line, at) => key(line, (on) => {
      for (const one of [1, 2, 3]) plot.setSeries(3 * at + one, { show: on });
    }));
    const tools = make("div", { className: "tools" },
      button("+", `Zoom in: ${question} ${panel.title}`, () => zoom(ZOOM)), button("−", `Zoom out: ${question} ${panel.title}`, () => zoom(1 / ZOOM)),
      button("all", `Show all: ${question} ${panel.title}`, everything), where);
    into.append(...(panel.title ? [make("h4", { textContent: panel.title })] : []), tools, field, make("div", { className: "keys" }, ...keys.map((one) => one.made)), loud);

    function moved(plotted) {
      const at = plotted.cursor.idx;
      const x = at === null || at === undefined ? null : xs[at];
      where.textContent = x === null ? unit : `${unit} ${written(x)}`;
      panel.lines.forEach((line, number) => (keys[number].value.textContent = x === null ? "" : said(panel, line, x)));
    }

    const plot = new uPlot(options(panel, xs, field.clientWidth, name, moved), data, field);
    plots.add(plot);
    new ResizeObserver(() => {
      if (field.clientWidth && Math.abs(field.clientWidth - plot.width) > 1) plot.setSize({ width: field.clientWidth, height: HEIGHT });
    }).observe(field);

    function everything() {
      plot.setScale("x", { min: xs[0], max: xs[xs.length - 1] });
    }

    function zoom(factor) {
      const { min, max } = plot.scales.x;
      const at = plot.cursor.idx;
      const middle = at === null || at === undefined ? (min + max) / 2 : xs[at];
      const low = Math.max(middle - (middle - min) * factor, xs[0]);
      const high = Math.min(middle + (max - middle) * factor, xs[xs.length - 1]);
      if (high - low >= 1 || factor > 1) plot.setScale("x", { min: low, max: high });
    }

    function point(to) {
      const at = Math.min(Math.max(to, 0), xs.length - 1);
      if (xs[at] < plot.scales.x.min || xs[at] > plot.scales.x.max) everything();
      window.queueMicrotask(() => plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: 10 })); // after the scale is set
      loud.textContent = `${unit} ${written(xs[at])}: ${panel.lines.map((line) => `${line.name} ${said(panel, line, xs[at])}`).join(", ")}`;
    }

    field.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const now = plot.cursor.idx ?? (event.key === "ArrowLeft" ? xs.length : -1);
      const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: xs.length - 1, PageUp: now + 10, PageDown: now - 10 };
      if (event.key in moves) point(moves[event.key]);
      else if (event.key === "+" || event.key === "=") zoom(ZOOM);
      else if (event.key === "-") zoom(1 / ZOOM);
      else if (event.key === "0" || event.key === "Escape") everything();
      else return;
      event.preventDefault();
    });
  }

  function replace(figure, found) {
    const drawn = figure.querySelector("[data-drawn]");
    const interactive = make("div", { className: "interactive" }, make("h3", { textContent: found.question }));
    drawn.after(interactive);
    drawn.hidden = true;
    for (const panel of found.panels) build(panel, `figure-${found.name}`, found.question, interactive);
    const swap = button("As drawn", `Show as drawn: ${found.question}`, () => {
      drawn.hidden = !drawn.hidden;
      interactive.hidden = !drawn.hidden;
      swap.textContent = drawn.hidden ? "As drawn" : "Zoom and hover";
      swap.setAttribute("aria-label", `${swap.textContent}: ${found.question}`);
    });
    interactive.after(make("p", { className: "tools" }, swap));
  }

  async function load(figure) {
    try {
      const answer = await fetch(figure.dataset.source);
      if (answer.ok) replace(figure, await answer.json());
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the server is gone: the drawn figure stays
    }
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      seen.unobserve(entry.target);
      load(entry.target);
    }
  }, { rootMargin: "200px" });
  for (const figure of document.querySelectorAll("figure[data-source]")) seen.observe(figure);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((plot) => plot.redraw()));
})();
