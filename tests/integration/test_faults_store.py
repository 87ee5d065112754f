"""A store that vanishes, and writers that freeze in the middle of a request while another machine takes their run over."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from flows.audit.fsck import fsck
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import Damaged, Store, open_store
from tests.flows.run.test_manifest import tree
from tests.support import example_run
from tests.support.fault_tools import Gate, at_work, builder, machine, namespace_gap
from tests.support.servers import s3_servers
from tests.support.servers.faulty_proxy import FaultyProxy, _Handler

BUCKET = "faults"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_servers.moto() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_servers.environment(url).items():
            patch.setenv(name, value)
        s3_servers.make_bucket(BUCKET)
        yield url


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every artifact of a run that nothing happened to."""
    store = open_store(str(tmp_path_factory.mktemp("whole")))
    with hold(store, "smoke") as epoch:
        example_run.build(Run(store, "smoke", epoch), 2)
    return tree(store)


# --- a store that vanishes ------------------------------------------------------------------------------------------------------


def test_a_store_that_vanishes_for_a_moment_is_waited_for(endpoint: str, whole: dict[str, bytes]) -> None:
    gate, store = Gate(urlsplit(endpoint).netloc), open_store(f"s3://{BUCKET}/moment")
    run = builder(store.url, 2, AWS_ENDPOINT_URL=gate.url)
    at_work(run)
    gate.close()
    time.sleep(1.0)
    gate.open()
    said = [
        line for line in run.communicate()[1].splitlines() if ": the heartbeat " not in line
    ]  # it may beat just then, and say so
    assert said == [] and run.returncode == 0
    assert tree(store) == whole and fsck(Run(store, "smoke")) == []


