"""The processes that `populora serve` keeps: each in a session of its own, with its log."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LAST_LINES = 12
MAX_RESTARTS = 3
WITHIN_SECONDS = 60.0


class ChildFailed(Exception):
    """A process that is needed ended, or will not come up; the message says which and shows its last words."""

    exit_code = 1


@dataclass
class Child:
    """One process: how it is started, and the times at which it was started again."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    process: "subprocess.Popen[bytes]"
    restarts: list[float]

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LAST_LINES:])

    def end(self, patience: float) -> None:
        """SIGTERM, again after half the patience (Prefect's worker may ignore the first), then SIGKILL to its group."""
        for number in (signal.SIGTERM, signal.SIGTERM):
            if self.lives:
                self.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience / 2)
        with suppress(ProcessLookupError):  # the group is empty
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(name: str, command: list[str], environment: Mapping[str, str], log: Path) -> Child:
    """Starts a process whose output goes to the log's end."""
    return Child(name, command, environment, log, _launch(command, environment, log), [])


def keep(children: list[Child]) -> list[str]:
    """Starts those that have ended again and returns their names. Raises ChildFailed for one that will not stay."""
    again = []
    for child in children:
        if child.lives:
            continue
        now = time.monotonic()
        child.restarts = [moment for moment in child.restarts if now - moment < WITHIN_SECONDS] + [now]
        if len(child.restarts) > MAX_RESTARTS:
            raise ChildFailed(f"the {child.name} ends again and again (exit code {child.process.returncode}); see {child.log}")
        with suppress(ProcessLookupError):  # what it left behind must not go on beside its successor
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process = _launch(child.command, child.environment, child.log)
        again.append(child.name)
    return again


def _launch(command: list[str], environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
