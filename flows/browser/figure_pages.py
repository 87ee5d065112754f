"""Figures of a run on pages and as pictures. Drawn figures are cached until the run continues. matplotlib loads on first use."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from flows.monitoring.run_tables import RunTables
from flows.report.figure_tables import Kept, table_refs
from flows.report.report_data import RunData, gather
from flows.run.manifest import Json
from flows.run.run import Run
from flows.storage import NotStored
from stages.core.highlight import visible
from stages.core.tables import GENERATION_TABLES

RUNS = 4  # runs whose tables are kept
LARGEST = 200_000  # rows of one table, up to which a page draws figures: they need the table in memory
FIGURES = 200
FEW = ("solve-rate", "ratings", "valid-share", "family")


class FigureCache:
    """Draws each figure once per state of a run. `watch_of` returns a run's small tables so far."""

    def __init__(self, watch_of: Callable[[Run], RunTables]) -> None:
        self._watch_of = watch_of
        self._parts: OrderedDict[str, Kept] = OrderedDict()
        self._gathered: OrderedDict[str, tuple[str, RunData]] = OrderedDict()
        self._drawn: OrderedDict[tuple[str, str], Json] = OrderedDict()
        self._lock = threading.Lock()

    def too_large(self, run: Run) -> str:
        """Return why no page draws this run's figures; empty if they are drawn."""
        watch = self._watch_of(run)
        for generation in watch.generations:
            for table, ref in table_refs(watch.manifests(generation), generation).items():
                if table in GENERATION_TABLES and (ref.rows or 0) > LARGEST:  # the index of earlier tasks is not drawn
                    name = f"{ref.uri} of run {run.run_id} has {ref.rows:,} rows"
                    return f"{name}: figures of more than {LARGEST:,} are drawn by populora report {run.run_id} only."
        return ""

    def few(self, run: Run) -> list[Json]:
        """Return the figures on the run's own page."""
        gathered = self._gather(run)
        return [self._figure(gathered, name) for name in FEW]

    def groups(self, run: Run) -> Json:
        """Return all figures under their headings, and what is missing."""
        from flows.report.report_figures import GROUPS  # noqa: PLC0415 (matplotlib)

        if large := self.too_large(run):
            return {"run": run.run_id, "groups": [], "missing": [large]}
        gathered = self._gather(run)
        missing = gathered.missing  # reads every table at once
        found = [(heading, [self._figure(gathered, name) for name in draws]) for heading, draws in GROUPS.items()]
        return {"run": run.run_id, "groups": found, "missing": missing}

    def member(self, run: Run, rows: list[Mapping[str, Any]]) -> Json | None:
        """Return the rating curve of one member, from its rating rows with their generations."""
        from flows.report.report_figures import picture  # noqa: PLC0415 (matplotlib)
        from stages.figures.population import member_curve  # noqa: PLC0415 (matplotlib)

        if len(rows) < 2:
            return None
        return self._kept((run.history.head(), str(rows[0]["member_id"])), lambda: shown_figure(member_curve(rows), picture))

    def ratings(self, run: Run) -> Json | None:
        """Return the rating curves of all members; None if the run is too large."""
        return None if self.too_large(run) else self._figure(self._gather(run), "ratings")

    def png(self, run: Run, name: str) -> bytes:
        """Return one figure as a picture on white. Raises NotStored for an unknown name or a figure that cannot be drawn yet."""
        from flows.report.report_figures import EVERY  # noqa: PLC0415 (matplotlib)

        if large := self.too_large(run):
            raise NotStored(large)
        plate = EVERY[name](self._gather(run)) if name in EVERY else None
        if plate is None or plate.figure is None:
            raise NotStored(f"Run {run.run_id} has no figure {name[:60]}. Figures: {', '.join(EVERY)}.")
        out = io.BytesIO()
        plate.figure.savefig(out, format="png", dpi=160, facecolor="white")
        return out.getvalue()

    def numbers(self, run: Run, name: str) -> Json:
        """Return what a figure shows, as JSON. Raises NotStored like `png`."""
        from flows.report.report_figures import EVERY  # noqa: PLC0415 (matplotlib)

        if large := self.too_large(run):
            raise NotStored(large)
        shown = self._figure(self._gather(run), name) if name in EVERY else None
        if shown is None or not shown["picture"]:
            raise NotStored(f"Run {run.run_id} has no figure {name[:60]}. Figures: {', '.join(EVERY)}.")
        found: Json = shown["numbers"]
        return found

    def _figure(self, gathered: RunData, name: str) -> Json:
        from flows.report.report_figures import EVERY, picture  # noqa: PLC0415 (matplotlib)

        return self._kept((gathered.head, f"figure {name}"), lambda: shown_figure(EVERY[name](gathered), picture))

    def _kept(self, key: tuple[str, str], draw: Callable[[], Json]) -> Json:
        with self._lock:
            if key in self._drawn:
                return self._drawn[key]
        shown = draw()
        with self._lock:
            self._drawn[key] = shown
            while len(self._drawn) > FIGURES:
                self._drawn.popitem(last=False)
        return shown

    def _gather(self, run: Run) -> RunData:
        head = run.history.head()
        with self._lock:
            found = self._gathered.get(run.run_id)
            if found is not None and found[0] == head:
                return found[1]
            parts = self._parts.setdefault(run.run_id, {})
        gathered = gather(run, self._watch_of(run), parts)
        with self._lock:
            self._gathered[run.run_id] = (head, gathered)
            while len(self._gathered) > RUNS:
                gone, _ = self._gathered.popitem(last=False)
                self._parts.pop(gone, None)
        return gathered


def shown_figure(plate: Any, picture: Callable[[Any], str]) -> Json:
    """Return a drawn figure for a page: the picture, its words and its numbers."""
    from flows.browser.figure_numbers import numbers, tables, zooms  # noqa: PLC0415 (matplotlib)

    # matplotlib's style element is in our style sheet: a page may not contain its own.
    drawn = picture(plate)
    start, end = drawn.find("<style"), drawn.find("</style>")
    bare = drawn if start < 0 else drawn[:start] + drawn[end + len("</style>") :]
    return {
        "name": plate.name,
        "question": plate.question,
        "caption": visible(plate.caption),
        "picture": Markup(bare),
        "zooms": zooms(plate),
        "numbers": numbers(plate),
        "tables": tables(plate),
    }
