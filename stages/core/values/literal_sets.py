"""Build the sets and dictionaries of a literal within a budget of comparisons.

Python finds a member by its hash, and a text can hold thousands of different values with one hash (`-1` and `-2`, multiples of
2**61 - 1, tuples and frozensets of them): making such a set costs the square of its size, and comparing nested ones more. The
comparisons of a text are therefore counted before they are made.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from stages.core.values.literal_tokens import OverLimit

MAX_COMPARISONS = 1 << 18


class Hashing:
    """Makes the sets, frozensets and dictionaries of one text."""

    def __init__(self) -> None:
        self.comparisons = 0
        self._weights: dict[int, int] = {}
        self._kept: list[object] = []  # as long as these live, their ids are theirs

    def members(self, items: Iterable[object]) -> set[object]:
        """The set of the items. Raises TypeError for an unhashable one, OverLimit over the budget."""
        made: set[object] = set()
        met: dict[int, tuple[int, int]] = {}
        for item in items:
            self.meet(item, made, met)
            made.add(item)
        return made

    def frozen(self, items: Collection[object]) -> frozenset[object]:
        """The frozenset of the items; raises as `members` does."""
        made = frozenset(items if isinstance(items, set | frozenset) else self.members(items))
        clashes = max(Counter(map(hash, made)).values(), default=1)
        self._weights[id(made)] = 1 + clashes * sum(map(self._weight, made))
        self._kept.append(made)
        return made

    def meet(self, key: object, made: Collection[object], met: dict[int, tuple[int, int]]) -> None:
        """Count the cost of finding `key` in `made`. `met` is the caller's: by hash, the number of keys and the cost of one."""
        mark = hash(key)
        count, weight = met.get(mark, (0, 1))
        weight = max(weight, self._weight(key))
        self.comparisons += count * weight
        if self.comparisons > MAX_COMPARISONS:
            raise OverLimit("too many members with one hash")
        if not count or key not in made:
            met[mark] = count + 1, weight

    def _weight(self, value: Any) -> int:
        """Return the maximum number of comparisons to find this value equal to another."""
        if type(value) is tuple:
            return 1 + sum(map(self._weight, value))
        return self._weights.get(id(value), 1) if type(value) is frozenset else 1
