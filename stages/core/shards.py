"""Shares of a stage's completions, or of an update's rows.

They are contiguous in the stage's own order, so that the shares' tables joined are the whole table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Share `number` of `count`; by default the whole."""

    number: int = 0
    count: int = 1

    @classmethod
    def named(cls, name: str | None) -> "Shard":
        """Return the shard of that name, such as `02of08`; the whole for None. Raise ValueError."""
        if name is None:
            return cls()
        number, of, count = name.partition("of")
        found = cls(int(number), int(count or 0))
        if not of or not 0 <= found.number < found.count:
            raise ValueError(f"{name!r} is not the name of a shard")
        return found

    @staticmethod
    def names(name: str) -> bool:
        """Return whether a part of that name is a shard, rather than one of the numbered parts `00`, `01`, ..."""
        return "of" in name

    @property
    def name(self) -> str:
        """The name of the part: equal names are equal shares."""
        return f"{self.number:02d}of{self.count:02d}"

    def of(self, work: Sequence[T], costs: Sequence[int]) -> list[T]:
        """Return this share of `work`. An item belongs to the share in which the middle of its cost lies."""
        total, ends = sum(costs), accumulate(costs)
        return [
            item
            for item, cost, end in zip(work, costs, ends, strict=True)
            if (2 * end - cost) * self.count // (2 * total) == self.number
        ]


WHOLE = Shard()
