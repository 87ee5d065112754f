"""The `id` of a line that cannot be parsed as a JSON object (too long, truncated, invalid): one pass, constant memory.

The scanner follows a line's top-level keys through its bytes, chunk by chunk, and neither keeps nor checks the rest.
"""

import json
import re

_LONGEST, _MARKS = 1_000, 200_000  # maximum bytes of a key or an id; marks after which scanning of a line stops
_NEXT = re.compile(rb'["{}\[\],:]')
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\[\s\S])*+')


class IdReader:
    """Scanner of one line: `feed` its chunks, then read `identity`."""

    def __init__(self) -> None:
        self.identity: str | int | None = None
        self._depth, self._inside, self._escaped = 0, False, False
        self._kept: bytearray | None = bytearray()  # the token being read at the top level, None once it is too long
        self._key: bytes | None = None
        self._marks = 0

    def feed(self, data: bytes) -> None:
        """Scan the next bytes of the line."""
        at = 0
        while at < len(data) and self._marks < _MARKS:
            self._marks += 1
            at = self._text(data, at) if self._inside else self._outside(data, at)

    def _outside(self, data: bytes, at: int) -> int:
        """Read up to the next mark."""
        found = _NEXT.search(data, at)
        end = found.start() if found else len(data)
        self._keep(data, at, end)
        if found is None:
            return end
        mark = found[0]
        if mark == b'"':
            self._keep(data, end, end + 1)
            self._inside = True
        elif mark in b"{[":
            self._depth += 1
            self._kept = bytearray() if self._depth == 1 else None
        elif self._depth == 1 and mark == b":":
            self._key, self._kept = self._token(), bytearray()
        elif self._depth == 1:  # a comma, or the end of the object
            self._take()
        if mark in b"}]":
            self._depth -= 1
            self._kept = None
        return end + 1

    def _text(self, data: bytes, at: int) -> int:
        """Read a string up to its end, or to the end of the chunk, which may split an escape."""
        found = _IN_TEXT.match(data, at + self._escaped)
        assert found is not None, "the pattern matches the empty text too"
        end = found.end()
        self._escaped, self._inside = data[end : end + 1] == b"\\", data[end : end + 1] != b'"'
        self._keep(data, at, end + 1)
        return end + 1

    def _keep(self, data: bytes, at: int, end: int) -> None:
        """Add to the token if it is at the top level and not too long to be an id."""
        if self._depth == 1 and self._kept is not None:
            if len(self._kept) + end - at > _LONGEST:
                self._kept = None
            else:
                self._kept += data[at:end]

    def _take(self) -> None:
        """Handle the end of a top-level value."""
        value = self._token()
        self._kept = bytearray()
        if self._key is not None and value is not None and _scalar(self._key) == "id":
            found = _scalar(value)
            self.identity = found if isinstance(found, str | int) and not isinstance(found, bool) else None
        self._key = None

    def _token(self) -> bytes | None:
        return None if self._kept is None else bytes(self._kept)


def _scalar(token: bytes) -> object:
    try:
        return json.loads(token)
    except ValueError:
        return None


def line_id(data: bytes) -> str | int | None:
    """Return the id in a whole line, None if it cannot be read."""
    reader = IdReader()
    reader.feed(data)
    return reader.identity
