"""Every page in a real browser: it works, asks no other address, and neither the console nor an accessibility linter complains.

`POPULORA_PICTURES` names a folder for what the browser saw, `POPULORA_AXE` the file axe.min.js of the npm package axe-core.
"""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.browser.app import make_app
from flows.browser.limits import Server, config
from flows.browser.serve import listen
from flows.config import PROJECT
from flows.monitoring.meter import Reading
from flows.monitoring.working import Working
from flows.run.lease import DOING, hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import chromium, example_run
from tests.support.report_run import made
from tests.support.rewarded_run import BEHIND, DOCUMENT, HALF, RIGHT, TASK, TRACED, WHOLE, build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
if chromium.PROGRAM is None:
    pytest.skip("no chromium here; on Debian: apt-get install chromium", allow_module_level=True)

LONG = "a" * 40
"""The longest name that a run may have, without a place to break it."""
PAGES = {
    "runs": "/",
    "run": "/runs/going",
    "live": "/runs/going/live",
    "ended": "/runs/whole/live",
    "figures": "/runs/going/figures",
    "figure": "/runs/going/figures/solve-rate",
    "generation": "/runs/going/generations/1",
    "table": "/runs/going/tables/generation=0001/tasks.parquet",
    "row": "/runs/going/rows/0/generation=0001/tasks.parquet",
    "task": "/runs/going/tasks/g0001-m00-p000",
    "adapters": "/runs/whole/adapters",
    "adapter": "/runs/whole/adapters/t0-g0001",
    "manifest": "/runs/going/manifests/generation=0001/solve.json",
    "compare": "/compare?run=going&run=whole",
    "compare-three": f"/compare?run=going&run=whole&run={LONG}",
    "long": f"/runs/{LONG}",
    "behind": f"/runs/document/tasks/{TASK}",
    "trace": f"/runs/traced/tasks/{TASK}",
    "error": "/runs/none",
}
LOOKS = {"wide": (1280, False, "light"), "narrow": (390, True, "light"), "dark": (1280, False, "dark")}


def beat(root: Path, number: int, generation: int) -> None:
    """A heartbeat of a process on another machine."""
    working = Working()
    working.planned = 40
    with working.step("reward", generation, None) as told:
        told(Reading((("pairs", float(number), 40.0),), 640 * number, 55.5, 30.0, "pairs"))
        values = {"host": "elsewhere", "pid": 1, "beat": number, "token": "t", DOING: working.record()}
    (root / "going" / ".lease").write_text(json.dumps(values))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("store")
    with made(found, "going", 12, until="grade"):
        pass
    for name, generations in (("whole", 3), (LONG, 1)):
        with hold(FileStore(found), name) as epoch:
            example_run.build(Run(FileStore(found), name, epoch), generations)
    with hold(FileStore(found), "document") as epoch:
        behind = BEHIND | {"text": f"{BEHIND['text'][:-1]}{'x' * 400}"}
        build(Run(FileStore(found), "document", epoch), DOCUMENT, (behind, WHOLE), ("wrong", "correct"))
    with hold(FileStore(found), "traced") as epoch:
        build(Run(FileStore(found), "traced", epoch), TRACED, (HALF, RIGHT), ("wrong", "correct"))
    beat(found, 4, 11)
    return found


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    listening = listen("127.0.0.1", 0)
    server = Server(config(make_app(str(root))))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def page() -> Iterator[chromium.Page]:
    with chromium.browser() as found:
        for domain in ("Log", "Runtime", "Network"):
            found.do(f"{domain}.enable")
        yield found


def look(page: chromium.Page, width: int, mobile: bool, scheme: str) -> None:
    page.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=mobile)
    page.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


def complaints(page: chromium.Page, address: str) -> list[Any]:
    """What the console said, and requests to any other address."""
    page.value("1")
    found: list[Any] = []
    for event in page.events:
        values = event.get("params", {})
        if event.get("method") == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            found.append(values["entry"]["text"])
        elif event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            found.append(values)
        elif event.get("method") == "Network.requestWillBeSent" and not values["request"]["url"].startswith((address, "about:")):
            found.append(values["request"]["url"])
    page.events.clear()
    return found


def pictures() -> Path | None:
    place = os.environ.get("POPULORA_PICTURES")
    return Path(place) if place else None


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_asks_nobody_else_and_fits(page: chromium.Page, address: str, name: str) -> None:
    for kind, (width, mobile, scheme) in LOOKS.items():
        look(page, width, mobile, scheme)
        page.events.clear()
        page.open(address + PAGES[name])
        if name == "figures":
            page.value("(async () => { for (const f of document.querySelectorAll('.figure-link')) { f.scrollIntoView(); "
                       "await new Promise(done => setTimeout(done, 60)); } scrollTo(0, 0) })()")  # fmt: skip
            page.until("[...document.querySelectorAll('.figure-link img')].every(one => one.complete && one.naturalWidth > 0)")
        # not `innerWidth`: a phone's grows with what does not fit
        assert page.value(f"document.documentElement.scrollWidth <= {width}"), (name, kind)
        if (place := pictures()) is not None:
            page.picture(place / f"{name}-{kind}.png")
        found = complaints(page, address)
        assert [one for one in found if not (name == "error" and "404" in str(one))] == [], (name, kind)


