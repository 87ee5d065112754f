"""One generation of the configuration with short completions, in a store of its own, run as `populora run` runs it."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.config import PROJECT, RunConfig
from flows.gpu_check.finding import CheckFinding
from flows.monitoring.run_tables import clock
from flows.run.run import Run
from flows.storage import open_store

RUN_ID = "gpu-check"
SECONDS = 3600


def short(config: RunConfig, tokens: int) -> list[str]:
    """Return the settings of the short generation. Students' batches fill up with stored tasks, so that the update has work.

    The styles of conversations do not end within so few tokens; documents do.
    """
    settings = [
        "generations=1",
        f"propose.max_new_tokens={tokens}",
        f"solve.max_new_tokens={tokens}",
        "solve.top_up=true",
        "seeding.rows=16",
        "seeding.max_rounds=1",
        f"benchmark.max_new_tokens={tokens}",
        "benchmark.limit=12",
        "benchmark.suites=[]",
    ]
    return settings if config.model.style in ("compact", "trace") else [*settings, "model.style=document"]


def examine(config: RunConfig, source: str, settings: Sequence[str], folder: Path, tokens: int) -> Iterator[CheckFinding]:
    """Run it, check the store, and yield both findings and the seconds of each stage."""
    source = str(Path(source).resolve()) if Path(source).is_file() else source  # the command below runs in the project's folder
    chosen = [option for setting in [*settings, *short(config, tokens)] for option in ("--set", setting)]
    place = ["--run-id", RUN_ID, "--store", str(folder)]
    ended = _populora(["run", "-c", source, *place, *chosen])
    if ended.returncode:
        yield CheckFinding("generation", False, f"exit code {ended.returncode}: {_last(ended.stderr)}")
        return
    seconds = clock(Run(open_store(str(folder)), RUN_ID)).get(0, {})
    slowest = ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items() if spent >= 0.1)
    yield CheckFinding(
        "generation", True, f"{sum(seconds.values()):.0f} s with at most {tokens} tokens: {slowest}", {"seconds": dict(seconds)}
    )
    checked = _populora(["fsck", RUN_ID, "--store", str(folder)])
    yield CheckFinding("generation's store", checked.returncode == 0, _last(checked.stdout) or _last(checked.stderr))


def _populora(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=SECONDS, check=False)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""
