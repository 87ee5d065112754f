"""Errors of our own code at one row. They name the row, so that a person can inspect it and fix the code.

They are never a verdict on the row: what our code could not read is neither right nor wrong.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_SHOWN = 200  # characters shown of a text that is not stored


class RowFailed(RuntimeError):
    """Our code failed at a row of `table`. An empty `table` means a row not stored yet; the message shows how its text begins."""

    def __init__(self, table: str, row: str, problem: str) -> None:
        super().__init__(f"{table + ', ' if table else ''}row {row}: {problem}")
        self.table, self.row, self.problem = table, row, problem


class ItemFailed(RuntimeError):
    """Our code failed at an item of a stream, or at one of several; `first` and `last` are their places, from 0."""

    def __init__(self, first: int, last: int, error: Exception) -> None:
        super().__init__(f"item {first}: {_told(error)}")
        self.first, self.last, self.error = first, last, error


@contextmanager
def rows_named(table: str, ids: Sequence[str]) -> Iterator[None]:
    """Turn the failure of an item into that of its row; `ids` are the rows' ids in the order of the items."""
    try:
        yield
    except ItemFailed as failed:
        first, last = ids[failed.first], ids[min(failed.last, len(ids) - 1)]
        row = first if first == last else f"{first} or one after it, up to {last}"
        raise RowFailed(table, row, _told(failed.error)) from failed.error


@contextmanager
def reading(row: str, text: str) -> Iterator[None]:
    """Name the row if reading a completion that is not stored yet fails."""
    try:
        yield
    except Exception as error:
        raise RowFailed("", row, f"{_told(error)}; its text begins {text[:_SHOWN]!r}") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
