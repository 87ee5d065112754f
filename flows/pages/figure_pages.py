"""A run's figures: all on a page, one on a page, and as pictures. matplotlib loads first.

They are cached until the run continues or is scored again.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from flows.monitoring.run_tables import RunTables
from flows.monitoring.start_score import unscored_start
from flows.pages.outlined import shown
from flows.report.figure_tables import Kept, table_refs
from flows.report.report_data import RunData, gather
from flows.report.report_page import THEME, escape
from flows.run.manifest import Json, digest
from flows.run.run import Run
from flows.storage import NotStored, StoreUnavailable
from stages.core.highlight import visible
from stages.core.tables import GENERATION_TABLES
from stages.figures.panels import Numbered

Draws = Mapping[str, Callable[[], Json]]
"""What draws each figure of a page, by name."""

RUNS = 4  # runs whose tables are kept
LARGEST = 200_000  # rows of one table, up to which a page draws figures: they need the table in memory
FIGURES = 200


@dataclass(frozen=True)
class _Gathered:
    """What figures are drawn from. `state` changes with the run of that name, its chain and its benchmarks.

    Benchmarks made outside the chain leave its head as it was. An equal run has the same head, but other times.
    """

    state: str
    data: RunData


class FigureCache:
    """Draws each figure once per state of a run.

    `watch_of` returns a run's small tables so far. `patience` is the seconds that a request waits for another one's figure.
    """

    def __init__(self, watch_of: Callable[[Run], RunTables], patience: float) -> None:
        self._watch_of, self._patience = watch_of, patience
        self._parts: OrderedDict[str, Kept] = OrderedDict()
        self._gathered: OrderedDict[str, _Gathered] = OrderedDict()
        self._drawn: OrderedDict[tuple[str, str], Json] = OrderedDict()
        self._gathering = threading.Lock()
        self._drawing = threading.Lock()  # matplotlib's settings are those of the process

    def too_large(self, run: Run) -> str:
        """Return why no page draws the figures that need tasks and attempts; empty if they are drawn."""
        watch = self._watch_of(run)
        for generation in watch.generations:
            for table, ref in table_refs(watch.manifests(generation), generation).items():
                if table in GENERATION_TABLES and (ref.rows or 0) > LARGEST:  # the index of earlier tasks is not drawn
                    name = f"{ref.uri} of run {run.run_id} has {ref.rows:,} rows"
                    return f"{name}: figures of more than {LARGEST:,} are drawn by populora report {run.run_id} only."
        return ""

    def groups(self, run: Run) -> Json:
        """Return the page of all figures: their names under headings, what is missing, and what draws each of them."""
        from flows.report.report_figures import GROUPS  # noqa: PLC0415 (matplotlib)

        if large := self.too_large(run):
            return {"run": run.run_id, "groups": [], "missing": [large]}
        gathered = self._gather(run)
        named = [(heading, list(draws)) for heading, draws in GROUPS.items()]
        draws: Draws = {name: partial(self._figure, gathered, name) for _, names in named for name in names}
        return {
            "run": run.run_id,
            "groups": named,
            "missing": [said for said in (*gathered.data.gaps, unscored_start(gathered.data.watch)) if said],
            "draws": draws,
        }

    def page(self, run: Run, name: str) -> Json:
        """Return the page of one figure. Raises NotStored like `png`, but a figure without data is a page that says so."""
        return {"run": run.run_id, "one": self._figure(self._named(run, name), name)}

    def svg(self, run: Run, name: str) -> str:
        """Return one figure as a picture for a page, in the page's colours. One without data says so."""
        shown = self._figure(self._named(run, name), name)
        if not shown["picture"]:
            return standalone(_without_data(shown["question"], shown["caption"]))
        return standalone(shown["picture"], "some tables could not be read: see its page" if shown["unreadable"] else "")

    def png(self, run: Run, name: str) -> bytes:
        """Return one figure as a picture on white. Raises NotStored for an unknown name or a figure that cannot be drawn yet."""
        from flows.report.report_figures import EVERY  # noqa: PLC0415 (matplotlib)

        gathered, out = self._named(run, name), io.BytesIO()
        with _held(self._drawing, self._patience):
            plate = EVERY[name](gathered.data)
            if plate.figure is None:
                raise NotStored(f"Run {run.run_id} has no figure {name} yet. {plate.caption}")
            plate.figure.savefig(out, format="png", dpi=160, facecolor="white")
        return out.getvalue()

    def numbers(self, run: Run, name: str) -> Json:
        """Return what a figure shows, as JSON. Raises NotStored like `png`."""
        shown = self._figure(self._named(run, name), name)
        if not shown["picture"]:
            raise NotStored(f"Run {run.run_id} has no figure {name} yet. {shown['caption']}")
        found: Json = shown["numbers"]
        return found

    def _named(self, run: Run, name: str) -> _Gathered:
        """Return what a figure is drawn from. Raises NotStored if there is no such figure or no page draws this run's."""
        from flows.report.report_figures import EVERY  # noqa: PLC0415 (matplotlib)

        if name not in EVERY:
            raise NotStored(f"Run {run.run_id} has no figure {name[:60]}. Figures: {', '.join(EVERY)}.")
        if large := self.too_large(run):
            raise NotStored(large)
        return self._gather(run)

    def _figure(self, gathered: _Gathered, name: str) -> Json:
        from flows.report.report_figures import EVERY, picture  # noqa: PLC0415 (matplotlib)

        key = (gathered.state, name)
        if (found := self._drawn.get(key)) is not None:
            return found
        with _held(self._drawing, self._patience):
            if key not in self._drawn:
                plate = EVERY[name](gathered.data)
                drawn = for_page(plate, picture(plate))
                self._drawn[key] = drawn | {"unreadable": gathered.data.tables.faults_of(plate.tables)}
                while len(self._drawn) > FIGURES:
                    self._drawn.popitem(last=False)
            return self._drawn[key]

    def _gather(self, run: Run) -> _Gathered:
        scored = [digest(one) for one in run.history.benchmarks()]
        state = digest({"run": run.history.description(), "head": run.history.head(), "benchmarks": scored})
        with _held(self._gathering, self._patience):
            found = self._gathered.get(run.run_id)
            if found is None or found.state != state:
                found = _Gathered(state, gather(run, self._watch_of(run), self._parts.setdefault(run.run_id, {})))
                self._gathered[run.run_id] = found
                while len(self._gathered) > RUNS:
                    gone, _ = self._gathered.popitem(last=False)
                    self._parts.pop(gone, None)
            return found


