"""The set-up's shell functions: what a long command shows while it runs, and what a failure shows."""

import subprocess
from pathlib import Path

import pytest

from flows import cards
from flows.commands import doctor
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


@pytest.mark.parametrize(
    ("answer", "code", "out"), [("echo GPU 0: H200", 0, "cuda\n"), ("exit 9", 0, "cpu\n"), ("exec sleep 9", 3, "")]
)
def test_a_tool_that_does_not_answer_is_no_machine_without_gpu(tmp_path: Path, answer: str, code: int, out: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    here = f'. {PROJECT}/infra/setup/torch.sh; unset POPULORA_TORCH; PATH="{tmp_path}:$PATH" SMI_SECONDS=1'
    done = bash(f'{here}; build=$(torch_build); echo "$build"', tmp_path)
    assert (done.returncode, done.stdout) == (code, out)
    assert ("sudo nvidia-smi -pm 1" in done.stderr) == (code == 3)


def test_eight_cards_have_the_time_to_start() -> None:
    assert cards.SECONDS == doctor.CARDS_SECONDS == 90
    assert "\nSMI_SECONDS=90 " in (PROJECT / "infra/setup/torch.sh").read_text()


def test_a_mac_with_an_intel_processor_is_refused_in_one_line(tmp_path: Path) -> None:
    script = f". {PROJECT}/infra/setup/venv.sh; check_platform Linux x86_64; check_platform Darwin arm64; "
    done = bash(script + "check_platform Darwin x86_64; echo after", tmp_path)
    said = "setup: torch has no packages for macOS on Intel: use a Mac with Apple silicon (outside Rosetta), or Linux\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", said)
