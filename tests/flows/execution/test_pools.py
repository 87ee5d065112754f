"""Steps in work pools: what a Prefect server that does not answer, or a pool without workers, does to the run that waits."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Pending, Running

from flows.execution import pools
from flows.execution.refusals import PATIENCE_SECONDS, Patience
from flows.execution.run_stage import Spec
from flows.execution.stage_process import StageFailed, WorkerLost
from stages.core.unavailable import Unsuited
from tests.support.servers.prefect_double import server_that

ID = "00000000-0000-4000-8000-000000000001"
WORKERS, DEPLOYMENT = "POST /api/work_pools/gpu/workers/filter", "GET /api/deployments/name/stage/gpu"
SUBMIT, END = f"POST /api/deployments/{ID}/create_flow_run", f"POST /api/flow_runs/{ID}/set_state"


class Server:
    """A Prefect server with the pool gpu, its worker and its deployment, except for what it fails to answer."""

    def __init__(self, failing: str = "", status: int = 500) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._failing, self._status = failing, status
        self.known: dict[str, Any] = {
            WORKERS: [{"id": ID, "name": "w", "work_pool_id": ID, "status": "ONLINE"}],
            DEPLOYMENT: {"id": ID, "name": "gpu", "flow_id": ID},
            SUBMIT: {"id": ID, "name": "solve", "flow_id": ID},
            END: {"state": {"type": "CANCELLING"}, "status": "ACCEPT", "details": {"type": "accept_details"}},
        }

    def __call__(self, asked: str, body: bytes) -> tuple[int, str]:
        self.asked.append((asked, json.loads(body) if body else None))
        if asked == self._failing:
            return self._status, "{}"
        return (200, json.dumps(self.known[asked])) if asked in self.known else (404, "{}")

    def bodies(self, asked: str) -> list[Any]:
        """What it was sent with these requests."""
        return [body for one, body in self.asked if one == asked]


@contextmanager
def at(port: int) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
        yield


def spec(store: Path) -> Spec:
    return Spec(str(store), "r", "solve", 3, None, 1, 9)


def left() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_a_server_that_is_away_is_a_lost_worker_which_is_tried_again(tmp_path: Path) -> None:
    with server_that(Server()) as port:
        pass  # gone again
    with at(port), pytest.raises(WorkerLost, match=r"solve could not be submitted to pool gpu, .* did not answer: ConnectError"):
        pools.run_elsewhere(spec(tmp_path), "gpu", threading.Event(), Patience())


@pytest.mark.parametrize("failing", [WORKERS, DEPLOYMENT, SUBMIT])
def test_a_server_that_fails_during_the_submission_is_one_too(failing: str, tmp_path: Path) -> None:
    with (
        server_that(Server(failing)) as port,
        at(port),
        pytest.raises(WorkerLost, match="did not answer: PrefectHTTPStatusError"),
    ):
        pools.run_elsewhere(spec(tmp_path), "gpu", threading.Event(), Patience())


def test_a_request_that_the_server_refuses_is_not_tried_again(tmp_path: Path) -> None:
    with server_that(Server(SUBMIT, 409)) as port, at(port), pytest.raises(httpx.HTTPStatusError, match="409"):
        pools.run_elsewhere(spec(tmp_path), "gpu", threading.Event(), Patience())


def test_each_submission_has_a_key_of_its_own(tmp_path: Path) -> None:
    """Requests that Prefect repeats make one run; a retry of the step makes another."""
    server = Server()
    with server_that(server) as port, at(port):
        for _ in range(2):
            with pytest.raises(StageFailed):
                pools.run_elsewhere(spec(tmp_path), "gpu", left(), Patience())
    keys = [body["idempotency_key"] for body in server.bodies(SUBMIT)]
    assert len(set(keys)) == 2 and all(keys)
    assert [body["state"]["type"] for body in server.bodies(END)] == ["CANCELLING"] * 2


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_cannot_be_told_of_a_cancel_does_not_hide_it(status: int, tmp_path: Path) -> None:
    server = Server(END, status)
    with server_that(server) as port, at(port), pytest.raises(StageFailed, match="was cancelled"):
        pools.run_elsewhere(spec(tmp_path), "gpu", left(), Patience())
    assert len(server.bodies(END)) == 1


class Scripted:
    """A client whose run is in each of these states in turn, a minute apart. Its pool has a worker or not."""

    def __init__(self, worker: str, *states: Any) -> None:
        self.now, self._worker, self._states = 0.0, worker, list(states)

    def read_flow_run(self, _flow_run_id: Any) -> Any:
        self.now += 61
        if isinstance(state := self._states.pop(0), Exception):
            raise state
        return SimpleNamespace(state=state)

    def read_workers_for_work_pool(self, _pool: str) -> Any:
        return [SimpleNamespace(status=self._worker)]


class Impatient(threading.Event):
    """An event that is never set and makes nobody wait."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def test_a_step_that_a_machine_refuses_is_offered_to_the_pool_again_outside_the_task_s_retries(tmp_path: Path) -> None:
    server, said = Server(), list[str]()
    failed = {
        "type": "FAILED",
        "name": "Failed",
        "message": "Flow run encountered an exception: Unsuited: the worker on m: no card",
    }
    server.known[f"GET /api/flow_runs/{ID}"] = {"id": ID, "name": "solve", "flow_id": ID, "state": failed}
    times = iter([0.0, *[60.0] * 5, PATIENCE_SECONDS])
    with server_that(server) as port, at(port), pytest.raises(Unsuited, match=r"^the worker on m: no card$"):
        pools.run_elsewhere(spec(tmp_path), "gpu", Impatient(), Patience(said.append, lambda: next(times)))
    assert len(server.bodies(SUBMIT)) > 3 and len(said) == 1 and server.bodies(END) == []


