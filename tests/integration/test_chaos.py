"""Chaos: the smallest whole run, killed at random instants and started again until done, ends with the bytes of one never killed.

Victims: everything at once (as when a machine goes), the flow process, the stage worker with the engine, a sandbox container, and
on S3 the server. Five kills every day; `-m slow` makes 40 on files and 20 on a real S3 server.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.run.run import Run, canonical_json
from flows.storage import Store, open_store
from stages.core.sandbox.docker import LABEL
from tests.support import kill_hooks
from tests.support.servers import s3_servers

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]
LIMIT = 600.0
# Loaded by every Python of a run: notes each stage that is executed, and whether it was done already.
HOOK = """
def watch(module):
    perform = module.perform

    def watched(run, spec, *more):
        done = run.done(spec.stage, spec.generation, spec.part)
        with open(os.environ["CHAOS_LOG"], "a") as log:
            log.write(f"{run.store.url} {spec.stage} {spec.generation} {spec.part} {'TWICE' if done else 'once'}\\n")
        return perform(run, spec, *more)

    module.perform = watched
"""


class Chaos:
    """Starts runs, kills what runs, and counts."""

    def __init__(self, folder: Path, store_of: Callable[[str], str], seed: int) -> None:
        kill_hooks.install(folder / "hook", HOOK)
        self.log = folder / "log"
        self.log.touch()
        self.output = folder / "output"
        self._environment = os.environ | {"PYTHONPATH": str(folder / "hook"), "CHAOS_LOG": str(self.log)}
        self._store_of = store_of
        self._rng = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.victims: dict[str, Callable[[subprocess.Popen[bytes]], bool]] = {
            "everything": self._everything,
            "flow": self._flow,
            "worker": self._worker,
            "container": self._container,
        }

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--run-id", "r", "--store", self._store_of(name)]
        command += options
        with self.output.open("ab") as output:
            return subprocess.Popen(
                command, cwd=self.output.parent, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )

    def until_done(self, name: str, kills: int, seconds: float) -> Store:
        """Runs to the end under at most so many kills at instants spread over the time a whole run takes."""
        process = self.start(name)
        for _ in range(100 * kills + 100):
            enough = self.kills.total() >= kills
            try:
                code = process.wait(LIMIT if enough else self._rng.uniform(0.0, seconds / 2))
            except subprocess.TimeoutExpired:
                assert not enough, f"a run hangs: {self.output.read_text()[-3000:]}"
                self._strike(process)
                continue
            if code == 0:
                return open_store(self._store_of(name))
            assert code in (-signal.SIGKILL, 1, 3), f"exit code {code}: {self.output.read_text()[-3000:]}"
            process = self.start(name)
        raise AssertionError(f"never done: {self.output.read_text()[-3000:]}")

    def _strike(self, process: subprocess.Popen[bytes]) -> None:
        """Kills the one that was killed least of those that live: a container lives for a part of the run only."""
        for victim in sorted(self.victims, key=lambda name: (self.kills[name], self._rng.random())):
            if self.victims[victim](process):
                self.kills[victim] += 1
                return

    def _everything(self, process: subprocess.Popen[bytes]) -> bool:
        """The flow, its workers and its sandbox at one instant, and the flow for good."""
        family, containers = [process.pid, *_descendants(process.pid)], _containers(process.pid)
        for pid in family:
            _kill(pid)
        if containers:
            subprocess.run(["docker", "kill", *containers], capture_output=True)
        return True

    def _flow(self, process: subprocess.Popen[bytes]) -> bool:
        _kill(process.pid)
        return True

    def _worker(self, process: subprocess.Popen[bytes]) -> bool:
        workers = [pid for pid in _descendants(process.pid) if b"flows.worker" in _command(pid)]
        for pid in workers:
            _kill(pid)
        return bool(workers)

    def _container(self, process: subprocess.Popen[bytes]) -> bool:
        found = _containers(process.pid)
        return bool(found) and subprocess.run(["docker", "kill", self._rng.choice(found)], capture_output=True).returncode == 0


def _descendants(pid: int) -> list[int]:
    """Children, and children of children, whatever group they are in."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)


