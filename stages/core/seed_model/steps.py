"""One step of a generated chain: a Python expression of one operation on the newest value, over ints, strings and lists.

In a template `@` is the newest variable, `&` an earlier one or an argument of the type named. Constants: `<c>` 1..9, `<n>` 1..49,
mostly small, `<k>` 2..4, `<m>` 3..9, `<q>` a quoted letter, `<t>` a quoted text of one or two letters. Types: I int, S string,
L list of ints. Values stay small (`is_small`), so that a step can be learnt and a trace line is short.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from stages.core.seed_model.program_grammar import ALPHABET, ScalarDraws
from stages.core.seed_model.programs import compile_own

TYPES = "ISL"
LARGEST_INT, LONGEST_TEXT, LONGEST_LIST = 99, 8, 6


class Template(NamedTuple):
    """An expression on a value of one type: the type of its result, its text, the type of `&` (empty: none), its weight."""

    result: str
    text: str
    other: str = ""
    weight: int = 2


STEPS: dict[str, tuple[Template, ...]] = {
    "I": (
        Template("I", "@ + <n>", weight=6), Template("I", "@ - <n>", weight=6), Template("I", "<n> - @", weight=3),
        Template("I", "@ * <k>", weight=4), Template("I", "@ // <k>", weight=3), Template("I", "@ % <m>", weight=3),
        Template("I", "max(@, <n>)"), Template("I", "min(@, <n>)"), Template("I", "abs(@)", weight=1),
        Template("I", "@ + &", "I", 5), Template("I", "@ - &", "I", 4), Template("I", "max(@, &)", "I", 2),
        Template("I", "min(@, &)", "I", 2), Template("I", "@ + <c> if @ > <n> else @ - <c>"),
        Template("S", "str(@)", weight=1), Template("S", "<q> * @", weight=1),
        Template("L", "[@, <n>]", weight=1), Template("L", "[@, &]", "I", 1), Template("L", "list(range(@))", weight=1),
    ),
    "S": (
        Template("S", "@[::-1]", weight=3), Template("S", "@ + <t>", weight=4), Template("S", "<t> + @", weight=4),
        Template("S", "@[1:]"), Template("S", "@[:-1]"), Template("S", "@[:<k>]"), Template("S", "@[<k>:]"),
        Template("S", "@.upper()"), Template("S", "@.replace(<q>, <q>)"), Template("S", "@[1:] + @[:1]"),
        Template("S", "@ + &", "S", 3), Template("S", "& + @", "S", 2), Template("S", "@ + <q> if len(@) < <m> else @[1:]"),
        Template("I", "len(@)"), Template("I", "@.count(<q>)", weight=1), Template("I", "@.find(<q>)", weight=1),
    ),
    "L": (
        Template("L", "@[::-1]", weight=3), Template("L", "sorted(@)"), Template("L", "@[1:]"), Template("L", "@[:-1]"),
        Template("L", "@[:<k>]"), Template("L", "@ + [<n>]", weight=3), Template("L", "[<n>] + @", weight=3),
        Template("L", "@ + [&]", "I", 3), Template("L", "[x + <c> for x in @]", weight=3), Template("L", "[x - <c> for x in @]"),
        Template("L", "[x * <k> for x in @]"), Template("L", "[x for x in @ if x > <c>]"), Template("L", "@[1:] + @[:1]"),
        Template("I", "len(@)", weight=1), Template("I", "sum(@)"), Template("I", "max(@)"), Template("I", "min(@)", weight=1),
        Template("I", "@[0]"), Template("I", "@[-1]"),
    ),
}  # fmt: skip
STAY = 0.8
"""Chance that a step keeps the type of the newest value."""

_HOLE = re.compile(r"<(\w)>")


def draw_template(draw: ScalarDraws, kind: str, has_other: Callable[[str], bool]) -> Template:
    """A template on a value of that type; those with `&` only where an earlier value of its type exists."""
    stay = draw.unit() < STAY
    known = [one for one in STEPS[kind] if (one.result == kind) == stay and (not one.other or has_other(one.other))]
    return known[draw.weighted([one.weight for one in known])]


def filled(draw: ScalarDraws, text: str) -> str:
    """The template with its constants drawn; `@` and `&` are left."""
    return _HOLE.sub(lambda hole: _constant(draw, hole[1]), text)


def _constant(draw: ScalarDraws, hole: str) -> str:
    if hole == "c" or (hole == "n" and draw.unit() < 0.6):
        return str(1 + draw.below(9))
    if hole == "n":
        return str(10 + draw.below(40))
    if hole == "k":
        return str(2 + draw.below(3))
    if hole == "m":
        return str(3 + draw.below(7))
    if hole == "q":
        return f"'{draw.pick(ALPHABET)}'"
    assert hole == "t", hole
    return "'" + "".join(draw.pick(ALPHABET) for _ in range(1 + draw.below(2))) + "'"


@lru_cache(1 << 15)
def run_step(expression: str) -> Callable[..., object]:
    """The function of `@` and `&` that a filled template computes."""
    return compile_own(f"def f(p, r):\n    return {expression.replace('@', 'p').replace('&', 'r')}")


def is_small(value: object) -> bool:
    """Whether a value is within the limits of this dialect."""
    if isinstance(value, int):
        return -LARGEST_INT <= value <= LARGEST_INT
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return isinstance(value, list) and len(value) <= LONGEST_LIST and all(map(is_small, value))
