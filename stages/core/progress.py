"""How far a long computation is, told through a callback: whoever computes needs no clock and no terminal."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Progress(Protocol):
    """Is told, often, what a computation has done so far."""

    def __call__(self, what: str, done: float, total: float, tokens: int = 0) -> None:
        """`done` of `total` `what` (completions, answers judged, ...) are finished; `tokens` were processed for them."""
        ...


def silent(what: str, done: float, total: float, tokens: int = 0) -> None:
    """Tells nobody."""


def counted(items: Iterable[Item], what: str, total: int, progress: Progress) -> Iterator[Item]:
    """The items, each reported when the next one is asked for."""
    progress(what, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(what, done, total)
