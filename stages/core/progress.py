"""Progress of a long computation, reported through a callback, so that the computation needs no clock and no terminal."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Progress(Protocol):
    """Callback that a computation calls often to report its progress."""

    def __call__(self, what: str, done: float, total: float, tokens: int = 0) -> None:
        """Report `done` of `total` `what` (completions, answers judged, ...) as finished, with `tokens` processed for them."""
        ...


def silent(what: str, done: float, total: float, tokens: int = 0) -> None:
    """Report nothing."""


def counted(items: Iterable[Item], what: str, total: int, progress: Progress) -> Iterator[Item]:
    """Yield the items and report each one when the next is requested."""
    progress(what, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(what, done, total)
