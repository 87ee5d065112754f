// Keeps the live page of a run up to date: events of this server are written into the page as text, never as markup.
"use strict";

(function () {
  const page = document.querySelector("[data-live]");
  if (!page || !window.EventSource) return;
  const LOOKS = ["valid", "wrong", "program"];
  const CONDITIONS = ["running", "silent", "stopped", "crashed", "finished"];
  const RELOAD_SECONDS = 15;
  const shown = new Map();
  let source = null;
  let over = false;

  const all = (name, of = page) => of.querySelectorAll(`[data-${name}]`);
  const one = (name, value) => page.querySelector(`[data-${name}="${value}"]`);

  function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function cell(values) {
    const found = document.createElement("td");
    let inside = found;
    if (values.href.startsWith("/runs/")) {
      inside = found.appendChild(document.createElement("a"));
      inside.setAttribute("href", values.href);
    } else if (LOOKS.includes(values.look)) {
      inside = found.appendChild(document.createElement("span"));
      inside.className = values.look;
    }
    inside.textContent = values.text;
    return found;
  }

  function row(cells) {
    const found = document.createElement("tr");
    found.append(...cells.map(cell));
    return found;
  }

  function item(cells) {
    const found = document.createElement("li");
    found.textContent = cells[0].text;
    return found;
  }

  function show(state) {
    for (const element of all("field")) write(element, state.fields[element.dataset.field] ?? "–");
    for (const [name, share] of Object.entries(state.shares)) {
      const bar = one("bar", name);
      bar.hidden = share === null;
      bar.querySelector("progress").value = share ?? 0;
      write(one("percent", name), share === null ? "–" : `${Math.round(100 * share)} %`);
    }
    for (const [name, rows] of Object.entries(state.rows)) {
      const said = JSON.stringify(rows);
      if (shown.get(name) === said) continue; // a row that a person reads or has focused stays
      shown.set(name, said);
      one("rows", name)?.replaceChildren(...rows.map(row));
      one("items", name)?.replaceChildren(...rows.map(item));
      const list = one("list", name);
      if (list) list.hidden = rows.length === 0;
    }
    const light = page.querySelector("[data-light]");
    light.className = CONDITIONS.includes(state.condition) ? `light ${state.condition}` : "light";
  }

  function notice(text) {
    const element = page.querySelector("[data-notice]");
    write(element, text);
    element.hidden = text === "";
  }

  function stop() {
    source?.close();
    source = null;
  }

  function connect() {
    if (source || over) return;
    source = new EventSource(page.dataset.live);
    source.addEventListener("state", (event) => {
      notice("");
      show(JSON.parse(event.data));
    });
    source.addEventListener("fault", (event) => notice(JSON.parse(event.data).message));
    source.addEventListener("end", () => {
      over = true;
      stop();
    });
    source.addEventListener("error", () => {
      if (over || !source) return;
      if (source.readyState === EventSource.CLOSED) {
        stop();
        notice(`The server has no stream for this page now: it reloads in ${RELOAD_SECONDS} s.`);
        window.setTimeout(() => window.location.reload(), 1000 * RELOAD_SECONDS);
      } else {
        notice("The connection to the browser's server is lost; trying again.");
      }
    });
  }

  // A hidden page gives its connection back: browsers open six to a server, and other pages need them.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : connect()));
  window.addEventListener("pagehide", stop);
  if (!document.hidden) connect();
})();
