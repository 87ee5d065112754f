"""Nothing stays Running that nobody works on: a parent's end reaches its subflows, and the sweep finds what hooks have missed."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import prefect
import pytest
from prefect.client.orchestration import get_client
from prefect.states import Cancelled, Completed, Crashed, Running

from flows import deployments, upkeep
from flows.remote import stage

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


def name(client: Any, flow_run: Any) -> str:
    return str(client.read_flow_run(flow_run.id).state.name)


@pytest.mark.parametrize(("end", "expected"), [(Cancelled(), "Cancelled"), (Crashed(), "Crashed")])
def test_subflows_get_their_parents_end(client: Any, end: Any, expected: str) -> None:
    above = at_work(client, parent)
    inside = at_work(client, child, below(client, above))
    upkeep.end_children(parent, above, end)
    assert name(client, inside) == expected


def test_a_stage_on_another_machine_is_told_to_end_its_process(client: Any) -> None:
    deployments.deploy("/tmp/a")
    above = at_work(client, parent)
    deployment = client.read_deployment_by_name(f"{stage.name}/cpu")
    values = {"store": "s", "run_id": "r", "stage": "solve", "generation": 0, "part": None, "epoch": 1, "generations": 1}
    task = below(client, above)
    remote = client.create_flow_run_from_deployment(deployment.id, parameters=values, parent_task_run_id=task)
    client.set_flow_run_state(remote.id, Running(), force=True)
    upkeep.end_children(parent, above, Crashed())
    assert name(client, remote) == "Cancelling"
    client.set_flow_run_state(above.id, Crashed(), force=True)
    assert upkeep.sweep([]) == 0  # it has been told
    assert name(client, remote) == "Cancelling"
    client.set_flow_run_state(remote.id, Cancelled(), force=True)


def test_the_sweep_ends_what_the_hooks_missed_and_nothing_else(client: Any) -> None:
    dead, living = at_work(client, parent), at_work(client, parent)
    orphan, well = at_work(client, child, below(client, dead)), at_work(client, child, below(client, living))
    client.set_flow_run_state(dead.id, Crashed(), force=True)
    assert upkeep.sweep([]) == 1
    assert [name(client, one) for one in (orphan, well)] == ["Crashed", "Running"]
    client.set_flow_run_state(well.id, Completed(), force=True)
    client.set_flow_run_state(living.id, Completed(), force=True)


def test_runs_without_a_heartbeat_are_crashed_by_the_server() -> None:
    found = upkeep.lost_runs()
    assert found.trigger.within.total_seconds() == 3 * upkeep.HEARTBEAT_SECONDS  # type: ignore[union-attr]
    assert found.trigger.posture == "Proactive"  # type: ignore[union-attr]
    assert [action.type for action in found.actions] == ["change-flow-run-state"]
