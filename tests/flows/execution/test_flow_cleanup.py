"""Nothing stays Running that nobody works on: a parent's end reaches its subflows, and the sweep finds what hooks have missed."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import prefect
import pytest
from prefect.client.orchestration import get_client
from prefect.states import Cancelled, Completed, Crashed, Running

from flows.execution import flow_cleanup
from flows.execution.pools import stage
from flows.prefect_ops import deployments

pytestmark = pytest.mark.flow


@prefect.flow(name="parent")
def parent() -> None:
    pass


@prefect.flow(name="child")
def child() -> None:
    pass


@prefect.task(name="link")
def link() -> None:
    pass


@pytest.fixture
def client() -> Iterator[Any]:
    with get_client(sync_client=True) as found:
        yield found


def at_work(client: Any, flow: Any, parent_task: UUID | None = None, **parameters: Any) -> Any:
    """A run that says of itself that it runs."""
    made = client.create_flow_run(flow, parameters=parameters, parent_task_run_id=parent_task)
    client.set_flow_run_state(made.id, Running(), force=True)
    return client.read_flow_run(made.id)


def below(client: Any, flow_run: Any) -> UUID:
    """What Prefect makes in a parent for each subflow."""
    return UUID(str(client.create_task_run(link, flow_run_id=flow_run.id, dynamic_key=str(uuid4())).id))


def elsewhere(client: Any, parent_task: UUID | None = None) -> Any:
    """A stage that says of itself that it runs, from the pool cpu."""
    deployment = client.read_deployment_by_name(f"{stage.name}/cpu")
    values = {"store": "s", "run_id": "r", "stage": "solve", "generation": 0, "part": None, "epoch": 1, "generations": 1}
    made = client.create_flow_run_from_deployment(deployment.id, parameters=values, parent_task_run_id=parent_task)
    client.set_flow_run_state(made.id, Running(), force=True)
    return made


def name(client: Any, flow_run: Any) -> str:
    return str(client.read_flow_run(flow_run.id).state.name)


@pytest.mark.parametrize(("end", "expected"), [(Cancelled(), "Cancelled"), (Crashed(), "Crashed")])
def test_subflows_get_their_parents_end(client: Any, end: Any, expected: str) -> None:
    above = at_work(client, parent)
    inside = at_work(client, child, below(client, above))
    flow_cleanup.end_children(parent, above, end)
    assert name(client, inside) == expected


def test_a_stage_on_another_machine_is_told_to_end_its_process(client: Any) -> None:
    deployments.deploy("/tmp/a")
    above = at_work(client, parent)
    remote = elsewhere(client, below(client, above))
    flow_cleanup.end_children(parent, above, Crashed())
    assert name(client, remote) == "Cancelling"
    client.set_flow_run_state(above.id, Crashed(), force=True)
    assert flow_cleanup.sweep([]) == 0  # it has been told
    assert name(client, remote) == "Cancelling"
    client.set_flow_run_state(remote.id, Cancelled(), force=True)


def test_the_sweep_ends_what_the_hooks_missed_and_nothing_else(client: Any) -> None:
    dead, living = at_work(client, parent), at_work(client, parent)
    orphan, well = at_work(client, child, below(client, dead)), at_work(client, child, below(client, living))
    client.set_flow_run_state(dead.id, Crashed(), force=True)
    assert flow_cleanup.sweep([]) == 1
    assert [name(client, one) for one in (orphan, well)] == ["Crashed", "Running"]
    client.set_flow_run_state(well.id, Completed(), force=True)
    client.set_flow_run_state(living.id, Completed(), force=True)


def test_the_watch_crashes_what_stays_silent_and_nothing_else(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deployments.deploy("/tmp/a")
    silent, talking = elsewhere(client), elsewhere(client)
    clock = [1000.0]
    monkeypatch.setattr(flow_cleanup.time, "monotonic", lambda: clock[0])
    heard = {silent.id: "a", talking.id: "a"}
    monkeypatch.setattr(flow_cleanup, "_newest_event", lambda _client, flow_run_id: heard.get(flow_run_id, ""))
    watch = flow_cleanup.SilentRuns(["cpu"])
    assert watch.crash_the_silent() == 0  # the first look knows nothing of the time before
    clock[0], heard[talking.id] = clock[0] + 0.6 * flow_cleanup.SILENT_SECONDS, "b"
    assert watch.crash_the_silent() == 0
    clock[0] += 0.6 * flow_cleanup.SILENT_SECONDS
    assert watch.crash_the_silent() == 1
    assert [name(client, one) for one in (silent, talking)] == ["Crashed", "Running"]
    client.set_flow_run_state(talking.id, Completed(), force=True)


def test_the_newest_event_of_a_run_is_read_from_the_server(client: Any) -> None:
    run = at_work(client, parent)
    deadline = time.monotonic() + 60
    while not (first := flow_cleanup._newest_event(client, run.id)) and time.monotonic() < deadline:
        time.sleep(0.2)  # the server writes events a moment later
    client.set_flow_run_state(run.id, Completed(), force=True)
    while (last := flow_cleanup._newest_event(client, run.id)) == first and time.monotonic() < deadline:
        time.sleep(0.2)
    assert first and last and first != last


def test_runs_without_a_heartbeat_are_crashed_by_the_server() -> None:
    found = flow_cleanup.lost_runs()
    assert found.trigger.within.total_seconds() == 3 * flow_cleanup.HEARTBEAT_SECONDS  # type: ignore[union-attr]
    assert found.trigger.posture == "Proactive"  # type: ignore[union-attr]
    assert [action.type for action in found.actions] == ["change-flow-run-state"]
