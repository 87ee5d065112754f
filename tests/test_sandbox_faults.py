"""What is the world's fault is no verdict: killed workers, a dead daemon, nonsense on the stream, a killed host."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import pytest

from stages.core.local_sandbox import LocalSandbox
from stages.core.sandbox import Job, SandboxUnavailable, Verdict
from stages.core.sandbox_pool import Limits, Pool

ADD = [Job(f"def f(x):\n    return x + {number}", "1", number % 3 == 0) for number in range(300)]
SUMS = [str(1 + number) for number in range(300)]


def texts(verdicts: Iterable[Verdict]) -> list[str | None]:
    return [verdict.text for verdict in verdicts]


def test_order_duplicates_and_a_slow_one_in_front() -> None:
    sandbox = LocalSandbox(2)
    slow = Job("def f():\n    return sum(range(3 * 10 ** 6))", "", False)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run([slow, *ADD, ADD[0], ADD[0]])) == ["4499998500000", *SUMS, "1", "1"]
        assert texts(sandbox.run([])) == []


def test_a_killed_worker_costs_no_verdict() -> None:
    sandbox = LocalSandbox(2)
    with contextlib.closing(sandbox):
        found = []
        for number, verdict in enumerate(sandbox.run(ADD)):
            found.append(verdict.text)
            if number in (20, 100):
                link = sandbox.workers[0].link
                link.process.kill()  # type: ignore[attr-defined]
        assert found == SUMS and sandbox.counts["workers_lost"] >= 1


class FaultyLink:
    """Passes on a real link, but spoils what comes back or dies at a given job."""

    def __init__(self, link: object, spoil: object):
        self.link, self.spoil = link, spoil

    def __getattr__(self, name: str) -> object:
        return getattr(self.link, name)

    def send(self, data: bytes | bytearray) -> int:
        if callable(self.spoil) and self.spoil(bytes(data)):
            self.link.close()  # type: ignore[attr-defined]
            raise BrokenPipeError
        return self.link.send(data)  # type: ignore[attr-defined, no-any-return]


def test_a_program_that_ends_two_workers_is_quarantined() -> None:
    sandbox = LocalSandbox(1)
    real, poison = sandbox.start, b"return 'poison'"
    sandbox.start = lambda number: FaultyLink(real(number), lambda data: poison in data)  # type: ignore[assignment, return-value]
    jobs = [*ADD[:30], Job("def f():\n    return 'poison'", "", False), *ADD[30:60]]
    with contextlib.closing(sandbox):
        verdicts = list(sandbox.run(jobs))
    assert [verdict.text for verdict in verdicts[:30] + verdicts[31:]] == SUMS[:60]
    assert verdicts[30].status == "crash" and sandbox.counts["quarantined"] == 1


def test_no_worker_at_all_is_no_verdict() -> None:
    class Dead:
        def filenos(self) -> tuple[int, int]:
            return 0, 1

        def send(self, data: bytes | bytearray) -> int:
            raise BrokenPipeError

        def receive(self) -> bytes | None:
            return None

        def said(self) -> str:
            return "nothing"

        def close(self) -> None:
            pass

    read, write = os.pipe()
    Dead.filenos = lambda self: (read, write)  # type: ignore[method-assign]
    with pytest.raises(SandboxUnavailable):
        list(Pool(lambda number: Dead(), 2, Limits(), 1).run(ADD))
    os.close(read)
    os.close(write)


def test_a_program_near_the_limit_is_run_again_alone() -> None:
    sandbox = LocalSandbox(2, Limits(cpu_seconds=0.5, wall_seconds=5))
    busy = Job("def f():\n    while True: pass", "", False)
    with contextlib.closing(sandbox):
        verdicts = list(sandbox.run([busy, *ADD[:20]]))
    assert verdicts[0].status == "timeout" and texts(verdicts[1:]) == SUMS[:20]


def test_workers_are_recycled() -> None:
    sandbox = LocalSandbox(1, recycle_after=100)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD)) == SUMS
        assert sandbox.counts["workers_started"] >= 3


def test_closing_a_stream_early_leaves_a_clean_pool() -> None:
    sandbox = LocalSandbox(2)
    with contextlib.closing(sandbox):
        stream = sandbox.run(ADD)
        assert next(stream).text == "1"
        stream.close()  # type: ignore[attr-defined]
        assert texts(sandbox.run(ADD[:50])) == SUMS[:50]


# --- Docker


@pytest.fixture
def docker_sandbox() -> Iterator[Pool]:
    from stages.core.docker_sandbox import DockerSandbox

    sandbox = DockerSandbox(containers=2)
    yield sandbox
    sandbox.close()


def names(owner: str) -> list[str]:
    shown = subprocess.run(
        ["docker", "ps", "-a", "--filter", f"label=populora.sandbox.owner={owner}", "--format", "{{.ID}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.split()


@pytest.mark.docker
@pytest.mark.timeout(180)
def test_a_killed_container_costs_no_verdict(docker_sandbox: Pool) -> None:
    found = []
    for number, verdict in enumerate(docker_sandbox.run(ADD)):
        found.append(verdict.text)
        if number == 30:
            docker_sandbox.workers[0].link.container.kill()  # type: ignore[attr-defined]
    assert found == SUMS


@pytest.mark.docker
@pytest.mark.timeout(180)
def test_a_container_is_as_asked(docker_sandbox: Pool) -> None:
    list(docker_sandbox.run(ADD[:2]))
    container = docker_sandbox.workers[0].link.container  # type: ignore[attr-defined]
    container.reload()
    host = container.attrs["HostConfig"]
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] and host["IpcMode"] == "none" and not host["Binds"]
    assert host["CapDrop"] == ["ALL"] and sorted(host["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
    assert host["PidsLimit"] == 32 and host["Memory"] == host["MemorySwap"] > 0 and host["LogConfig"]["Type"] == "none"
    assert {limit["Name"] for limit in host["Ulimits"]} == {"nofile", "core", "fsize"}
    assert any(option.startswith("seccomp=") and "SCMP_ACT_ERRNO" in option for option in host["SecurityOpt"])


@pytest.mark.docker
@pytest.mark.timeout(180)
def test_no_orphan_container_after_the_host_is_killed() -> None:
    program = (
        "import json, time\nfrom stages.core.docker_sandbox import DockerSandbox\nfrom stages.core.sandbox import Job\n"
        "s = DockerSandbox(containers=2)\nlist(s.run([Job('def f(): return 1', '', True)] * 3))\n"
        "print(json.dumps(s.owner), flush=True)\ntime.sleep(100)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert host.stdout is not None
    owner = json.loads(host.stdout.readline())
    assert names(owner)
    host.kill()
    host.wait()
    host.stdout.close()
    start = time.monotonic()
    while names(owner) and time.monotonic() - start < 30:
        time.sleep(0.1)
    assert time.monotonic() - start < 5


@pytest.mark.docker
def test_a_daemon_that_is_not_there_is_said_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.core.docker_sandbox import DockerSandbox

    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    start = time.monotonic()
    with pytest.raises(SandboxUnavailable):
        DockerSandbox()
    assert time.monotonic() - start < 10
