"""Hooks of the training flow at its end: a note that says why a run stopped and what to do, and messages to who is to be told.

Prefect calls the hooks in the run's own process, or in its worker when that process was killed. A run that a server marked as
crashed because it fell silent has no process that could call them: `explain_lost` writes its note, next to each worker. Both may
find the same run at the same moment, on several machines; it still gets one note for each end.
"""

import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import Artifact, FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from flows.monitoring.status import following
from flows.notes.end_text import REFUSED, RunEnd, end_message, end_note, stopped_by_hand
from flows.notes.telling import tell_from_here
from flows.run.planned import planned_generations
from flows.run.run import Run
from flows.storage import open_store

TRAIN = "train"
STORE_SECONDS = 5.0
LOST_WITHIN = timedelta(days=1)
MOST = 50
_LOG = logging.getLogger("populora.notes")


def explain(flow: Any, flow_run: FlowRun, state: State) -> None:
    """Hook for crashed and failed runs: write the note, and tell."""
    end = _end(flow_run, state)
    try:
        with get_client(sync_client=True) as client:
            _write_once(client, flow_run, end)
    except Exception as error:  # the run has ended; nothing may hide its own error
        _LOG.warning("run %s: no note says why it stopped (%s)", end.run_id, type(error).__name__)
    if not stopped_by_hand(end.message):
        tell_from_here("crash", *end_message(end))


def tell_end(flow: Any, flow_run: FlowRun, state: State) -> None:
    """Hook for completed and cancelled runs: tell."""
    tell_from_here("end", *end_message(_end(flow_run, state)))


def explain_lost() -> int:
    """Write the missing notes of runs that crashed within the last day. Returns how many."""
    wanted = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED])),
        end_time=FlowRunFilterEndTime(after_=datetime.now(UTC) - LOST_WITHIN),
    )
    written = 0
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[TRAIN])),
            flow_run_filter=wanted,
            sort=FlowRunSort.END_TIME_DESC,
            limit=MOST,
        )
        for run in runs:
            end = _end(run, run.state) if run.state is not None else None
            if end is not None and end.run_id and _write_once(client, run, end):
                written += 1
    return written


def key_of(run_id: str) -> str:
    """Return the key of the note about a run's end."""
    return f"{run_id}-crash"


def _write_once(client: SyncPrefectClient, flow_run: FlowRun, end: RunEnd) -> bool:
    """Write the note unless this end of the run has one, and return whether it was written and stays.

    The server cannot refuse a second one, and stamps a note before it can be read: a later note may be seen first. So each writer
    looks again, and deletes all but the earliest. Whoever writes last sees them all, and the earliest is never deleted.
    """
    ended = _ended(client, flow_run)
    if _notes(client, flow_run, end, ended):
        return False
    what = f"Why it {end.state.lower()}, and what to do"
    made = client.create_artifact(
        ArtifactCreate(key=key_of(end.run_id), type="markdown", data=end_note(end), description=what, flow_run_id=flow_run.id)
    )
    notes = _notes(client, flow_run, end, ended)
    for later in notes[1:]:
        with suppress(ObjectNotFound):  # the other writer deleted it
            client.delete_artifact(later.id)
    return not notes or notes[0].id == made.id


def _ended(client: SyncPrefectClient, flow_run: FlowRun) -> datetime:
    """Return when the run ended for the last time: a killed one is marked by Prefect's runner and again by its worker."""
    states = sorted(client.read_flow_run_states(flow_run.id), key=lambda state: state.timestamp, reverse=True)
    final = list(takewhile(lambda state: state.is_final(), states))
    return final[-1].timestamp if final else datetime.now(UTC)


def _notes(client: SyncPrefectClient, flow_run: FlowRun, end: RunEnd, since: datetime) -> list[Artifact]:
    """Return the notes on this end of the flow run, the first one first. It may have crashed before, and been retried."""
    wanted = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run.id]), key=ArtifactFilterKey(any_=[key_of(end.run_id)])
    )
    found = [one for one in client.read_artifacts(artifact_filter=wanted, limit=200) if one.created and one.created >= since]
    return sorted(found, key=lambda one: (one.created, one.id))


def _end(flow_run: FlowRun, state: State) -> RunEnd:
    values = flow_run.parameters or {}
    run_id, store = str(values.get("run_id", "")), str(values.get("store", ""))
    place, stored = _place(run_id, store) if state.type in (StateType.CRASHED, StateType.FAILED) else ("", True)
    # a crash may be explained on another machine, whose folder of the same name holds no such run
    begun = stored or (state.type == StateType.CRASHED and REFUSED not in (state.message or ""))
    kind = "Crashed" if state.type == StateType.CRASHED else "Failed" if state.type == StateType.FAILED else state.name or ""
    return RunEnd(run_id, store, kind, state.message or "", place, begun)


def _place(run_id: str, store: str) -> tuple[str, bool]:
    """Return the stage at which the run resumes (empty if the store does not say so at once), and whether there may be a run."""
    found: list[tuple[str, bool]] = []

    def look() -> None:
        try:
            run = Run(open_store(store), run_id)
            description = run.history.description()
            if description is None:
                found.append(("", False))
            else:
                found.append((following(run, planned_generations(description, run.history.newest_stages())), True))
        except Exception:  # the store may be why the run failed
            return

    thread = threading.Thread(target=look, name="place", daemon=True)
    thread.start()
    thread.join(STORE_SECONDS)
    return found[0] if found else ("", True)
