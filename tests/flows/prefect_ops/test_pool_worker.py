"""Prefect's worker process: it is started again when it ends by itself, and not when it was told to stop."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.config import PROJECT
from flows.prefect_ops.pool_worker import tell_to_end

KEEP = "import sys; from flows.prefect_ops.pool_worker import keep_at_work; sys.exit(keep_at_work(sys.argv[1:], 'gpu', 0.2))"
WORKER = "echo $$ >> {0}; if [ $(wc -l < {0}) -gt 1 ]; then exec sleep 600; fi; exit 1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_worker_that_ends_by_itself_is_started_again_until_it_is_told_to_stop(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "starts"
    command = [sys.executable, "-c", KEEP, "/bin/sh", "-c", WORKER.format(log)]
    kept = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True, preexec_fn=of_a_terminal)
    deadline = time.monotonic() + 60
    while not log.exists() or len(log.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline and kept.poll() is None
        time.sleep(0.05)
    kept.send_signal(number)
    said = kept.communicate(timeout=60)[1]
    assert kept.returncode == 0 and len(log.read_text().splitlines()) == 2
    assert said == "Prefect's worker of the pool gpu ended with code 1; it is started again in 0.2 s\n"


def test_a_run_that_ends_at_the_moment_of_the_signal_does_not_keep_it_from_the_others() -> None:
    gone, there = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "600"])
    gone.wait()
    tell_to_end([gone.pid, there.pid])
    assert there.wait(timeout=60) == -signal.SIGTERM


def of_a_terminal() -> None:
    """Take SIGHUP as a process of a terminal does: whoever runs the tests under nohup has it ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
