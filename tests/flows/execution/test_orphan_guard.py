"""What a flow started does not outlive it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.config import PROJECT
from flows.execution import orphan_guard

PARENT = """
import subprocess, sys, time
from flows.execution import orphan_guard as guard

def leader(name):
    made = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait", name], start_new_session=True, stdout=-1, text=True)
    return made.pid, int(made.stdout.readline())

print(*leader("flows.worker"), subprocess.Popen(["sleep", "600"]).pid, *leader("prefect"), flush=True)
guard.start()
time.sleep(600)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the guard needs /proc")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_end_with_their_parent_and_a_stage_worker_with_its_group(number: signal.Signals) -> None:
    """vLLM's engine process is in a worker's group. The group of Prefect's worker has flows, which end by themselves."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    *children, flow = [int(pid) for pid in parent.stdout.readline().split()]
    time.sleep(1.5)
    os.kill(parent.pid, number)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [pid for pid in (*children, flow) if _alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [flow]


@pytest.mark.timeout(240)
def test_prefect_s_server_ends_with_a_run_that_was_killed_before_it_began(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--store", str(tmp_path), "--set", "sandbox.kind=local"]
    parent = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (servers := orphan_guard.descendants(parent.pid, "ui_server")):
        assert parent.poll() is None
        time.sleep(0.05)
    time.sleep(1.0)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(map(_alive, servers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_alive, servers))


LEAVE = """
import os, subprocess, sys
code = "import sys, time; from flows.execution.orphan_guard import *; leave_with_parent(); time.sleep(float(sys.argv[1]))"
below = "import subprocess, sys; sys.exit(abs(subprocess.run([sys.executable, *sys.argv[1:]]).returncode))"
named = os.environ | {"POPULORA_WORKER_PID": sys.argv[1].replace("ours", str(os.getpid()))}
sys.exit(subprocess.run([sys.executable, "-c", below, "-c", code, sys.argv[2]], env=named).returncode)
"""


@pytest.mark.parametrize(("worker", "seconds", "code"), [("ours", "2", 0), ("other", "600", signal.SIGTERM), ("", "2", 0)])
def test_a_flow_leaves_if_its_worker_was_gone_before_it_looked(worker: str, seconds: str, code: int) -> None:
    """The parent that it finds then is the one that has adopted it, and lives on."""
    with subprocess.Popen(["sleep", "600"]) as other:
        named = worker.replace("other", str(other.pid))
        done = subprocess.run([sys.executable, "-c", LEAVE, named, seconds], cwd=PROJECT, timeout=60)
        other.kill()
    assert done.returncode == code


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