def test_on_a_phone_a_figure_keeps_its_letters_and_two_runs_fit(page: chromium.Page, address: str) -> None:
    look(page, *LOOKS["narrow"])
    page.open(address + PAGES["adapters"])
    texts = "[...document.querySelectorAll('.frame text')]"
    scale = "Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b)"  # of labels that stand upright, too
    size = f"parseFloat(getComputedStyle(one).fontSize) * {scale}"
    assert page.value(f"Math.min(...{texts}.map(one => {size}))") >= 8
    frame = "document.querySelector('.frame')"
    assert page.value(f"{frame}.scrollWidth > {frame}.clientWidth"), "the rest is reached by scrolling inside the frame"
    page.open(address + PAGES["compare"])
    table = "document.querySelector('table.sides').parentElement"
    assert page.value(f"{table}.scrollWidth <= {table}.clientWidth")


def test_the_live_page_follows_the_run(page: chromium.Page, address: str, root: Path) -> None:
    look(page, *LOOKS["wide"])
    page.open(f"{address}/runs/going/live")
    page.until("document.querySelector('[data-percent=stage]').textContent === '10 %'")
    beat(root, 20, 11)
    page.until("document.querySelector('[data-percent=stage]').textContent === '50 %'")
    beat(root, 4, 11)
    page.until("document.querySelector('[data-percent=stage]').textContent === '10 %'")
    assert complaints(page, address) == []


def test_a_plot_is_read_and_zoomed_with_the_keyboard(page: chromium.Page, address: str) -> None:
    look(page, *LOOKS["wide"])
    page.open(f"{address}/runs/going/figures/solve-rate")
    page.until("document.querySelector('#solve-rate .uplot')")
    page.value("document.querySelector('#solve-rate .field').focus()")

    def press(key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            page.do("Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 else "")

    press("End")
    page.until("document.querySelector('#solve-rate .where').textContent === 'generation 11'")
    press("ArrowLeft")
    page.until("document.querySelector('#solve-rate .where').textContent === 'generation 10'")
    spoken = page.value("document.querySelector('#solve-rate [aria-live]').textContent")
    stored = json.loads(page.value("fetch('/runs/going/figures/solve-rate.json').then(answer => answer.text())"))
    line = stored["panels"][0]["lines"][0]
    assert spoken.startswith("generation 10: deduction ") and f"(n = {line['n'][10]})" in spoken
    shown = page.value("document.querySelector('#solve-rate .keys .at').textContent")
    value = f"{line['y'][10]:.4g}"
    assert f"{float(value):g} ± " in shown
    page.value("document.querySelector('#solve-rate .keys button').click()")
    assert page.value("document.querySelector('#solve-rate .keys button').getAttribute('aria-pressed')") == "false"
    looks = page.value(
        "[...document.querySelectorAll('#solve-rate .swatch')].map(one => one.style.background.replace(/var\\([^)]*\\)/g, ''))"
    )
    assert len(looks) == 4 == len(set(looks)), "each key has its line's own dashes"
    press("+")
    press("0")
    assert complaints(page, address) == []


def test_a_plot_says_values_of_any_size_with_four_digits(page: chromium.Page) -> None:
    """A drift of 0.0002 nats per token is no 0."""
    script = (PROJECT / "flows" / "browser" / "static" / "figures.js").read_text(encoding="utf-8")
    (line,) = (line for line in script.splitlines() if line.strip().startswith("const written = "))
    said = page.value(f"(() => {{ {line} return [0.000234561, -0.00012, 0, 33.3333, 12345.6].map(written); }})()")
    assert said == ["0.0002346", "−0.00012", "0", "33.33", "12,350"]


def test_the_accessibility_linter_finds_nothing(page: chromium.Page, address: str) -> None:
    axe = os.environ.get("POPULORA_AXE")
    if not axe:
        pytest.skip("POPULORA_AXE names no axe.min.js (npm pack axe-core)")
    code, found = Path(axe).read_text(encoding="utf-8"), {}
    for width, mobile, scheme in LOOKS.values():
        look(page, width, mobile, scheme)
        for name, path in PAGES.items():
            page.open(address + path)
            page.value(f"(() => {{ {code}; window.axe = axe ?? window.axe; }})()")
            violations = page.value("axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)")
            for one in violations:
                found[name, one["id"]] = [node["html"][:200] for node in one["nodes"]][:3]
    assert found == {}