def _containers(pid: int) -> list[str]:
    """The sandboxes that this run's processes have started; others on this machine are none of our business."""
    family = {str(one) for one in (pid, *_descendants(pid))}
    form = '{{.ID}} {{.Label "' + LABEL + '.pid"}}'
    listed = subprocess.run(["docker", "ps", "--filter", f"label={LABEL}", "--format", form], capture_output=True, text=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return [pair[0] for pair in pairs if len(pair) == 2 and pair[1] in family]


def _tree(store: Store) -> dict[str, bytes]:
    """Every artifact of the run, clocks taken out."""
    found = {}
    for uri in store.list("r/"):
        data = store.read(uri)
        if uri.endswith(".json") and "/adapters/" not in uri:
            values = json.loads(data)
            values.pop("clock")
            data = canonical_json(values)
        found[uri] = data
    return found


def _difference(data: bytes, whole: bytes) -> str:
    """Keys whose values differ between two JSON files; for others only their sizes."""
    try:
        one, other = json.loads(data), json.loads(whole)
    except ValueError:
        return f"{len(data)} and {len(whole)} bytes"
    return ", ".join(f"{key}: {one.get(key)} is not {other.get(key)}"[:300] for key in other if one.get(key) != other.get(key))


def _chaos(chaos: Chaos, kills: int) -> None:
    began = time.monotonic()
    whole = _tree(chaos.until_done("whole", 0, 0.0))
    seconds = time.monotonic() - began
    for number in range(3 * kills):
        store = chaos.until_done(f"killed-{number}", kills, seconds)
        found = _tree(store)
        assert sorted(found.keys() ^ whole.keys()) == []
        assert [(uri, _difference(found[uri], whole[uri])) for uri in whole if found[uri] != whole[uri]] == []
        assert fsck(Run(store, "r")) == []
        if chaos.kills.total() >= kills:
            break
    executed = chaos.log.read_text().splitlines()
    print(f"{chaos.kills.total()} kills {dict(chaos.kills)} over {number + 1} runs of {seconds:.0f} s, {len(executed)} stages")
    assert not [line for line in executed if line.endswith("TWICE")]
    assert chaos.kills.total() >= kills


def test_sigterm_ends_a_run_within_its_grace_and_lets_go_of_the_lease(tmp_path: Path) -> None:
    """A spot machine gives 30 s; the stage that is half done is done again by the next start."""
    chaos = Chaos(tmp_path, lambda name: f"{tmp_path}/{name}", seed=0)
    process, store = chaos.start("spot"), open_store(f"{tmp_path}/spot")
    while not store.exists("r/generation=0000/propose.json"):
        assert process.poll() is None
        time.sleep(0.2)
    process.terminate()
    assert process.wait(30) == 143
    assert "populora: stopped by SIGTERM; the same command resumes from here" in chaos.output.read_text().splitlines()
    assert not store.exists("r/.lease")
    assert Run(store, "r").manifest("evolve", 0) is None
    assert not [pid for pid in _processes() if f"{tmp_path}/spot".encode() in _command(pid)]


@pytest.mark.slow
def test_a_run_that_cannot_renew_its_lease_stops_with_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease has become a link to itself: only the heartbeat notices, in the middle of a stage; then it goes on as ever."""
    monkeypatch.setenv("POPULORA_STALE_SECONDS", "12")
    chaos = Chaos(tmp_path, lambda name: f"{tmp_path}/{name}", seed=0)
    process = chaos.start("lost", "--set", "generations=20")  # more than any machine gets through in 10 s
    store, lease = open_store(f"{tmp_path}/lost"), tmp_path / "lost" / "r" / ".lease"
    while not store.exists("r/generation=0000/match.json"):
        assert process.poll() is None
        time.sleep(0.2)
    (lease.parent / ".link").symlink_to(".lease")
    (lease.parent / ".link").replace(lease)
    assert process.wait(120) == 3
    said = (tmp_path / "output").read_text()
    fault = "(r/.lease: Too many levels of symbolic links)"
    assert f"run r: the heartbeat failed {fault}; retrying, and stopping the run after 10 s without success\n" in said
    last = f"populora: run r: no heartbeat for 10 s {fault}; stopped before another process takes the run over; "
    assert [line for line in said.splitlines() if line.startswith(last)], said[-3000:]
    assert not [pid for pid in _processes() if f"{tmp_path}/lost".encode() in _command(pid)]
    assert Run(store, "r").manifest("evolve", 19) is None


KILLS = [pytest.param(5, id="5"), pytest.param(40, id="40", marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])]


@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_random_instants_on_files(tmp_path: Path, kills: int) -> None:
    _chaos(Chaos(tmp_path, lambda name: f"{tmp_path}/{name}", seed=kills), kills)


@pytest.mark.rgw
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_killed_at_random_instants_on_a_real_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if gap := s3_servers.rgw_gap():
        pytest.skip(gap)
    (tmp_path / "ceph").mkdir()
    ceph = s3_servers.Ceph(tmp_path / "ceph")
    try:
        for name, value in s3_servers.environment(ceph.start()).items():
            monkeypatch.setenv(name, value)
        s3_servers.make_bucket("chaos")
        chaos = Chaos(tmp_path, lambda name: f"s3://chaos/{name}", seed=20)
        chaos.victims["store"] = lambda process: ceph.restart_gateway()
        _chaos(chaos, 20)
    finally:
        ceph.stop()
