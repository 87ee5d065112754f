"""Prefect's worker process: it is started again when it ends by itself, and not when it was told to stop."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from flows.config import PROJECT

KEEP = "import sys; from flows.prefect_ops.pool_worker import keep_at_work; sys.exit(keep_at_work(sys.argv[1:], 'gpu', 0.2))"
WORKER = "echo $$ >> {0}; if [ $(wc -l < {0}) -gt 1 ]; then exec sleep 600; fi; exit 1"


def test_a_worker_that_ends_by_itself_is_started_again_until_it_is_told_to_stop(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    command = [sys.executable, "-c", KEEP, "/bin/sh", "-c", WORKER.format(log)]
    kept = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not log.exists() or len(log.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline and kept.poll() is None
        time.sleep(0.05)
    kept.send_signal(signal.SIGTERM)
    said = kept.communicate(timeout=60)[1]
    assert kept.returncode == 0 and len(log.read_text().splitlines()) == 2
    assert said == "Prefect's worker of the pool gpu ended with code 1; it is started again in 0.2 s\n"
