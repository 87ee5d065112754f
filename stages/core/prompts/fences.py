"""Code fences in a completion, read in one pass. Strings and comments of a program are skipped: backticks there close nothing.

Where a closing fence is looked for from many openings, the same places would be read again and again. They are not: a string
that was found unclosed, or closed at some place, is so for every start inside it, and a place from which no fence was found to
close is not passed twice.
"""

import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

_LABELS = {"python": "python", "py": "python", "python3": "python", "input": "input", "output": "output", "message": "message"}
# An opening fence begins its line; one with a known label may also end a line of prose. After a known label that begins its
# line, the content may start on the same line.
_OPENING = re.compile(
    r"^[ \t]*+```[ \t]*+(?:(?P<known>python3?|py|input|output|message)\b:?[ \t]*+\n?|(?P<other>[^\s`]*+)[ \t]*+\n)"
    r"|(?<=[ \t:.])```(?P<behind>python3?|py|input|output|message)[ \t]*+\n",
    re.M | re.I,
)
_CLOSING = re.compile(r"```[ \t]*+$", re.M)
_MARK = re.compile(r"#[^\n]*+|\"\"\"|'''|[\"']|```")
_INSIDE = {
    '"""': re.compile(r'(?:[^\\"]++|\\.|"(?!""))*+', re.S),
    "'''": re.compile(r"(?:[^\\']++|\\.|'(?!''))*+", re.S),
    '"': re.compile(r'(?:[^\\"\n]++|\\.)*+', re.S),
    "'": re.compile(r"(?:[^\\'\n]++|\\.)*+", re.S),
}


@dataclass(frozen=True)
class Fence:
    """A fenced block: its label in lower case, its text, and where it lies."""

    label: str
    text: str
    start: int
    end: int


def closed_fences(text: str) -> list[Fence]:
    """The closed fences, in order."""
    found, at, code = [], 0, _Code(text)
    last = max((closing.start() for closing in _CLOSING.finditer(text)), default=-1)
    while (opening := _OPENING.search(text, at)) and opening.end() <= last:
        label = _LABELS.get((opening["known"] or opening["behind"] or "").lower(), (opening["other"] or "").lower())
        closing = _CLOSING.search(text, opening.end()) if label == "message" else code.closing(opening.end())
        at = opening.end()
        if closing is not None:
            content = textwrap.dedent(text[opening.end() : closing.start()]).strip("\n")
            found.append(Fence(label, content.rstrip() if label == "python" else content.strip(), opening.start(), closing.end()))
            at = closing.end()
    return found


def ended_fences(text: str, truncated: bool) -> list[Fence]:
    """The closed fences of a completion. Its own end closes the last one, unless the length limit cut it off."""
    return closed_fences(text if truncated else text + "\n```")


def blanked(text: str) -> str:
    """Return the text with the contents of fences replaced by spaces; all positions are unchanged."""
    return "".join(_blanked(text))


def _blanked(text: str) -> Iterator[str]:
    at = 0
    for fence in closed_fences(text):
        yield text[at : fence.start]
        yield " " * (fence.end - fence.start)
        at = fence.end
    yield text[at:]


class _Code:
    """A text read as Python's strings and comments, from one place or another."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.passed: set[int] = set()
        self.begins: dict[str, list[int]] = {quotes: [] for quotes in _INSIDE}
        self.ends: dict[str, dict[int, tuple[int, int]]] = {quotes: {} for quotes in _INSIDE}

    def closing(self, at: int) -> re.Match[str] | None:
        """The first closing fence outside strings and comments, reading from `at`."""
        while (mark := _MARK.search(self.text, at)) and mark.start() not in self.passed:
            closing = _CLOSING.match(self.text, mark.start()) if mark[0] == "```" else None
            if closing:
                return closing
            self.passed.add(mark.start())
            at = self._after(mark)
        return None

    def _after(self, mark: re.Match[str]) -> int:
        """Where reading continues: behind the comment or string that begins here, or behind this character."""
        if mark[0][0] == "#":
            return mark.end()
        for quotes in dict.fromkeys((mark[0], mark[0][0])):  # an unclosed triple quote is an empty string and a quote
            if quotes in _INSIDE and (end := self._end(quotes, mark.start() + len(quotes))) >= 0:
                return end
        return mark.start() + 1

    def _end(self, quotes: str, begin: int) -> int:
        """Where the string whose content begins here ends, -1 if it does not.

        A content that begins inside one already read is a part of it: what stands before is a quote, so backslashes are in step.
        """
        begins, ends = self.begins[quotes], self.ends[quotes]
        place = bisect_right(begins, begin)
        if place and begin <= ends[begins[place - 1]][0]:
            return ends[begins[place - 1]][1]
        known = begins[place] if place < len(begins) else len(self.text)
        found = _INSIDE[quotes].match(self.text, begin, known + 2)  # two more, to see all of a triple quote
        assert found is not None, "the pattern matches the empty text too"
        end = found.end() + len(quotes) if self.text.startswith(quotes, found.end()) else -1
        begins.insert(place, begin)
        ends[begin] = ends[known] if known in ends and found.end() >= known else (found.end(), end)
        return ends[begin][1]
