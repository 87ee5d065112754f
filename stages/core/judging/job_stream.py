"""Stream items through the sandbox: the runs of one item one after another, many items at the same time.

An item's next run is planned from the verdicts of its earlier ones, so that nothing runs after the verdict that decides. Equal
runs within one call are made once. Memory is constant: results are yielded in the order of the items.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from stages.core.row_errors import ItemFailed
from stages.core.sandbox.protocol import IDLE, TICK, Job, Sandbox, SandboxUnavailable, Verdict

Item = TypeVar("Item")
Result = TypeVar("Result")
Plan = Callable[[Item, list[Verdict]], Job | None]
"""The item's next run, given the verdicts so far; None if nothing more must run."""
Known = Mapping[Job, Verdict]
"""Verdicts that are known before a call; see stages.core.judging.early."""
NOTHING: Known = MappingProxyType({})

_REMEMBERED = 20_000  # verdicts kept for equal runs,
_SHORT = 4_096  # of at most so many characters with their job: a long one is judged again
_AHEAD = 20_000  # items taken before the oldest of them is done
_QUIET = 256  # items in a row without a run
_TRIVIAL = Job("def f():\n    return 0", "", False)  # keeps the stream moving if many items in a row need no run


@dataclass
class _Open(Generic[Item]):
    """An item taken: its place in the input, the verdicts so far, and whether nothing more must run."""

    place: int
    item: Item
    verdicts: list[Verdict] = field(default_factory=list)
    decided: bool = False


def judged(
    sandbox: Sandbox,
    items: Iterable[Item | None],
    plan: Plan[Item],
    finish: Callable[[Item, list[Verdict]], Result],
    known: Known = NOTHING,
) -> Iterator[Result]:
    """Yield `finish(item, verdicts)` of each item, in order. None in items: nothing to read at the moment.

    The sandbox makes the runs whose verdicts are not known.
    Raise SandboxUnavailable, or ItemFailed if our own code fails at an item.
    """
    source = _Source(items)
    stream = _JobStream(source, plan, known)
    for verdict in _named(sandbox.run(stream.jobs()), source, stream):
        if verdict is not TICK:
            stream.learn(verdict)
        yield from stream.finished(finish)
    yield from stream.finished(finish)
    assert not stream.open, "the sandbox ended without a verdict for every job"


class _JobStream(Generic[Item]):
    """The items in flight. Jobs go out in the order of `sent`, and verdicts come back in that order."""

    def __init__(self, source: "_Source[Item]", plan: Plan[Item], known: Known) -> None:
        self._source, self._plan, self._before = source, plan, known
        self.open: deque[_Open[Item]] = deque()
        self.taken = 0
        self._known: dict[Job, Verdict] = {}
        self._asking: dict[Job, list[_Open[Item]]] = {}  # runs not made yet, and the items that wait for them
        self._ready: deque[Job] = deque()
        self._sent: deque[Job] = deque()

    def jobs(self) -> Iterator[Job]:
        """Yield the next runs of items in flight, then those of new items; IDLE while there are neither."""
        quiet, ended = 0, False
        while self.open or not ended:
            if self._ready:
                quiet = 0
                yield self._send(self._ready.popleft())
            elif ended or len(self.open) >= _AHEAD:
                if ended and not self._sent:
                    return  # all that is open is decided
                yield IDLE
            elif quiet == _QUIET:
                quiet = 0
                yield self._send(_TRIVIAL)
            else:
                try:
                    item = next(self._source)
                except StopIteration:
                    ended = True
                    continue
                if item is None:
                    yield IDLE
                else:
                    quiet += 1
                    self._take(item)

    def learn(self, verdict: Verdict) -> None:
        """Take the verdict on the oldest job sent, and plan what follows from it."""
        job = self._sent.popleft()
        if len(job.program) + len(job.input) + len(verdict.value or "") + len(verdict.text or "") + len(verdict.lines) <= _SHORT:
            self._known[job] = verdict
        for waiting in self._asking.pop(job, ()):
            waiting.verdicts.append(verdict)
            self._advance(waiting)
        for oldest in list(islice(self._known, max(0, len(self._known) - _REMEMBERED))):
            del self._known[oldest]

    def finished(self, finish: Callable[[Item, list[Verdict]], Result]) -> Iterator[Result]:
        """Yield the results of the oldest items that are decided."""
        while self.open and self.open[0].decided:
            oldest = self.open.popleft()
            with _named_item(oldest.place):
                result = finish(oldest.item, oldest.verdicts)
            yield result

    def _take(self, item: Item) -> None:
        taken = _Open(self.taken, item)
        self.open.append(taken)
        self._advance(taken)
        self.taken += 1

    def _advance(self, item: _Open[Item]) -> None:
        """Plan the item's next runs until one of them has to be made, or none is needed any more."""
        while True:
            with _named_item(item.place):
                job = self._plan(item.item, item.verdicts)
            if job is None:
                item.decided = True
                return
            verdict = self._known.get(job) or self._before.get(job)
            if verdict is None:
                break
            item.verdicts.append(verdict)
        if job not in self._asking:
            self._asking[job] = []
            self._ready.append(job)
        self._asking[job].append(item)

    def _send(self, job: Job) -> Job:
        self._sent.append(job)
        return job


class _Source(Iterator[Item | None]):
    """The items and what ended them: an error of their producer is attributed to the producer."""

    def __init__(self, items: Iterable[Item | None]) -> None:
        self.items = iter(items)
        self.error: Exception | None = None

    def __next__(self) -> Item | None:
        try:
            return next(self.items)
        except Exception as error:
            self.error = error
            raise


@contextmanager
def _named_item(place: int) -> Iterator[None]:
    """Name the item at which our code fails."""
    try:
        yield
    except Exception as error:
        raise ItemFailed(place, place, error) from error


def _named(verdicts: Iterator[Verdict], source: _Source[Any], stream: _JobStream[Any]) -> Iterator[Verdict]:
    """Yield the verdicts; an error while inputs are sent and values received belongs to one of the items in flight."""
    try:
        yield from verdicts
    except (SandboxUnavailable, ItemFailed):
        raise
    except Exception as error:
        if error is source.error:
            raise
        first = stream.open[0].place if stream.open else stream.taken
        raise ItemFailed(first, stream.taken, error) from error
