"""Child processes of our own that are asked in JSON lines: one order in, one answer out, lines of progress before the answer.

The parent holds a `ChildProcess`; the child reads `orders` and writes `answer`s. Only the standard library is imported here: a
child may run in an interpreter that has nothing else. The judge's link to a sandbox has its own, binary protocol.
"""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait as wait_readable  # poll: select refuses descriptors over 1,023
from pathlib import Path
from typing import IO, Any, TextIO

Json = dict[str, Any]
PROGRESS = "progress"
CHUNK = 1 << 16
KILLED_SECONDS = 30.0  # a killed process that has not ended by then hangs in the kernel, as in the driver of a card that is gone
WATCH_SECONDS = 1.0  # between two looks at whether a child that says nothing still runs


def orders(stream: TextIO) -> Iterator[Json]:
    """In the child: yield the orders until the parent closes the stream."""
    for line in stream:
        yield json.loads(line)


def answer(stream: TextIO, values: Mapping[str, Any]) -> None:
    """In the child: write one line and flush it."""
    stream.write(json.dumps(values) + "\n")
    stream.flush()


class ChildProcess:
    """A child process and its two pipes. `group`: it leads a process group of its own, which ends as a whole.

    Attributes:
        process: The process, such as for its exit code.
        descriptor: What is readable when an answer, or a part of one, has come.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        group: bool = False,
        errors: int | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=folder,
            start_new_session=group,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input: IO[bytes] = self.process.stdin
        self._output: IO[bytes] = self.process.stdout
        self.descriptor = self._output.fileno()
        self._group = group
        self._begun: list[bytes] = []  # of the line that is being read
        self._read = b""  # what follows it

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order. Raise BrokenPipeError if the process has ended or no longer listens."""
        self._input.write(json.dumps(order).encode() + b"\n")
        self._input.flush()

    def answer(self, deadline: float = math.inf, progress: Callable[[Json], None] = lambda values: None) -> Json | None:
        """Return the next answer; None at the deadline (of the monotonic clock), or if the process ended without one.

        Lines of progress come before the answer, and go to `progress`.
        """
        while (line := self._line(deadline)) is not None:
            said: Json = json.loads(line)
            if PROGRESS not in said:
                return said
            progress(said[PROGRESS])
        return None

    def last_words(self, ask: signal.Signals, seconds: float) -> Json | None:
        """Kill a process that is late, after a signal that makes it write where it is. Return an answer that came meanwhile."""
        with suppress(ProcessLookupError):
            self.process.send_signal(ask)
        try:
            return self.answer(time.monotonic() + seconds)
        finally:
            self.kill()

    def hang_up(self) -> None:
        """Close its input: an idle process ends by itself."""
        with suppress(OSError):
            self._input.close()

    def end(self, patience: float = 0.0, limit: float = KILLED_SECONDS) -> bool:
        """Kill the process, and wait for its end. With `patience`, an idle one first has so many seconds to end by itself.

        Returns False if it, or another process of its group, has not ended `limit` seconds after it was killed.
        """
        if patience:
            self.hang_up()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        self.kill()  # before its input is closed: an order that it never read would be written until it is gone
        self.hang_up()
        deadline = time.monotonic() + limit
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self._output.close()
        while self._group and _runs(self.process.pid):  # such as vLLM's engine process, which holds the memory of a GPU
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def kill(self) -> None:
        """Kill the process. Whoever waits for its answer gets none."""
        with suppress(ProcessLookupError):  # it exited by itself
            if self._group:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def _line(self, deadline: float) -> bytes | None:
        """Return the next whole line. What was read of one that is not whole yet is kept."""
        while b"\n" not in self._read:
            self._begun.append(self._read)
            self._read = b""
            left = deadline - time.monotonic()
            if left <= 0 or not self._readable(left):
                return None
            self._read = os.read(self.descriptor, CHUNK)
            if not self._read:
                return None
        end, _, self._read = self._read.partition(b"\n")
        line = b"".join([*self._begun, end])
        self._begun.clear()
        return line

    def _readable(self, seconds: float) -> bool:
        """Return whether there is something to read within so many seconds.

        Return False immediately if the process has ended and nothing is left to read: a grandchild, such as vLLM's engine
        process, may keep the pipe open.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ended = not self.running  # before the wait: what was written before the end is still read
            if wait_readable([self.descriptor], 0 if ended else min(left, WATCH_SECONDS)):
                return True
            if ended:
                return False
        return False


def _runs(group: int) -> bool:
    """Return whether a process of the group has not ended. One that nobody has waited for yet (a zombie) has."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # none is left, or the number is another user's by now
        return False
    if not Path("/proc/self/stat").exists():
        return True
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, its_group = place.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False
