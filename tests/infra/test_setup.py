"""The set-up's shell functions: what a long command shows while it runs, and what a failure shows."""

import subprocess
from pathlib import Path

from flows.config import PROJECT


def bash(script: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that has the set-up's functions, with its logs in `cache` and a sign of progress every second."""
    source = f'set -euo pipefail; . {PROJECT}/infra/setup/lib.sh; CACHE="{cache}" PROGRESS_SECONDS=1'
    return subprocess.run(["bash", "-c", f"{source}\n{script}"], capture_output=True, text=True, timeout=60)


def test_a_long_command_shows_its_seconds_and_the_newest_line_of_its_log(tmp_path: Path) -> None:
    done = bash("pip() { echo Looking; echo Collecting numpy; sleep 4; echo Done; }; logged stub pip; echo after", tmp_path)
    *signs, after = done.stdout.splitlines()
    assert (done.returncode, done.stderr, after) == (0, "", "after")
    assert signs and all(sign.endswith(" s: Collecting numpy") for sign in signs)
    assert (tmp_path / "stub.log").read_text() == "Looking\nCollecting numpy\nDone\n"


def test_a_failed_command_shows_the_end_of_its_log(tmp_path: Path) -> None:
    done = bash("pip() { echo no such package; return 7; }; logged stub pip || echo failed", tmp_path)
    assert done.stdout == "failed\n"
    said = ["no such package", "setup: command failed: pip", f"setup: full log: {tmp_path}/stub.log"]
    assert done.stderr.splitlines() == said
