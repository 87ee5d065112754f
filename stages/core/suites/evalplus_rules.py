"""When a returned value counts on HumanEval+ and MBPP+: EvalPlus's rules (version 0.3.1), on values that came out as text.

Equality is Python's (`1 == 1.0`), as there. A float, or a list or tuple of floats, is compared with a tolerance: the task's own
absolute one, or 1e-6 where it has none, and 1e-7 relative; the types must then be the same. Once a float was expected the
tolerance holds for the rest of that run, as there. Some tasks have an oracle of their own. Deviations: a value of a foreign
class whose `==` says yes to everything counts as wrong, and so does an array of numpy, which the sandbox does not have.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stages.core.suites.harness import ReturnedValue
from stages.core.suites.problems import Problem
from stages.core.values.canonical import LiteralError, parse_value

# Which part of what is returned counts: the members as a set, or only whether there is something.
_SETS = "similar_elements find_char_long common_in_nested_lists extract_singly larg_nnum intersection_array find_dissimilar Diff"
SETS = frozenset(_SETS.split())
PRESENCE = frozenset(["check_str", "text_match_three", "text_starta_endb"])
RELATIVE, FLOAT_TOLERANCE = 1e-7, 1e-6
_LIMIT = 1 << 24


def shape(problem: Problem, reference: bool) -> str:
    """What of a value leaves the sandbox, see harness.function_job."""
    if problem.group != "mbpp":
        return ""
    if problem.entry_point in SETS:
        return "set"
    if problem.entry_point in PRESENCE:
        return "is_some" if reference else "some"
    return ""


def failing(problem: Problem, inputs: Sequence[str], returned: Sequence[ReturnedValue], expected: Sequence[ReturnedValue]) -> str:
    """Why the run does not pass, naming the first bad test; empty if it does."""
    tolerance = problem.tolerance
    for number, right in enumerate(expected):
        if number >= len(returned):
            return f"test {number + 1}: the run ended before it"
        given = returned[number]
        if given.tag == "e":
            return f"test {number + 1}: {given.text[1:-1]}"
        if "d" in (given.tag, right.tag):
            if given != right:
                return f"test {number + 1}: another value"
            continue
        same_text = given == right and given.tag in "vs" and "nan" not in given.text
        if same_text and problem.entry_point != "find_zero" and not _floats_at_all(right.text):
            continue
        try:
            wanted, value = _value(right), _value(given)
            verdict, tolerance = _equal(problem, parse_value(inputs[number], _LIMIT), value, wanted, given.tag, tolerance)
        except (LiteralError, TypeError, ValueError, OverflowError, ArithmeticError) as error:
            return f"test {number + 1}: {error}"
        if not verdict:
            return f"test {number + 1}: another value"
    return ""


def _floats_at_all(text: str) -> bool:
    return "." in text or "inf" in text or "e" in text


class _Opaque:
    """A value of a type that no plain value equals."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


def _value(one: ReturnedValue) -> Any:
    return _Opaque() if one.tag == "o" else one.value()


def _equal(problem: Problem, arguments: Any, value: Any, wanted: Any, tag: str, tolerance: float) -> tuple[bool, float]:
    """Return whether the value counts, and the tolerance for the following tests."""
    if problem.group == "humaneval" and problem.entry_point == "find_zero":
        return abs(sum(c * math.pow(value, i) for i, c in enumerate(arguments[0]))) <= tolerance, tolerance
    exact = value == wanted or _oracle(problem, arguments, value, tolerance)
    if problem.group == "mbpp" and problem.entry_point in PRESENCE:
        exact = value == wanted if isinstance(value, bool) else False
    if tolerance == 0 and _floats(wanted):
        tolerance = FLOAT_TOLERANCE
    if exact or tolerance == 0:
        return bool(exact), tolerance
    if tag != "v" or type(value) is not type(wanted):
        return False, tolerance
    if isinstance(wanted, list | tuple) and len(value) != len(wanted):
        return False, tolerance
    return bool(np.allclose(value, wanted, rtol=RELATIVE, atol=tolerance)), tolerance


def _floats(value: Any) -> bool:
    listed = isinstance(value, list | tuple) and bool(value) and all(isinstance(item, float) for item in value)
    return isinstance(value, float) or listed


def _oracle(problem: Problem, arguments: Any, value: Any, tolerance: float) -> bool:
    """Judge the tasks whose reference is one of several correct answers."""
    name = problem.entry_point if problem.group == "mbpp" else ""
    if name == "are_equivalent":
        return True
    if name == "sum_div":
        return bool(value == 0)
    if name == "surface_Area":
        return bool(abs(value - _surface(*arguments)) <= tolerance)
    if name == "digit_distance_nums":
        return bool(value == _digit_distance(*arguments))
    return False


def _surface(base: float, height: float) -> int:
    """Of a pyramid on a square, `height` being that of its apex."""
    return round(base**2 + 2 * base * math.sqrt((base / 2) ** 2 + height**2))


def _digit_distance(first: int, second: int) -> int:
    """Digit by digit, the shorter number padded with zeros on the left."""
    size = max(len(str(first)), len(str(second)))
    pairs = zip(str(first).zfill(size), str(second).zfill(size), strict=True)
    return sum(abs(int(a) - int(b)) for a, b in pairs)
