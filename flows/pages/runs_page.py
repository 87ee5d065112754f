"""The content of the list of runs."""

import time
from collections.abc import Sequence

from flows.compare.run_list import RunEntry, RunList
from flows.compare.run_query import DAY, BadQuery, RunQuery, select
from flows.compare.side_by_side import MOST
from flows.monitoring.players import players
from flows.monitoring.run_state import RunState
from flows.monitoring.status import size_text
from flows.pages.bad_request import BadRequest
from flows.pages.library import Library
from flows.run.manifest import Json
from flows.store.names import RUN_ID


class RunsPage:
    """Lists the runs of a library."""

    def __init__(self, library: Library) -> None:
        self._list = RunList(library.store, library.states)

    def page(self, query: RunQuery, chosen: Sequence[str] = ()) -> Json:
        """Return one page of the list; `chosen` are the runs ticked so far. Raises BadRequest."""
        ticked = [run_id for run_id in dict.fromkeys(chosen) if RUN_ID.fullmatch(run_id)]
        now, entries = time.time(), self._list.entries()
        try:
            found = select(entries, query, self._list.scores, self._list.sizes, now)
        except BadQuery as error:
            raise BadRequest(str(error)) from error
        shown = {entry.run_id for entry in found.rows}
        known = {entry.run_id for entry in entries}
        return {
            "query": query,
            "list": found,
            "ages": {entry.run_id: _age(now - entry.began) for entry in found.rows if entry.began is not None},
            "ticked": {run_id for run_id in ticked if run_id in shown},
            "elsewhere": [run_id for run_id in ticked if run_id in known - shown],
            "sizes": {run_id: size_text(size) for run_id, size in found.sizes.items()},
            "populations": {entry.run_id: _players(entry) for entry in found.rows},
            "states": list(RunState),
            "most": MOST,
        }


def _players(entry: RunEntry) -> str:
    flat = entry.settings
    population = {role: flat.get(f"population.{role}", "?") for role in ("teachers", "students")}
    curriculum = flat.get("propose.curriculum", "")
    return players({"mode": flat.get("mode"), "population": population, "propose": {"curriculum": curriculum}})


def _age(seconds: float) -> str:
    """Return how long ago a run began, in the unit that suits; by two machines' clocks, so that it may be off."""
    if seconds < 0:
        return "now"
    for unit, size in (("d", DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
