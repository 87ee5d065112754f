"""Where one stands with a store: the run with the latest activity, its state, and the next sensible command."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from flows.monitoring.run_state import RunState, StateReader, silent_text
from flows.monitoring.status import active, done, following, holder, upcoming
from flows.run.planned import planned_generations
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, Store, StoreRefused, StoreUnavailable, open_store
from flows.store.many_reads import read_each
from flows.store.names import RUN_ID

FIRST, CHECK = ("run",), ("doctor", "--store")
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Standing:
    """What there is, a line each, and the command to type next, without the name of the program."""

    lines: tuple[str, ...]
    following: tuple[str, ...]


@dataclass(frozen=True)
class _Found:
    """A run of the store: when it was last active (0.0: not recorded), and whether a process works on it."""

    run: Run
    planned: int
    active: float
    at_work: bool


@dataclass(frozen=True)
class _Unreadable:
    """A run whose run.json or newest manifest cannot be read."""

    run_id: str


def standing(store_url: str, report_of: Callable[[str], Path], seconds: float = PATIENCE_SECONDS) -> Standing:
    """Say where one stands with a store; `report_of` is where the report of a run goes.

    A store that fails is said, too. A bucket that cannot be reached is tried for a minute elsewhere, here for so many seconds.
    """
    found: list[Standing] = []
    thread = Thread(target=lambda: found.append(_standing(store_url, report_of)), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else Standing((f"store      {store_url}: no answer in {seconds:g} s",), (*CHECK, store_url))


def _standing(store_url: str, report_of: Callable[[str], Path]) -> Standing:
    try:
        store = open_store(store_url)
        states = StateReader(store)
        found, unreadable = _runs(store, states)
        many = f"{len(found) or 'no'} {'run' if len(found) == 1 else 'runs'}"
        line = f"store      {store_url}: {many}" + (f", and unreadable ones: {', '.join(unreadable)}" if unreadable else "")
        if not found:
            return Standing((line,), FIRST)
        latest = max(found, key=lambda one: (one.at_work, one.active, one.run.run_id))
        state, command = _state(latest, states, report_of(latest.run.run_id))
        since = "" if latest.at_work or not latest.active else f"; last active {_date(latest.active)}"
        return Standing((line, f"latest     {latest.run.run_id}: {state}{since}"), command)
    except (StoreRefused, StoreUnavailable, NotStored, Damaged) as error:
        return Standing((f"store      {store_url}: {str(error).splitlines()[0]}",), (*CHECK, store_url))


def _runs(store: Store, states: StateReader) -> tuple[list[_Found], list[str]]:
    """Return the runs of the store, and the names of those that cannot be read."""
    names = [name for name in store.folders("") if RUN_ID.fullmatch(name)]
    runs = read_each(lambda name: _run(Run(store, name), states), names)
    return [run for run in runs if isinstance(run, _Found)], [run.run_id for run in runs if isinstance(run, _Unreadable)]


def _run(run: Run, states: StateReader) -> _Found | _Unreadable | None:
    """Return a run as found; None for a folder without run.json."""
    try:
        description = run.history.description()
        if description is None:
            return None
        finished = run.history.newest_stages()
        at_work = states.standing(run.run_id, complete=False).state is RunState.RUNNING
        return _Found(run, planned_generations(description, finished), active(description, finished), at_work)
    except (Damaged, StoreRefused, KeyError, ValueError):
        return _Unreadable(run.run_id)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _state(found: _Found, states: StateReader, report: Path) -> tuple[str, tuple[str, ...]]:
    """Return what a run is doing, or where it stopped, and the command that follows."""
    run, planned = found.run, found.planned
    so_far, (stage, generation) = done(run, planned), upcoming(run, planned)
    known = states.standing(run.run_id, complete=not stage)
    if known.state is RunState.RUNNING:
        return f"running, {known.who}; {so_far}; next: {following(run, planned)}", ("status", run.run_id)
    if known.state is RunState.SILENT:
        return f"{silent_text(known.who)}; {holder(known)}; {so_far}; next: {following(run, planned)}", ("watch", run.run_id)
    if known.state is RunState.FINISHED:
        after = ("browse",) if report.is_file() else ("report", run.run_id)
        return f"done, {planned} generations" + (f"; its report is {report}" if report.is_file() else ""), after
    if generation is None:
        where = "in its start"
    else:
        where = f"{'before' if stage == STAGE_NAMES[0] else 'inside'} generation {generation}"
    why = f", {holder(known)}" if known.state is RunState.CRASHED else ""
    return f"{known.state} {where}{why}; {so_far}", ("run", "--resume", run.run_id)
