"""The value or the arguments that a line begins with, where a model went on writing behind them.

A model that completes `assert f(x) ==` or `assert y == f` often adds a message, a comment or prose. Python accepts the first
two, and the answer is there in each case. Time is linear in the text, and nothing is evaluated.
"""

import re
from collections.abc import Iterator

_BEHIND_A_VALUE = (",", "#", ";")
_PROSE = re.compile(r"(?<=\s)(?!(?:and|else|for|if|in|not|or)\b)[A-Za-z]")
_PIECE = re.compile(r"'(?:[^\\'\n]++|\\.)*+'|\"(?:[^\\\"\n]++|\\.)*+\"|[^'\"\[\](){},#;]++|[^'\"]", re.S)
# It does not match a string that is not closed: nothing behind that can be told.


def leading_value(line: str) -> tuple[str, bool]:
    """Return the text before a comma, a comment, another statement or prose, and whether any of these ended it."""
    for start, mark in _outside(line):
        if mark in _BEHIND_A_VALUE:
            return line[:start], True
        if mark[0] not in "'\"" and (prose := _PROSE.search(mark)):
            return line[: start + prose.start()], True
    return line, False


def leading_arguments(line: str) -> str | None:
    """Return the text before the parenthesis that closes the call, outside strings and brackets; None if there is none."""
    return next((line[:start] for start, mark in _outside(line) if mark == ")"), None)


def call_arguments(line: str) -> tuple[str, int] | None:
    """Return the arguments of the call that the line begins with, `(…)`, and the place behind it; None if there is none.

    The model writes the parenthesis itself: tokenizers join it with what follows, and a prompt that ends with `(` alone makes
    strings, lists and dicts unlikely, whose usual token begins with `(`.
    """
    start = len(line) - len(line.lstrip()) + len("(")
    if line[:start].lstrip() != "(" or (found := leading_arguments(line[start:])) is None:
        return None
    return found, start + len(found) + len(")")


def _outside(line: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces outside brackets with their positions: strings, brackets, separators, and the text between them."""
    depth = at = 0
    while piece := _PIECE.match(line, at):
        mark, at = piece[0], piece.end()
        if depth == 0:
            yield piece.start(), mark
        depth += (mark in "([{") - (mark in ")]}")
