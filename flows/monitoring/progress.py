"""Display of the steps that are running: bars on a terminal, elsewhere a line every half minute.

A step that reports nothing (a model that loads, a remote machine) is still shown, with the time that it has taken so far.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from flows.monitoring.meter import Reading, duration

LINE_SECONDS = 30.0  # seconds between two lines about a step without a terminal
Told = Callable[[Reading], None]


def say(line: str, file: TextIO | None = None) -> None:
    """Print a line at once. A reader that has gone, or a full disk behind the stream, ends no run for a line's sake."""
    stream = sys.stdout if file is None else file
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)
    except OSError:  # what the stream still holds goes out with the next line, if it can
        pass


def silence(stream: TextIO) -> None:
    """Send what the stream holds, and all that follows, nowhere: Python would fail with it when the process ends."""
    with suppress(OSError, ValueError):  # a stream of a test has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def to_stderr(line: str) -> None:
    """Print a line to standard error, for the log."""
    say(line, sys.stderr)


@dataclass
class _Step:
    """A step that is running."""

    name: str
    began: float
    said: float
    reading: Reading | None = None
    bar: TaskID | None = None


class Display:
    """Shows the steps of one process. Use as a context manager. `say` takes the lines of a process without a terminal."""

    def __init__(
        self, say: Callable[[str], None] = to_stderr, console: Console | None = None, line_seconds: float = LINE_SECONDS
    ) -> None:
        console = console or Console(stderr=True)
        self._say, self._line_seconds = say, line_seconds
        self._steps: list[_Step] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._bars = Progress(
            *_columns(), console=console, transient=True, expand=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live = console.is_terminal
        self._whole = self._bars.add_task("", total=1.0, visible=False, detail="") if self._live else None
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> "Display":
        if self._live:
            self._bars.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._live:  # without a terminal, bars that never started would print an empty line
            with suppress(OSError):  # the terminal may have ended
                self._bars.stop()

    @contextmanager
    def step(self, name: str, share: float | None = None) -> Iterator[Told]:
        """Show a step while the block runs. Yields a function for its readings. `share`: part of the run done before it."""
        now = time.monotonic()
        step = _Step(name, now, now)
        with self._lock:
            self._steps.append(step)
            if self._live:
                step.bar = self._bars.add_task(name, total=None, detail="")
                if share is not None and self._whole is not None:
                    self._bars.update(self._whole, completed=share, visible=True, description="run", detail=f"{share:.0%}")
        try:
            yield lambda reading: self._read(step, reading)
        finally:
            with self._lock:
                self._steps.remove(step)
                if step.bar is not None:
                    self._bars.remove_task(step.bar)

    def print(self, line: str, file: TextIO | None = None) -> None:
        """Print a line that stays above the bars, on standard output unless `file` is another stream."""
        with self._lock, suppress(OSError):
            if self._live:
                self._bars.stop()
            say(line, file)
            if self._live and not self._ended.is_set():
                self._bars.start()

    def _read(self, step: _Step, reading: Reading) -> None:
        step.reading = reading
        if step.bar is not None:
            self._bars.update(step.bar, completed=reading.share, total=1.0, detail=str(reading))

    def _tick(self) -> None:
        while not self._ended.wait(min(1.0, self._line_seconds / 4)):
            now = time.monotonic()
            with self._lock:
                steps = list(self._steps)
            for step in steps:
                if self._live:
                    self._named(step, now)
                elif now - step.said >= self._line_seconds:
                    step.said = now
                    self._say(f"{step.name}: {_state(step, now)}")

    def _named(self, step: _Step, now: float) -> None:
        """Show the time of a step without readings."""
        if step.reading is None and step.bar is not None and now - step.began >= 1:
            with self._lock:
                if step in self._steps:
                    self._bars.update(step.bar, detail=_state(step, now))


def _columns() -> tuple[Any, ...]:
    name, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return (
        TextColumn("{task.description}", table_column=name),
        BarColumn(16, table_column=Column(min_width=16)),
        TextColumn("{task.fields[detail]}", table_column=rest),
    )


def _state(step: _Step, now: float) -> str:
    so_far = f"{duration(now - step.began)} so far"
    return so_far if step.reading is None else f"{so_far} · {step.reading}"
