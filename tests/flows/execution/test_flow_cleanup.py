"""Nothing stays Running that nobody works on: a parent's end reaches its subflows, and the sweep finds what hooks have missed."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import prefect
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.server.events.schemas.automations import EventTrigger as ServerTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.states import Cancelled, Completed, Crashed, Pending, Running
from prefect.types._datetime import now as utc_now

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


def elsewhere(client: Any, parent_task: UUID | None = None, state: State[Any] | None = None) -> Any:
    """A stage from the pool cpu that says of itself that it runs, or that it is in `state`."""
    deployment = client.read_deployment_by_name(f"{stage.name}/cpu")
    values = {"store": "s", "run_id": "r", "stage": "solve", "generation": 0, "part": None, "epoch": 1, "generations": 1}
    made = client.create_flow_run_from_deployment(deployment.id, parameters=values, parent_task_run_id=parent_task)
    client.set_flow_run_state(made.id, state or Running(), force=True)
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


def test_the_watch_crashes_what_stays_silent_and_nothing_else(client: Any) -> None:
    """A Pending run whose process died while it imported never sends a heartbeat: only the watch can end it."""
    deployments.deploy("/tmp/a")
    silent, unborn, talking = elsewhere(client), elsewhere(client, state=Pending()), elsewhere(client)
    now, heard = [1000.0], {silent.id: "a", unborn.id: "a", talking.id: "a"}
    watch = flow_cleanup.SilentRuns(["cpu"], lambda: now[0], lambda _client, flow_run_id: heard.get(flow_run_id, ""))
    assert watch.crash_the_silent() == 0  # the first look knows nothing of the time before
    now[0], heard[talking.id] = now[0] + 0.6 * flow_cleanup.SILENT_SECONDS, "b"
    assert watch.crash_the_silent() == 0
    now[0] += 0.6 * flow_cleanup.SILENT_SECONDS
    assert watch.crash_the_silent() == 2
    assert [name(client, one) for one in (silent, unborn, talking)] == ["Crashed", "Crashed", "Running"]
    client.set_flow_run_state(talking.id, Completed(), force=True)


def test_a_pending_run_that_gets_to_run_is_not_crashed(client: Any) -> None:
    deployments.deploy("/tmp/a")
    slow, now = elsewhere(client, state=Pending()), [0.0]
    watch = flow_cleanup.SilentRuns(["cpu"], lambda: now[0], lambda client, run_id: name(client, client.read_flow_run(run_id)))
    assert watch.crash_the_silent() == 0
    client.set_flow_run_state(slow.id, Running(), force=True)
    now[0] = 1.1 * flow_cleanup.SILENT_SECONDS
    assert watch.crash_the_silent() == 0
    assert name(client, slow) == "Running"
    client.set_flow_run_state(slow.id, Completed(), force=True)


def test_the_newest_event_of_a_run_is_read_from_the_server(client: Any) -> None:
    run = at_work(client, parent)
    deadline = time.monotonic() + 60
    while not (first := flow_cleanup.newest_event(client, run.id)) and time.monotonic() < deadline:
        time.sleep(0.2)  # the server writes events a moment later
    client.set_flow_run_state(run.id, Completed(), force=True)
    while (last := flow_cleanup.newest_event(client, run.id)) == first and time.monotonic() < deadline:
        time.sleep(0.2)
    assert first and last and first != last


def test_a_heartbeat_starts_the_servers_count_and_only_the_same_runs_events_answer_it() -> None:
    trigger = ServerTrigger.model_validate(flow_cleanup.lost_runs().trigger.model_dump(mode="json"))
    one, other = said("prefect.flow-run.heartbeat", "a"), said("prefect.flow-run.heartbeat", "b")
    assert trigger.starts_after(one.event) and not trigger.starts_after("prefect.flow-run.Pending")
    assert trigger.covers(one) and trigger.bucketing_key(one) != trigger.bucketing_key(other)
    ended = said("prefect.flow-run.Completed", "a")
    assert trigger.covers(ended) and trigger.expects(ended.event) and trigger.bucketing_key(ended) == trigger.bucketing_key(one)
    assert trigger.meets_threshold(0) and not trigger.meets_threshold(1)  # it fires for silence, and for nothing else


def said(event: str, run: str) -> ReceivedEvent:
    """An event of a flow run, as the server receives it."""
    return ReceivedEvent(
        occurred=utc_now("UTC"), event=event, resource={"prefect.resource.id": f"prefect.flow-run.{run}"}, id=uuid4()
    )
