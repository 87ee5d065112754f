"""A whole run by the command line, as its user starts it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.config import PROJECT
from flows.run.run import Run
from flows.storage import open_store


def small_run(store: Path, config: str, settings: Sequence[str]) -> Run:
    """Play `config` with `settings`, each as `--set` takes it, into a new run of a folder."""
    given = [part for value in settings for part in ("--set", value)]
    command = [sys.executable, "-m", "flows.cli", "run", "-c", config, "--run-id", "r", "--store", str(store), *given]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return Run(open_store(str(store)), "r")
