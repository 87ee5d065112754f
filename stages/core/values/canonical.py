"""Canonical typed values: the form in which answers are parsed and compared.

Model text is read by the bounded parser in `literals.py`, never by `ast` or `eval`. What comes out holds exact builtin types
only, so everything here may use plain Python on it. Three texts of a value:

* canonical: ASCII, sets sorted, dicts sorted by key; two values are equal (typed: `1`, `1.0`, `True` differ, `-0.0` differs
  from `0.0`, NaN equals NaN, dict and set order do not matter) exactly when their canonical texts are the same bytes;
* literal: as `repr` writes it (dict order kept, sets sorted, `nan`, `inf`, `-inf`), for people and prompts;
* wire: ASCII, evaluated inside the sandbox to make the arguments; complex numbers as calls, since `-2j` loses a sign, and NaN as
  a call, since each is an object of its own, and so a member of its own of a set.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stages.core.values.literals import MAX_NODES, MAX_TEXT, LiteralError, OverLimit, parse_arguments, parse_value

__all__ = [
    "LiteralError",
    "OverLimit",
    "TooLarge",
    "arguments_literal",
    "arguments_wire",
    "canonical",
    "canonical_arguments",
    "is_settled",
    "literal",
    "parse_arguments",
    "parse_value",
    "to_literal",
]

_PLAIN = frozenset([int, bool, float, type(None)])  # `repr` writes them, and lists and tuples of them, as we do
_NATURAL = frozenset([int, bool, float, str, bytes])  # what a set's order compares as it is
_ATOM = r"(?:0|-?[1-9][0-9]*+|True|False|None|'[ -&(-\[\]-~]*+')"
_SHORT = 4_000  # characters: fewer nodes, levels and digits than any limit


def _sequence(item: str) -> str:
    return rf"\[(?:{item}(?:, {item})*+)?\]|\((?:{item},|{item}(?:, {item})++)?\)"


_FLAT = f"(?:{_ATOM}|{_sequence(_ATOM)})"
_SETTLED = re.compile(f"{_ATOM}|{_sequence(_FLAT)}")
_RANKS = {type(None): 0, bool: 1, int: 2, float: 3, complex: 4, str: 5, bytes: 6, tuple: 7, frozenset: 8}


@dataclass(frozen=True, eq=False)
class _Style:
    """How a text is written: strings, whether dicts are sorted by key, complex numbers, NaN."""

    text: Callable[[object], str]
    sort_dicts: bool
    call_complex: bool
    call_nan: bool


_CANONICAL, _WIRE = _Style(ascii, True, True, False), _Style(ascii, False, True, True)
_LITERAL = _Style(repr, False, False, False)


class TooLarge(ValueError):
    """The value's text is over the size limit."""


def is_settled(text: str) -> bool:
    """Return whether a text is clearly both the canonical text and the literal of a value: most are, and need no parsing.

    True for atoms without escapes, and for lists and tuples of them up to two levels deep, as `repr` writes them.
    """
    return len(text) < _SHORT and _SETTLED.fullmatch(text) is not None


def canonical(value: object) -> str:
    """The canonical typed text of a value of exact builtin types."""
    return _emit(value, _CANONICAL)


def literal(value: object) -> str:
    """The value as `repr` writes it, sets sorted. Raises TooLarge over 64 KiB."""
    text = _emit(value, _LITERAL)
    if len(text) > MAX_TEXT:
        raise TooLarge(f"the value's text has {len(text)} characters, over {MAX_TEXT}")
    return text


def to_literal(text: str) -> str:
    """The literal text of a canonical text."""
    return literal(parse_value(text, limit=12 * MAX_TEXT))


def arguments_wire(arguments: tuple[object, ...]) -> str:
    """The text that the sandbox evaluates to the tuple of arguments, dict order kept."""
    return _emit(arguments, _WIRE)


def arguments_literal(arguments: tuple[object, ...]) -> str:
    """Comma-separated literals, as in a call."""
    return ", ".join(literal(argument) for argument in arguments)


def respelled_arguments(text: str) -> str:
    """Return an argument list as `repr` spells it: `[1,2]` and `[1, 2]` are one. Other texts stay as they are."""
    try:
        return arguments_literal(parse_arguments(text))
    except (LiteralError, TooLarge):
        return text.strip()


def canonical_arguments(text: str) -> str:
    """The canonical text of an argument list: equal inputs have equal ones. Raises LiteralError."""
    return canonical(parse_arguments(text))


def _emit(value: Any, style: _Style) -> str:
    """One text of a value. Every part is written once, so that the work is linear in the text (members of sets included)."""
    kind = type(value)
    if kind is int or kind is bool or value is None:
        return repr(value)
    if kind is str or kind is bytes:
        return style.text(value)
    if (kind is list or kind is tuple) and _PLAIN.issuperset(map(type, value)):
        text = repr(value)
        if not style.call_nan or "nan" not in text:
            return text
    if kind is list:
        return "[" + ", ".join([_emit(item, style) for item in value]) + "]"
    if kind is tuple:
        inner = ", ".join([_emit(item, style) for item in value])
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if kind is dict:
        pairs = [(_emit(key, style), _emit(item, style), key) for key, item in value.items()]
        if style.sort_dicts:  # by the item, too, because several NaNs may be keys
            pairs.sort(key=lambda pair: (_order(pair[2], pair[0]), pair[1]))
        return "{" + ", ".join([f"{text}: {item}" for text, item, _ in pairs]) + "}"
    if kind is set or kind is frozenset:
        inner = ", ".join([text for text, _ in _sorted(value, style)])
        if kind is set:
            return "{" + inner + "}" if value else "set()"
        return "frozenset({" + inner + "})" if value else "frozenset()"
    if kind is complex and style.call_complex:
        return f"complex({value.real!r}, {value.imag!r})"
    if kind is float and style.call_nan and value != value:
        return "float('nan')"
    return repr(value)


def _sorted(members: Iterable[Any], style: _Style) -> list[tuple[str, Any]]:
    """(text, member) in the order of canonical texts."""
    written = [(_emit(member, style), member) for member in members]
    if style is _LITERAL:  # each level of sets writes its members' canonical texts too, and levels are few
        return sorted(written, key=lambda pair: _order(pair[1], "" if type(pair[1]) in _NATURAL else canonical(pair[1])))
    return sorted(written, key=lambda pair: _order(pair[1], pair[0]))


def _order(value: object, text: str) -> tuple[Any, ...]:
    """A total order over hashable values: by type, numbers and strings naturally, the rest by their canonical text."""
    kind = type(value)
    if kind is float:
        assert isinstance(value, float)
        return (3, math.isnan(value), 0.0 if math.isnan(value) else value)
    if kind in (int, bool, str, bytes):
        return (_RANKS[kind], False, value)
    return (_RANKS[kind], False, text)


assert MAX_NODES == 10_000  # the sandbox's encoder holds the same number
