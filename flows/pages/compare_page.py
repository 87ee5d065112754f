"""The content of the page that lays runs side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.compare.best_members import descent, rank_text
from flows.compare.scores import PairedScores
from flows.compare.side_by_side import CURVES, MOST, Comparer, Side, SideBySide
from flows.pages.bad_request import BadRequest
from flows.pages.library import Library
from flows.pages.outlined import drawn
from flows.run.manifest import Json
from stages.core.highlight import visible
from stages.figures.measures import colours_of
from stages.figures.panels import VARIABLES
from stages.figures.side_by_side import overlay

FEW = 4  # curves that the page shows first, after those of the benchmarks
AXES = ("generation", "generated_tokens", "seconds")  # of the curves


class ComparePages:
    """Makes comparisons of runs of a library."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._comparer = Comparer(library.store, library.states)

    def page(self, run_ids: Sequence[str], every: bool = False, by: str = AXES[0]) -> Json:
        """Return the comparison of these runs, the first one as the reference; `every`: with all curves, `by`: over which axis.

        With fewer than two runs, the page says how to choose them. Raises BadRequest for too many or an unknown axis, NotStored
        for a run that does not exist.
        """
        if by not in AXES:
            raise BadRequest(f"{by[:60]!r} is not one of {', '.join(AXES)}.")
        wanted = list(dict.fromkeys(run_ids))
        if len(wanted) > MOST:
            raise BadRequest(f"{len(wanted)} runs are too many to compare: choose at most {MOST}.")
        watches = [self._library.watch(self._library.run(run_id)) for run_id in wanted]
        if len(wanted) < 2:
            return {"found": None, "names": wanted, "most": MOST, "figures": []}
        found = self._comparer.compare(watches)
        figures, hidden = _figures(found, every, by)
        return {
            "found": found,
            "names": wanted,
            "swatches": _swatches(wanted),
            "suites": [(suite, [_newest(run, suite) for run in found.runs]) for suite in found.suites()],
            "pairs": [_pair(pair) for pair in found.pairs],
            "roles": list(dict.fromkeys(best.role for run in found.runs for best in run.best)),
            "best": {(run.run_id, best.role): best for run in found.runs for best in run.best},
            "line": descent,
            "rank": rank_text,
            "figures": figures,
            "hidden": hidden,
            "by": by,
            "kept": {"every": "true" if every else "", "by": "" if by == AXES[0] else by},  # parameters for the page's links
            "axes": AXES,
        }


def _figures(found: SideBySide, every: bool, by: str) -> tuple[list[Json], int]:
    """Return the figures, and how many are left out."""
    names = [run.run_id for run in found.runs]
    figures: list[Json] = []
    for suite in found.suites():
        scores = [score for run in found.runs for score in run.scores if score.suite == suite]
        measures = " or ".join(dict.fromkeys(score.measure for score in scores))
        rows = [{"run": run.run_id} | row for run in found.runs for row in run.score_curves if row["name"] == suite]
        figures.append(drawn(overlay(rows, names, f"benchmark {suite}", visible(f"{suite}, mean {measures} (share)"), by)))
    measured = {row["name"] for run in found.runs for row in run.curves}
    curves = [name for name in CURVES if name in measured]
    for name in curves if every else curves[:FEW]:
        rows = [{"run": run.run_id} | row for run in found.runs for row in run.curves if row["name"] == name]
        figures.append(drawn(overlay(rows, names, name, "", by)))
    return figures, 0 if every else len(curves[FEW:])


def _newest(run: Side, suite: str) -> Any:
    return max((score for score in run.scores if score.suite == suite), key=lambda score: score.trained, default=None)


def _pair(pair: PairedScores) -> Json:
    """Return one pair with a row for each measure and group; `certain`: the difference is more than two standard errors.

    No key is named like a method of a dict, which a template would find first.
    """
    rows = [
        {
            "group": change.group,
            "measure": change.measure,
            "before": change.before,
            "after": change.after,
            "found": change.found,
            "certain": change.found.stderr is not None and abs(change.found.difference) > 2 * change.found.stderr,
        }
        for change in pair.changes
    ]
    return {"pair": pair, "rows": rows}


def _swatches(names: Sequence[str]) -> Mapping[str, str]:
    """Return the CSS colour of each run's curves."""
    return {run: f"var(--{VARIABLES[colour]})" if colour in VARIABLES else colour for run, colour in colours_of(names).items()}
