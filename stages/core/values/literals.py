"""A bounded parser of Python literals that runs no code and never calls `ast`: the only reader of answers.

Accepts what `repr` writes for the builtin value types and what people write in a call: numbers in every notation, strings
with every prefix and escape (not f-strings), implicit concatenation, containers, `set()`, `frozenset({…})`, `nan`, `inf`,
`float('inf')`, `complex(…)`. No comments, names, operators, comprehensions or calls otherwise. A complex number is read as
`repr` wrote it (`-2j` has real part +0.0), so that text and value are one to one. Any text gives a value or a LiteralError. The
work is linear in the text, and the memory is a few bytes per character; depth, nodes, digits and comparisons of set members are
bounded.
"""

import re
from typing import Any

from stages.core.values.literal_sets import Hashing
from stages.core.values.literal_tokens import TOKEN, LiteralError, OverLimit, number, string

__all__ = ["MAX_DEPTH", "MAX_NODES", "MAX_TEXT", "LiteralError", "OverLimit", "parse_arguments", "parse_value"]

MAX_TEXT, MAX_DEPTH, MAX_NODES = 65_536, 50, 10_000

_INTEGERS = re.compile(r"(?:-?(?:0|[1-9][0-9]{0,17}), )++-?(?:0|[1-9][0-9]{0,17})(?=\])")
_CONSTANTS = {"None": None, "True": True, "False": False}
_FLOATS = frozenset(["nan", "inf", "-inf", "infinity", "+inf"])


def parse_value(text: str, limit: int = MAX_TEXT) -> object:
    """The value of a literal. Raises LiteralError."""
    parser = _Parser(text, limit)
    value = parser.value(0)
    if parser.kind == "mark" and parser.text == ",":  # `1, 2` is a tuple, as in Python
        value = (value, *parser.rest_of_list("end", 1))
    parser.expect_end()
    return value


def parse_arguments(text: str, limit: int = MAX_TEXT) -> tuple[object, ...]:
    """The values of comma-separated literals, as in a call; none for blank text. Raises LiteralError."""
    parser = _Parser(text, limit)
    if parser.kind == "end":
        return ()
    values = [parser.value(0)]
    if parser.text == ",":
        values += parser.rest_of_list("end", 1)
    parser.expect_end()
    return tuple(values)


