"""The processes that `populora serve` supervises: each in its own session, with its own log."""

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
    """A required process exited or does not start. The message names it and shows its last output."""

    exit_code = 1


@dataclass
class Child:
    """One process: how it is started, and when it was restarted."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    process: "subprocess.Popen[bytes]"
    restarts: list[float]
    inherited: tuple[int, ...] = ()
    """Descriptors that each start hands over, such as a listening socket."""

    @property
    def lives(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def last_words(self) -> str:
        """Return the end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LAST_LINES:])

    def end(self, patience: float) -> None:
        """Send SIGTERM, again after half the patience (Prefect's worker may ignore the first), then SIGKILL to its group."""
        for number in (signal.SIGTERM, signal.SIGTERM):
            if self.lives:
                self.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience / 2)
        with suppress(ProcessLookupError):  # the group is empty
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(name: str, command: list[str], environment: Mapping[str, str], log: Path, inherited: tuple[int, ...] = ()) -> Child:
    """Start a process whose output is appended to the log, and which has the `inherited` descriptors under the same numbers."""
    return Child(name, command, environment, log, _launch(command, environment, log, inherited), [], inherited)


def keep(children: list[Child]) -> list[str]:
    """Restart those that have exited and return their names. Raises ChildFailed for one that keeps exiting."""
    again = []
    for child in children:
        if child.lives:
            continue
        now = time.monotonic()
        child.restarts = [moment for moment in child.restarts if now - moment < WITHIN_SECONDS] + [now]
        if len(child.restarts) > MAX_RESTARTS:
            raise ChildFailed(f"the {child.name} keeps exiting (exit code {child.process.returncode}); see {child.log}")
        with suppress(ProcessLookupError):  # what it left behind must not keep running next to its successor
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process = _launch(child.command, child.environment, child.log, child.inherited)
        again.append(child.name)
    return again


def _launch(
    command: list[str], environment: Mapping[str, str], log: Path, inherited: tuple[int, ...]
) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=inherited,
        )
