"""Text of others in a Markdown page: shown as it is, never obeyed as markup, HTML or a link."""

import string
from collections.abc import Mapping
from typing import Any

from flows.run.leaking import warning
from stages.core.highlight import visible

_PLAIN = frozenset(string.ascii_letters + string.digits + " ._/=+-")
_MARKS = frozenset(string.punctuation)


def one_line(text: object, limit: int = 200) -> str:
    """Return the text on one line with hidden characters written out, cut after `limit` characters."""
    return visible(" ".join(str(text).split()), limit)


def escaped(text: object) -> str:
    """Return the text on one line, each mark that Markdown could obey behind a backslash."""
    return "".join(f"\\{one}" if one in _MARKS else one for one in one_line(text))


def code(text: object) -> str:
    """Return a name as code; one with unusual characters as escaped text, because a code span cannot hold every text."""
    plain = str(text)
    return f"`{plain}`" if plain.strip() and len(plain) <= 200 and _PLAIN.issuperset(plain) else escaped(plain) or "–"


def block(text: str) -> str:
    """Return lines as an indented code block, which no text inside can end."""
    return "\n".join(f"    {visible(line)}" for line in text.split("\n"))


def leak_warning(description: Mapping[str, Any]) -> str:
    """Return the paragraph about a judge that leaked on purpose; empty for an ordinary run."""
    text = warning(description)
    return f"**Warning.** {escaped(text)}\n\n" if text else ""


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
