"""Keep the states of our runs in Prefect true: no run stays Running without a process.

Prefect marks the run whose process died, but not its subflows, and marks nothing if the worker or the machine died. So a run
that does not complete ends its subflows too (`end_children`), an automation marks runs whose heartbeat stopped, `SilentRuns` next
to each worker marks those that the automation forgot when its server restarted and those whose process died before its first
heartbeat, and `sweep` cleans up after all of them, at the start of a server and every minute next to a worker.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import Pause
from prefect.states import Cancelled, Cancelling, Crashed, Pending

HEARTBEAT_SECONDS = 30
LOST_AFTER_SECONDS = 3 * HEARTBEAT_SECONDS
SILENT_SECONDS = 2 * LOST_AFTER_SECONDS
LOST_RUNS = "Runs whose heartbeat stopped are crashed"
_AT_WORK = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def end_children(flow: Any, flow_run: FlowRun, state: State) -> None:
    """Hook for cancelled, crashed and failed runs: give their remaining subflows the same final state."""
    with get_client(sync_client=True) as client:
        _end_children(client, flow_run, state)


@contextmanager
def children_wait_when_paused() -> Iterator[None]:
    """In a flow paused from the UI: show its subflows as waiting, not as running, until it is resumed."""
    try:
        yield
    except Pause:
        if run_id := runtime.flow_run.id:
            with get_client(sync_client=True) as client:
                for child in client.read_flow_runs(flow_run_filter=_children_at_work(UUID(run_id))):
                    _set(client, child, Pending(message="The parent run is paused."))
        raise


def sweep(pools: list[str], nobody_works: bool = False) -> int:
    """End subflows whose parent has ended. Returns how many runs it marked.

    `nobody_works` means that no process of these pools can be alive: runs that appear to be running are then marked as crashed.
    """
    marked = 0
    with get_client(sync_client=True) as client:
        if nobody_works:
            for lost in _runs(client, _AT_WORK, pools):
                _set(client, lost, Crashed(message="The server was stopped while this run was running. Retry resumes it."))
                marked += 1
        for child in _runs(client, _AT_WORK):
            if child.parent_task_run_id is None:
                continue
            task = client.read_task_run(child.parent_task_run_id)
            parent = client.read_flow_run(task.flow_run_id) if task.flow_run_id else None
            if parent is not None and parent.state is not None and parent.state.is_final():
                marked += _end(client, child, parent.state)
    return marked


def newest_event(client: Any, flow_run_id: UUID) -> str:
    """Return the id of the newest event of a run, such as a heartbeat or a new state; empty if there is none."""
    resource = EventResourceFilter(id=[f"prefect.flow-run.{flow_run_id}"])
    found = client.read_events(EventFilter(event=EventNameFilter(prefix=["prefect.flow-run."]), resource=resource), limit=1)
    return str(found.events[0].id) if found.events else ""


class SilentRuns:
    """Runs of some pools that a worker has taken, and how long each has been silent, by our own clock.

    The server's automation forgets its counts when the server restarts. A run lost around that time is found here. So is one
    whose process died while it was still Pending: the automation counts from a first heartbeat, which such a run never sends.
    """

    def __init__(
        self,
        pools: list[str],
        clock: Callable[[], float] = time.monotonic,
        newest_event: Callable[[Any, UUID], str] = newest_event,
    ) -> None:
        self._pools, self._clock, self._newest_event = pools, clock, newest_event
        self._heard: dict[UUID, tuple[str, float]] = {}

    def crash_the_silent(self, seconds: float = SILENT_SECONDS) -> int:
        """Mark the runs that have reported nothing new for too long over repeated calls. Returns how many."""
        now, marked = self._clock(), 0
        with get_client(sync_client=True) as client:
            runs = _runs(client, _AT_WORK, self._pools)
            known, self._heard = self._heard, {}
            for run in runs:
                said = self._newest_event(client, run.id)
                before, since = known.get(run.id, (said, now))
                self._heard[run.id] = (said, since if said == before else now)
                if now - self._heard[run.id][1] >= seconds:
                    _set(client, run, Crashed(message="The run stopped reporting: its process or machine is gone."))
                    marked += 1
        return marked


def lost_runs() -> AutomationCore:
    """Return the automation that marks a run as crashed if its process has sent no heartbeat for a while."""
    return AutomationCore(
        name=LOST_RUNS,
        description="Created by populora. A worker or machine that died cannot report it itself.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=LOST_AFTER_SECONDS,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="No heartbeat: its process or machine is gone.")],
    )


def _end_children(client: Any, flow_run: FlowRun, state: State) -> None:
    for child in client.read_flow_runs(flow_run_filter=_children_at_work(flow_run.id)):
        _end(client, child, state)
        _end_children(client, child, state)


def _children_at_work(flow_run_id: UUID) -> FlowRunFilter:
    return FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run_id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_AT_WORK)),
    )


def _end(client: Any, child: FlowRun, parents: State) -> bool:
    """Give a subflow its parent's final state. A subflow with its own process, on any machine, is told to end it."""
    if child.deployment_id is None:
        _set(client, child, _same_end(parents))
    elif child.state is None or not child.state.is_cancelling():
        _set(client, child, Cancelling(message="The parent run has ended."))
    else:
        return False
    return True


def _same_end(state: State) -> State:
    if state.is_cancelled() or state.is_cancelling():
        return Cancelled(message="The parent run was cancelled.")
    return Crashed(message="The parent run has ended.")


def _set(client: Any, flow_run: FlowRun, state: State) -> None:
    client.set_flow_run_state(flow_run.id, state, force=True)


def _runs(client: Any, types: list[StateType], pools: list[str] | None = None) -> list[FlowRun]:
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types)))
    where = WorkPoolFilter(name=WorkPoolFilterName(any_=pools)) if pools is not None else None
    found: list[FlowRun] = []
    while page := client.read_flow_runs(flow_run_filter=wanted, work_pool_filter=where, limit=200, offset=len(found)):
        found += page
    return found