@contextmanager
def _held(lock: threading.Lock, patience: float) -> Iterator[None]:
    """Hold a lock. Raises StoreUnavailable if another request has held it for as long as a reader waits."""
    if not lock.acquire(timeout=patience):
        raise StoreUnavailable("Other figures are still being drawn. Load the page again.")
    try:
        yield
    finally:
        lock.release()


def for_page(plate: Numbered, picture: str) -> Json:
    """Return a figure as pages show it: without matplotlib's style element, which is in our style sheet, or hidden characters."""
    text = visible(picture)  # matplotlib escapes markup only
    start, end = text.find("<style"), text.find("</style>")
    return shown(plate, text if start < 0 else text[:start] + text[end + len("</style>") :])


def standalone(drawing: str, note: str = "") -> str:
    """Return a drawing of a page as a file of its own, with a note and the colours that the page's style sheet would give it."""
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = f"<style>{THEME}*{{stroke-linejoin:round;stroke-linecap:butt}}text{{font-family:sans-serif}}</style>"
    said = f'<text x="4" y="9" style="fill: var(--bad); font-size: 8px">{escape(note)}</text>' if note else ""
    opening, rest = str(drawing).split(">", 1)
    return f"{opening.replace('<svg ', f'<svg {names} ', 1)}>{style}{said}{rest}"


def _without_data(question: str, caption: str) -> str:
    lines = ((16, "1.05em", question), (40, "0.8em", caption))
    texts = (f'<text x="8" y="{y}" style="fill: var(--ink); font-size: {size}">{escape(text)}</text>' for y, size, text in lines)
    return f'<svg role="img" aria-label="{escape(question)} {escape(caption)}" viewBox="0 0 480 52">{"".join(texts)}</svg>'
