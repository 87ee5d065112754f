"""Judging while completions are written: a thread gives those that have ended to the sandbox, which would be idle otherwise.

What it finds is a cache for verify and grade (flows.steps.early_verdicts), which stay as they are: their tables are the same with
and without it. Whatever goes wrong here costs only time: the stage judges what has no early verdict.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from flows.backend import Backend
from flows.run.stage_io import StageIO
from flows.steps import early_verdicts
from stages.core.judging.early import Early, Read, Recorder, conditions
from stages.core.judging.job_stream import NOTHING
from stages.core.sandbox.protocol import Job, Sandbox, Verdict

GRACE_SECONDS = 1.0
"""How long runs in the sandbox may continue when the last completion has ended."""

Judge = Callable[[Sandbox, Iterable[Any]], Iterator[Any]]
"""`judge_tasks` or `judge_answers`."""


@contextmanager
def judged_early(io: StageIO, backend: Backend, judge: Judge) -> Iterator[Early | None]:
    """Yield what takes the completions of a rollout as they end; None where nothing is judged early.

    At the end, leave what was found for the stage that judges them.
    """
    if io.verdicts is None or not backend.judges_early:
        yield None
        return
    judging = _Judging(backend, judge)
    try:
        yield judging.take
    finally:
        judging.stop()
    if judging.known:
        with _noted():
            early_verdicts.leave(io, judging.known, _conditions(backend))


def early_verdicts_of(io: StageIO, backend: Backend) -> Mapping[Job, Verdict]:
    """Return the verdicts that were found on this machine while the completions that the stage judges were written."""
    files = early_verdicts.left(io)
    if not files:
        return NOTHING
    found_under = _conditions(backend)
    try:
        return early_verdicts.read(files, found_under)
    except (OSError, ValueError, TypeError) as error:
        _say(error)
        return NOTHING


def _conditions(backend: Backend) -> str:
    return conditions(backend.walls(), backend.config.sandbox.model_dump(exclude={"early"}))


@contextmanager
def _noted() -> Iterator[None]:
    """Say what went wrong, and continue."""
    try:
        yield
    except Exception as error:
        _say(error)


def _say(error: Exception) -> None:
    print(f"early judging failed; the stage judges what has no early verdict: {error}", file=sys.stderr)


class _Enough(Exception):
    """The rollout has ended: what has no verdict yet is left to the stage."""


class _Judging:
    """The thread, from the first completion to the last."""

    def __init__(self, backend: Backend, judge: Judge) -> None:
        self._backend, self._judge = backend, judge
        self._recorder: Recorder | None = None
        self._ended: SimpleQueue[Read] = SimpleQueue()
        self._stopped = threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._work, name="early judging", daemon=True)
        self._thread.start()

    def take(self, read: Read) -> None:
        """Take what reads a completion that has ended. The thread reads it."""
        self._ended.put(read)

    @property
    def known(self) -> Mapping[Job, Verdict]:
        """What was found. Complete once the thread has stopped."""
        return NOTHING if self._recorder is None else self._recorder.known

    def stop(self) -> None:
        """Take nothing more, and wait for what is in the sandbox; not for long, see GRACE_SECONDS."""
        self._deadline = time.monotonic() + GRACE_SECONDS
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        with _noted(), suppress(_Enough):
            self._recorder = Recorder(self._backend.sandbox())
            for _ in self._judge(self._recorder, self._items(self._recorder)):
                pass

    def _items(self, recorder: Recorder) -> Iterator[Any]:
        """Yield what is to be judged, None while there is nothing. Raises _Enough at the end: that ends the sandbox's call."""
        while True:
            if self._stopped.is_set() and (not recorder.flying or time.monotonic() > self._deadline):
                raise _Enough
            try:
                read = None if self._stopped.is_set() else self._ended.get_nowait()
            except Empty:
                read = None
            item = None if read is None else read()
            if read is None or item is not None:
                yield item
