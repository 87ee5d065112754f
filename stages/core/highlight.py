"""Render text of others as inert HTML or Markdown: always escaped, control characters visible, Python highlighted."""

import html
import re

from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import PythonLexer  # type: ignore[import-untyped]

# Characters that a terminal or browser obeys rather than shows, or shows as nothing: C0, C1, line separators, surrogates, and
# what Unicode calls default ignorable (zero-width, direction marks, fillers of Hangul, variation selectors, tags).
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|!#])")
LONGEST = 16_000
_LEXER, _FORMATTER = PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)


def visible(text: str, limit: int = 0) -> str:
    """Return the text with hidden characters written out (`\\x1b`, `\\u202e`), cut after `limit` characters with a note."""
    cut = f" … ({len(text) - limit:,} more characters)" if limit and len(text) > limit else ""
    return _HIDDEN.sub(_written, text[:limit] if cut else text) + cut


def markdown_line(text: str) -> str:
    """Return the text for a line or a table's cell of Markdown, without anything that Markdown or HTML would interpret."""
    return _MARKDOWN.sub(r"\\\1", visible(text).replace("\n", " "))


def text_html(text: str, limit: int = 0) -> str:
    """Return the text, escaped."""
    return html.escape(visible(text, limit))


def python_html(code: str, limit: int = 0) -> str:
    """Return the program in spans of Pygments' short classes, escaped; one of more than LONGEST characters without colours.

    Lines of white space alone become empty: for n of them Pygments needs time in proportion to n².
    """
    text = visible(code, limit)
    if len(text) > LONGEST:
        return html.escape(text)
    lines = [line if line.strip() else "" for line in text.split("\n")]
    return str(highlight("\n".join(lines), _LEXER, _FORMATTER)).removesuffix("\n")


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