def test_a_pending_stage_is_left_when_no_worker_is_there_any_more() -> None:
    client = Scripted("OFFLINE", Pending(), Pending())
    with pytest.raises(WorkerLost, match="no worker takes work from the pool gpu"):
        pools.end_of(client, uuid4(), "gpu", Impatient(), lambda: client.now)


def test_so_is_a_running_one_whose_machine_was_the_last() -> None:
    client = Scripted("OFFLINE", Pending(), *[Running()] * 5)
    with pytest.raises(WorkerLost, match="no worker takes work from the pool gpu"):
        pools.end_of(client, uuid4(), "gpu", Impatient(), lambda: client.now)


@pytest.mark.parametrize(
    ("worker", "state", "looks"), [("ONLINE", Pending(), 5), ("ONLINE", Running(), 9), ("OFFLINE", Running(), 3)]
)
def test_a_stage_that_somebody_may_run_is_waited_for(worker: str, state: Any, looks: int) -> None:
    end = Completed()
    client = Scripted(worker, *[state] * looks, end)
    assert pools.end_of(client, uuid4(), "gpu", Impatient(), lambda: client.now) is end


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://server/api/flow_runs/1")
    return httpx.HTTPStatusError(f"Client error {status}", request=request, response=httpx.Response(status, request=request))


def test_a_server_that_is_away_for_a_while_is_told_of_once_and_then_again() -> None:
    away, end, said = httpx.ConnectError("refused"), Completed(), list[str]()
    client = Scripted("ONLINE", away, answered(429), Running(), answered(503), end)
    assert pools.end_of(client, uuid4(), "gpu", Impatient(), lambda: client.now, say=said.append) is end
    first, second = said
    assert first == "pool gpu: the Prefect server does not answer (ConnectError: refused); waiting for it" and "503" in second


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (answered(401), StageFailed, "the Prefect server refuses to say how the step in pool gpu is: Client error 401"),
        (ObjectNotFound(answered(404)), WorkerLost, "the Prefect server no longer knows the run of this step in pool gpu"),
    ],
)
def test_a_server_that_was_replaced_or_has_another_password_does_not_hang_the_run(
    error: Exception, kind: type[Exception], said: str
) -> None:
    client = Scripted("ONLINE", Running(), error)
    with pytest.raises(kind, match=said):
        pools.end_of(client, uuid4(), "gpu", Impatient(), lambda: client.now)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), answered(401), ObjectNotFound(answered(404))])
def test_a_step_that_has_ended_meanwhile_is_taken_whatever_the_server_says(error: Exception) -> None:
    client, asked = Scripted("ONLINE", Running(), error), list[str]()
    assert pools.end_of(client, uuid4(), "gpu", Impatient(), lambda: client.now, lambda: asked.append("") or True) is None
    assert asked == [""]


@pytest.mark.parametrize(
    ("pool", "command"),
    [("gpu", "populora worker gpu"), ("lab", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30 prefect worker start --pool lab")],
)
def test_a_pool_without_a_worker_is_told_the_command_that_starts_one(pool: str, command: str) -> None:
    client = Scripted("OFFLINE", Pending(), Pending())
    with pytest.raises(WorkerLost, match=f"; start one on a suitable machine: {command}$"):
        pools.end_of(client, uuid4(), pool, Impatient(), lambda: client.now)
