"""When an output counts on LiveCodeBench: its runner's rules, on text and on values.

Standard output: stripped lines are compared one by one; a line that differs counts if both hold the same numbers as decimals.
Functions: the returned value must equal the expected one as Python's `==` has it, a tuple counting as a list.
"""

from decimal import Decimal, InvalidOperation

from stages.core.suites.harness import ReturnedValue, text_digest
from stages.core.values.canonical import LiteralError, parse_value

_LIMIT = 1 << 24


def output_counts(written: ReturnedValue, expected: str) -> bool:
    """Whether what a program wrote is what was expected; a very long output (its digest) must be the same line by line.

    The solution may have written this line itself: one that is no text counts as another output.
    """
    wanted = _lines(expected)
    if written.tag == "d":
        return written == text_digest(ascii("\n".join(wanted)))
    try:
        text = written.value()
    except LiteralError:
        return False
    if not isinstance(text, str) or text.strip().count("\n") + 1 != len(wanted):
        return False
    return all(_line_counts(a, b) for a, b in zip(_lines(text), wanted, strict=True))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _line_counts(given: str, wanted: str) -> bool:
    if given == wanted:
        return True
    try:
        return list(map(Decimal, given.split())) == list(map(Decimal, wanted.split()))
    except InvalidOperation:
        return False


def value_counts(returned: ReturnedValue, expected: str) -> bool:
    """Return whether a returned value is the expected literal's value; a very long one (its digest) must have the same text."""
    if returned in (ReturnedValue("v", expected), text_digest(expected)):
        return True
    if returned.tag not in "vs":
        return False
    try:
        return bool(returned.value() == parse_value(expected, _LIMIT))
    except LiteralError:
        return False