def test_a_store_that_stays_away_ends_the_run_and_the_next_start_resumes_it(endpoint: str, whole: dict[str, bytes]) -> None:
    """With requests that wait for an answer (the server is stopped) as with those that are refused (it is gone)."""
    gate, store = Gate(urlsplit(endpoint).netloc), open_store(f"s3://{BUCKET}/away")
    run = builder(store.url, 2, stale=12.0, AWS_ENDPOINT_URL=gate.url)
    at_work(run)
    while not store.exists("smoke/generation=0000/match.json"):
        time.sleep(0.01)
    gate.close()
    errors = run.communicate()[1]
    assert run.returncode == 3, errors
    last = errors.splitlines()[-1]
    assert last.startswith(("StoreUnavailable: store s3://", "LeaseLost: run smoke: no heartbeat for 10 s (")), errors
    gate.open()
    run = builder(store.url, 2, stale=12.0, AWS_ENDPOINT_URL=gate.url)
    assert run.communicate()[1] == "" and run.returncode == 0
    assert tree(store) == whole and fsck(Run(store, "smoke")) == []


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_whole_run_outlives_two_minutes_without_its_store(endpoint: str, tmp_path: Path) -> None:
    """The real command in real time: retries of requests, of stages, and of the heartbeat bridge it, or it ends with 3."""
    gate, trees = Gate(urlsplit(endpoint).netloc), []
    for name, away in (("whole", 0.0), ("cut", 120.0)):
        store = open_store(f"s3://{BUCKET}/{name}")
        command = [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--run-id", "smoke", "--store", store.url]
        for start in range(3):
            environment = s3_servers.environment(gate.url)
            run = subprocess.Popen(
                ["env", *(f"{key}={value}" for key, value in environment.items()), *command],
                cwd=tmp_path,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            if away and start == 0:
                while not store.exists("smoke/generation=0000/propose.json"):
                    assert run.poll() is None
                    time.sleep(0.2)
                gate.close()
                time.sleep(away)
                gate.open()
            said = run.communicate()[0]
            print(f"{name}: exit code {run.returncode} after {said.count('retrying')} lines of retrying\n{said[-1500:]}")
            assert run.returncode in (0, 3), said
            if run.returncode == 0:
                break
        assert fsck(Run(store, "smoke")) == []
        trees.append(tree(store))
    assert trees[0] == trees[1]


# --- frozen writers, and a server that has lost its conditions ------------------------------------------------------------------


class Freezing(FaultyProxy):
    """Holds the first PUT whose name ends in `held` back until it is let go, and takes conditions out of what it passes on."""

    def __init__(self, endpoint: str, held: str) -> None:
        super().__init__(endpoint, 0, rate=0.0, most=0, stall=0.0)
        self.RequestHandlerClass = _FreezingHandler
        self.held, self.arrived, self.released = held, threading.Event(), threading.Event()


class _FreezingHandler(_Handler):
    server: Any

    def _forward(self, body: bytes, declared: int, answer: bool = True) -> tuple[int, list[tuple[str, str]], bytes]:
        if ".probe-" not in self.path:
            del self.headers["If-None-Match"]
        if self.command == "PUT" and unquote(self.path).endswith(self.server.held) and not self.server.arrived.is_set():
            self.server.arrived.set()
            assert self.server.released.wait(120)
        return super()._forward(body, declared, answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _Handler._handle


def frozen(proxy: Freezing, store: Store, tmp_path: Path) -> "subprocess.Popen[str]":
    """A run on another machine, stopped while its PUT is on its way."""
    (tmp_path / "far").mkdir()
    run = builder(store.url, 2, 60.0, machine("far"), AWS_ENDPOINT_URL=proxy.endpoint, TMPDIR=str(tmp_path / "far"))
    at_work(run)
    assert proxy.arrived.wait(120)
    run.send_signal(signal.SIGSTOP)
    assert json.loads(store.read("smoke/.lease"))["host"] == "far"
    return run


HELD = (
    "match.json",
    pytest.param("rollouts.parquet", marks=pytest.mark.slow),
    pytest.param("update.json", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("held", HELD)
def test_a_writer_frozen_in_its_request_overwrites_with_equal_bytes(
    endpoint: str, whole: dict[str, bytes], tmp_path: Path, held: str
) -> None:
    """The worst that a server without conditions can do: the late PUT lands on what the new owner has committed."""
    if gap := namespace_gap("--uts"):
        pytest.skip(gap)
    store = open_store(f"s3://{BUCKET}/frozen-{held}")
    with Freezing(endpoint, f"generation=0000/{held}") as proxy:
        far = frozen(proxy, store, tmp_path)
        with hold(store, "smoke", beat_seconds=0.2, stale_seconds=10.0) as epoch:
            example_run.build(Run(store, "smoke", epoch), 2)
        proxy.released.set()
        far.send_signal(signal.SIGCONT)
        errors = far.communicate()[1]
    assert far.returncode == 1 and "Fenced: run smoke was taken over by process" in errors.splitlines()[-1], errors
    assert tree(store) == whole and fsck(Run(store, "smoke")) == []


def test_a_late_write_of_other_bytes_is_found_by_its_digest_and_made_good(endpoint: str, tmp_path: Path) -> None:
    """As a run with sampling on a GPU would leave them: never read as if they were right."""
    if gap := namespace_gap("--uts"):
        pytest.skip(gap)
    store = open_store(f"s3://{BUCKET}/other-bytes")
    with Freezing(endpoint, "generation=0000/matches.parquet") as proxy:
        far = frozen(proxy, store, tmp_path)
        with hold(store, "smoke", beat_seconds=0.2, stale_seconds=10.0) as epoch:
            run = Run(store, "smoke", epoch)
            ref = run.write_blob("generation=0000/matches.parquet", b"other bytes than theirs")
            run.commit("match", 0, [], [ref])
            proxy.released.set()
            far.send_signal(signal.SIGCONT)
            assert far.communicate()[0] == "" and far.returncode == 1
            with pytest.raises(Damaged, match=r"matches\.parquet: its digest is not"):
                run.read_blob(ref)
            assert not run.done("match", 0)
            again = run.write_blob("generation=0000/matches.parquet", b"other bytes than theirs")
            run.commit("match", 0, [], [again])
            assert run.done("match", 0) and run.read_blob(ref) == b"other bytes than theirs"