class _Parser:
    """One token of look-ahead over the text."""

    def __init__(self, text: str, limit: int):
        if len(text) > limit:
            raise LiteralError(f"text of {len(text)} characters, over {limit}")
        self.source, self.position, self.nodes = text, 0, 0
        self.hashing = Hashing()
        self.advance()

    def advance(self) -> None:
        found = TOKEN.match(self.source, self.position)
        if not found:
            raise LiteralError(f"not a literal at character {self.position + 1}")
        self.match, self.kind = found, found.lastgroup or ""
        if self.kind not in ("string", "number", "name", "mark", "end"):  # lastgroup may be a part of a string
            self.kind = "string"
        self.text = found[self.kind]
        self.position = found.end()

    def fail(self) -> LiteralError:
        return LiteralError(f"not a literal near {self.text[:20]!r} before character {self.position + 1}")

    def expect(self, mark: str) -> None:
        if self.kind != "mark" or self.text != mark:
            raise self.fail()
        self.advance()

    def expect_end(self) -> None:
        if self.kind != "end":
            raise self.fail()

    def value(self, depth: int) -> object:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > 3 * MAX_NODES:
            raise OverLimit("nested too deep" if depth > MAX_DEPTH else "too many values")
        if self.kind == "string":
            return self.strings()
        if self.kind == "number" or self.text in ("+", "-"):
            return self.number()
        if self.kind == "name":
            return self.named(depth)
        return self.container(depth)

    def container(self, depth: int) -> object:
        mark = self.text
        if self.kind != "mark" or mark not in "[({":
            raise self.fail()
        self.advance()
        if mark == "[":
            return self.items("]", depth)
        if mark == "{":
            return self.braces(depth)
        return self.parentheses(depth)

    def parentheses(self, depth: int) -> object:
        if self.text == ")" and self.kind == "mark":
            self.advance()
            return ()
        value = self.value(depth + 1)
        if self.kind == "mark" and self.text == ",":
            value = (value, *self.rest_of_list(")", depth + 1))
        self.expect(")")
        return value

    def items(self, close: str, depth: int) -> list[object]:
        values: list[object] = self.plain_integers(depth)
        if not values and not (self.kind == "mark" and self.text == close):
            values.append(self.value(depth + 1))
            if self.text == "," and self.kind == "mark":
                values += self.rest_of_list(close, depth + 1)
        self.expect(close)
        return values

    def plain_integers(self, depth: int) -> list[object]:
        """All members of a list of short integers as `repr` writes it, read at once; none where it is anything else."""
        found = _INTEGERS.match(self.source, self.match.start())
        if not found or depth >= MAX_DEPTH:
            return []
        values: list[object] = [int(text) for text in found[0].split(", ")]
        self.nodes += len(values)
        if self.nodes > 3 * MAX_NODES:
            raise OverLimit("too many values")
        self.position = found.end()
        self.advance()
        return values

    def rest_of_list(self, close: str, depth: int) -> list[object]:
        """What follows a first item: `, item` as often as there is one, a trailing comma allowed; `close` is left in place."""
        values: list[object] = []
        while self.kind == "mark" and self.text == ",":
            self.advance()
            if self.kind == "end" if close == "end" else (self.kind == "mark" and self.text == close):
                break
            values.append(self.value(depth))
        return values

    def braces(self, depth: int) -> object:
        if self.kind == "mark" and self.text == "}":
            self.advance()
            return {}
        first = self.value(depth + 1)
        try:
            if not (self.kind == "mark" and self.text == ":"):
                rest = self.rest_of_list("}", depth + 1)
                self.expect("}")
                return self.hashing.members([first, *rest])
            return self.pairs(first, depth)
        except TypeError as error:
            raise LiteralError("an unhashable key or member") from error

    def pairs(self, key: object, depth: int) -> dict[object, object]:
        result: dict[object, object] = {}
        met: dict[int, tuple[int, int]] = {}
        while True:
            self.expect(":")
            value = self.value(depth + 1)
            self.hashing.meet(key, result, met)
            result[key] = value
            if self.kind == "mark" and self.text == ",":
                self.advance()
                if self.text != "}" or self.kind != "mark":
                    key = self.value(depth + 1)
                    continue
            self.expect("}")
            return result

    def named(self, depth: int) -> object:
        name = self.text
        if name in _CONSTANTS:
            self.advance()
            return _CONSTANTS[name]
        if name in ("nan", "inf"):  # a NaN of its own each time: a set or a dict has one member for every NaN object
            self.advance()
            return float(name)
        if name not in ("set", "frozenset", "float", "complex"):
            raise self.fail()
        self.advance()
        self.expect("(")
        arguments = self.items(")", depth)
        return self.called(name, arguments)

    def called(self, name: str, arguments: list[object]) -> object:
        if not arguments and name in ("set", "frozenset"):
            return set() if name == "set" else frozenset()
        if name == "frozenset" and len(arguments) == 1 and type(arguments[0]) in (set, list, tuple, frozenset):
            try:
                return self.hashing.frozen(arguments[0])  # type: ignore[arg-type]
            except TypeError as error:
                raise LiteralError("an unhashable member") from error
        if name == "float" and len(arguments) == 1 and isinstance(arguments[0], str) and arguments[0].lower() in _FLOATS:
            return float(arguments[0])
        if name == "complex" and len(arguments) == 2 and all(type(part) in (int, float) for part in arguments):
            real, imaginary = map(_real, arguments)
            return complex(real, imaginary)
        raise LiteralError(f"not a literal: {name}(…)")

    def number(self) -> object:
        sign = 1 if self.kind == "number" else self.sign()
        first = self.magnitude()
        if isinstance(first, complex):
            return complex(0.0, sign * first.imag)
        if self.kind == "mark" and self.text in ("+", "-"):  # only `real ± imaginary j` may follow
            imaginary_sign = -1.0 if self.text == "-" else 1.0
            self.advance()
            second = self.magnitude()
            if not isinstance(second, complex):
                raise self.fail()
            return complex(sign * _real(first), imaginary_sign * second.imag)
        return sign * first if isinstance(first, float) or first else first

    def sign(self) -> int:
        """Leading signs, as many as there are. `-0` is the integer 0, `-0.0` keeps its sign."""
        sign = 1
        while self.kind == "mark" and self.text in ("+", "-"):
            sign = -sign if self.text == "-" else sign
            self.advance()
        return sign

    def magnitude(self) -> int | float | complex:
        text, kind = self.text, self.kind
        if kind == "number" and len(text) < 19 and text.isdigit():  # most of what there is
            self.advance()
            return int(text)
        if kind == "name" and text in ("nan", "inf", "nanj", "infj"):
            self.advance()
            return complex(0.0, float(text[:-1])) if text.endswith("j") else float(text)
        if kind != "number":
            raise self.fail()
        self.advance()
        return number(text.replace("_", ""))

    def strings(self) -> str | bytes:
        parts: list[str | bytes] = []
        while self.kind == "string":
            parts.append(string(self.match))
            self.advance()
        if len(parts) == 1:
            return parts[0]
        if len({type(part) for part in parts}) > 1:
            raise LiteralError("bytes and text side by side")
        return type(parts[0])().join(parts)  # type: ignore[arg-type]


def _real(number: Any) -> float:
    """A part of a complex number."""
    try:
        return float(number)
    except OverflowError as error:
        raise LiteralError("a complex number with a part beyond floats") from error
