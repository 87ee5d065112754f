"""Faults of Docker and of containers: no verdict is lost or made up, nothing is left behind, a dead daemon is said in time."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.core.sandbox.link import RunLimits
from stages.core.sandbox.pool import Pool
from stages.core.sandbox.protocol import Job, SandboxUnavailable
from tests.sandbox.test_faults import ADD, SUMS, texts
from tests.support.servers.unix_proxy import UnixProxy

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(240),
    # Docker's client leaves a socket open that it could not connect; it is collected in whatever code runs then, ours too
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
SOCKET = "/var/run/docker.sock"


@pytest.fixture
def docker_sandbox() -> Iterator[Pool]:
    from stages.core.sandbox.docker import DockerSandbox

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


def test_a_killed_container_costs_no_verdict(docker_sandbox: Pool) -> None:
    found = []
    for number, verdict in enumerate(docker_sandbox.run(ADD * 4)):
        found.append(verdict.text)
        if number == 30:
            docker_sandbox.workers[0].link.container.kill()  # type: ignore[attr-defined]
    assert found == SUMS * 4 and docker_sandbox.counts["workers_lost"] >= 1


def test_a_container_is_as_asked(docker_sandbox: Pool) -> None:
    list(docker_sandbox.run(ADD[:2]))
    container = docker_sandbox.workers[0].link.container  # type: ignore[attr-defined]
    container.reload()
    host = container.attrs["HostConfig"]
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] and host["IpcMode"] == "none" and not host["Binds"]
    assert host["CapDrop"] == ["ALL"] and sorted(host["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
    assert host["PidsLimit"] == 32 and host["Memory"] == host["MemorySwap"] > 0 and host["LogConfig"]["Type"] == "none"
    assert {limit["Name"] for limit in host["Ulimits"]} == {"nofile", "core", "fsize"}
    assert host["Privileged"] is False and host["Devices"] in ([], None) and host["PidMode"] == "" and not host.get("Mounts")
    assert "no-new-privileges:true" in host["SecurityOpt"] and host["OomScoreAdj"] == 500 and host["AutoRemove"]
    assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {"nofile": 64, "core": 0, "fsize": 0}
    assert list(container.attrs["NetworkSettings"]["Networks"]) == ["none"] and not container.attrs["Mounts"]
    config = container.attrs["Config"]
    assert config["OpenStdin"] and config["StdinOnce"] and not config["Tty"] and config["User"] == "0:0"
    assert any(option.startswith("seccomp=") and "SCMP_ACT_ERRNO" in option for option in host["SecurityOpt"])


def test_no_orphan_container_after_the_host_is_killed() -> None:
    program = (
        "import json, time\nfrom stages.core.sandbox.docker import DockerSandbox\nfrom stages.core.sandbox.protocol import Job\n"
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


def test_a_daemon_that_is_not_there_is_said_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.core.sandbox.docker import DockerSandbox

    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    start = time.monotonic()
    with pytest.raises(SandboxUnavailable):
        DockerSandbox()
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("named", [{"DOCKER_HOST": "ssh://far"}, {"DOCKER_HOST": "tcp://far:2376", "DOCKER_TLS_VERIFY": "1"}])
def test_a_daemon_behind_tls_or_ssh_is_refused_with_what_to_do(named: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.commands import doctor
    from stages.core.sandbox.docker import DockerSandbox

    for name, value in named.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SandboxUnavailable, match="forward its socket"):
        DockerSandbox()
    (found,) = doctor._docker()
    assert not found.good and "forward its socket" in found.detail


def test_an_image_with_another_runner_is_refused(tmp_path: Path) -> None:
    import docker

    from stages.core.sandbox.docker import DockerSandbox
    from stages.core.sandbox.protocol import IMAGE

    tag = f"populora-sandbox-test:{os.getpid()}"
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY clock.py /sandbox/clock.py\n")
    (tmp_path / "clock.py").write_text("def install(index):\n    pass\n")
    client = docker.from_env()
    client.images.build(path=str(tmp_path), tag=tag, rm=True, forcerm=True, network_mode="none")
    sandbox = DockerSandbox(tag, containers=1)
    try:
        with pytest.raises(SandboxUnavailable) as raised:
            list(sandbox.run(ADD[:3]))
        said = str(raised.value)
        assert "another runner" in said and "docker build --network none" in said and tag in said and "\n" not in said
    finally:
        sandbox.close()
        client.images.remove(tag, force=True)
        client.close()


def test_a_missing_image_names_the_command() -> None:
    from stages.core.sandbox.docker import DockerSandbox

    with pytest.raises(SandboxUnavailable, match=r"docker build .* -t no-such-image:1 containers/sandbox"):
        DockerSandbox("no-such-image:1")


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnixProxy]:
    """A daemon that can fail, in front of the real one."""
    if not os.path.exists(SOCKET):
        pytest.skip(f"no Docker socket at {SOCKET}")
    made = UnixProxy(tmp_path / "docker.sock", SOCKET)
    monkeypatch.setenv("DOCKER_HOST", made.url)
    yield made
    made.stop()
    gc.collect()  # here, where the mark above holds


def test_a_daemon_that_restarts_costs_no_verdict(proxy: UnixProxy) -> None:
    """Every connection ends at once, as when the daemon ends; then there is one again."""
    from stages.core.sandbox.docker import DockerSandbox

    sandbox = DockerSandbox(containers=2)
    with contextlib.closing(sandbox):
        found = []
        for number, verdict in enumerate(sandbox.run(ADD * 4)):
            found.append(verdict.text)
            if number == 60:
                proxy.stop()
                proxy.start()
        assert found == SUMS * 4 and sandbox.counts["workers_lost"] >= 1
    owner = sandbox.owner
    for _ in range(100):
        if not names(owner):
            break
        time.sleep(0.1)
    assert names(owner) == []


@pytest.mark.parametrize("how", ["gone", pytest.param("hanging", marks=pytest.mark.slow)])
def test_a_daemon_that_dies_is_said_within_ten_seconds_and_is_no_verdict(proxy: UnixProxy, how: str) -> None:
    from stages.core.sandbox.docker import DockerSandbox

    sandbox = DockerSandbox(containers=2)
    found, start = [], 0.0

    def run() -> None:
        nonlocal start
        for verdict in sandbox.run(ADD * 20):
            found.append(verdict.text)
            if len(found) == 100:
                start = time.monotonic()
                proxy.stop() if how == "gone" else setattr(proxy, "hangs", True)

    with contextlib.closing(sandbox):
        with pytest.raises(SandboxUnavailable):
            run()
        seconds = time.monotonic() - start
    assert found == (SUMS * 20)[: len(found)]
    assert seconds < 30, (
        seconds
    )  # 10 are promised for a machine that is not overloaded; a silent worker alone is given up after 80


def test_a_full_disk_is_no_verdict(proxy: UnixProxy) -> None:
    """As the daemon says it: no container can be made."""
    from stages.core.sandbox.docker import DockerSandbox

    body = b'{"message":"mkdir /var/lib/docker/overlay2/x: no space left on device"}'
    answer = (
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    sandbox = DockerSandbox(containers=1)
    with contextlib.closing(sandbox):
        proxy.refused = {b"POST /v%s/containers/create" % sandbox.client.api._version.encode(): answer}
        with pytest.raises(SandboxUnavailable, match="no space left on device"):
            list(sandbox.run(ADD[:3]))


HUNGRY = Job("def f():\n    return len([bytearray(b'a') * 10 ** 6 for _ in range(150)])", "", False)


def test_a_container_out_of_memory_is_the_program_s_verdict() -> None:
    """The kernel ends the program, not the server: the limit on address space is set wider than the container here."""
    from stages.core.sandbox.docker import DockerSandbox

    class Narrow(DockerSandbox):
        def _arguments(self, number: int) -> dict[str, object]:
            return super()._arguments(number) | {"mem_limit": "100m", "memswap_limit": "100m"}

    sandbox = Narrow(containers=1, limits=RunLimits(memory_mb=400))
    with contextlib.closing(sandbox):
        verdicts = list(sandbox.run([*ADD[:20], HUNGRY, *ADD[20:40]]))
    assert texts(verdicts[:20] + verdicts[21:]) == SUMS[:40]
    assert verdicts[20].status == "memory", verdicts[20]


@pytest.mark.parametrize("times", [1, 3])
def test_a_program_killed_from_outside_is_run_again(times: int) -> None:
    """Neither its own doing nor a limit's: what a person or another program of the host kills is no verdict.

    After the third time it runs alone: the kernel of a machine without memory kills a program first.
    """
    from stages.core.sandbox.docker import DockerSandbox

    job = Job("def f():\n    n = 0\n    for i in range(9 * 10 ** 6): n += i\n    return n", "", False)
    sandbox = DockerSandbox(containers=1)
    with contextlib.closing(sandbox):
        list(sandbox.run(ADD[:3]))
        container = sandbox.workers[0].link.container  # type: ignore[attr-defined]
        container.reload()
        first = container.attrs["State"]["Pid"]
        killed: list[int] = []
        killer = threading.Thread(target=kill_programs, args=(first, times, killed))
        killer.start()
        verdicts = list(sandbox.run([job]))
        killer.join()
    assert (verdicts[0].status, verdicts[0].text) == ("valid", "40499995500000") and len(set(killed)) == times


def kill_programs(supervisor: int, times: int, killed: list[int]) -> None:
    """Kills the first processes of programs below a supervisor: its children with a uid of their own, but for the key server."""
    for _ in range(4000 * times):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
                program = b"template.py" in Path(f"/proc/{child}/cmdline").read_bytes()
                if program and int(child) not in killed and os.stat(f"/proc/{child}").st_uid != 0:
                    time.sleep(0.05)
                    os.kill(int(child), signal.SIGKILL)
                    killed.append(int(child))
                    if len(killed) == times:
                        return
        time.sleep(0.0005)


def test_the_sweep_takes_what_a_dead_process_left_and_nothing_of_a_live_one() -> None:
    import docker

    from stages.core.sandbox.docker import LABEL, DockerSandbox, _host
    from stages.core.sandbox.protocol import IMAGE

    dead = subprocess.Popen(["true"])
    dead.wait()
    client = docker.from_env()
    hosts = {dead.pid: _host(), os.getpid(): _host(), os.getppid(): _host(), 0: "another machine"}
    made = {
        pid: client.containers.create(IMAGE, labels={LABEL: "1", LABEL + ".host": host, LABEL + ".pid": str(pid or dead.pid)})
        for pid, host in hosts.items()
    }
    try:
        DockerSandbox(containers=1).close()
        left = {container.id for container in client.containers.list(all=True, sparse=True, filters={"label": LABEL})}
        assert [pid for pid, container in made.items() if container.id not in left] == [dead.pid]
    finally:
        for container in made.values():
            with contextlib.suppress(docker.errors.NotFound):
                container.remove(force=True)
        client.close()


def test_a_live_process_is_known_where_there_is_no_proc() -> None:
    """As on macOS: the file system of processes is covered, and asked all the same."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    code = (
        "import os, sys; sys.path.insert(0, os.getcwd())\nfrom stages.core.sandbox.docker import _host, alive\n"
        "assert not os.path.exists('/proc/self')\nprint(alive(int(sys.argv[1])), alive(int(sys.argv[2])), _host() == _host())"
    )
    command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"', sys.executable, "-c", code]
    done = subprocess.run([*command, str(os.getpid()), str(dead.pid)], capture_output=True, text=True, check=False)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
