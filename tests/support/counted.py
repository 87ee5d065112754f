"""Counted work, for tests of cost: lines of ours that run, steps of a regular expression, requests to a store. Never seconds."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]  # what `re` itself reads patterns with
from types import FrameType
from typing import Any

from flows.storage import Store

OURS = tuple(str(Path(__file__).resolve().parents[2] / folder) for folder in ("stages", "flows"))


def lines_run(work: Callable[[], object], *expected: type[Exception]) -> int:
    """How many lines of `stages` and `flows` run while `work` does; the expected errors are taken for an end."""
    count = 0

    def line(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        with suppress(*expected):
            work()
    finally:
        sys.settrace(before)
    return count


class _Engine:
    """A regular expression matched by backtracking as `re` does it, step by step and counted; slow, for short texts.

    Reads `re`'s own syntax tree. A step is a character looked at, a branch taken or a repetition given back. `re` takes no more:
    it skips some starts by their first character.
    """

    def __init__(self, pattern: re.Pattern[Any], text: str) -> None:
        source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
        self.text, self.steps, self.groups = text, 0, set[int]()
        self.found: list[tuple[int, int]] = []
        self.flags = pattern.flags
        self.tree = list(_parser.parse(source, pattern.flags & ~re.UNICODE))

    def finditer(self) -> int:
        """The steps of finding every match in the text."""
        at = 0
        while at <= len(self.text):
            self.groups.clear()
            end = self.match(self.tree, 0, at, lambda end: end)
            self.found += [(at, end)] if end is not None else []
            at = at + 1 if end is None or end == at else end
        return self.steps

    def match(self, nodes: list[Any], place: int, at: int, then: Callable[[int], int | None]) -> int | None:
        """Where the whole ends when the nodes from `place` on match here and `then` the rest; None: it does not."""
        self.steps += 1
        if place == len(nodes):
            return then(at)
        name, value = str(nodes[place][0]), nodes[place][1]

        def rest(end: int) -> int | None:
            return self.match(nodes, place + 1, end, then)

        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return rest(at + 1) if self.fits(name, value, at) else None
        if name == "AT":
            return rest(at) if self.stands(str(value), at) else None
        if name in ("ASSERT", "ASSERT_NOT"):
            inner = list(value[1])
            start = at if value[0] > 0 else at - value[1].getwidth()[0]
            found = None if start < 0 else self.match(inner, 0, start, lambda end: end)
            return rest(at) if (found is not None) == (name == "ASSERT") else None
        if name == "SUBPATTERN":
            return self.group(value[0], list(value[3]), at, rest)
        if name == "BRANCH":
            return next((end for branch in value[1] if (end := self.match(list(branch), 0, at, rest)) is not None), None)
        if name == "ATOMIC_GROUP":
            end = self.match(list(value), 0, at, lambda end: end)
            return None if end is None else rest(end)
        if name == "GROUPREF_EXISTS":
            chosen = value[1] if value[0] in self.groups else value[2] or []
            return self.match(list(chosen), 0, at, rest)
        return self.repeat(name, value[0], value[1], list(value[2]), at, rest)

    def group(self, number: int | None, inner: list[Any], at: int, rest: Callable[[int], int | None]) -> int | None:
        before = set(self.groups)

        def matched(end: int) -> int | None:
            self.groups |= {number} if number is not None else set()
            return rest(end)

        end = self.match(inner, 0, at, matched)
        self.groups = self.groups if end is not None else before
        return end

    def repeat(
        self, name: str, least: int, most: Any, inner: list[Any], at: int, rest: Callable[[int], int | None]
    ) -> int | None:
        most = len(self.text) + 1 if str(most) == "MAXREPEAT" else most
        if name == "POSSESSIVE_REPEAT":
            count, end = 0, at
            while count < most and (found := self.match(inner, 0, end, lambda end: end)) is not None:
                count, ended, end = count + 1, end, found
                if end == ended:
                    break
            return rest(end) if count >= least else None
        if len(inner) == 1 and str(inner[0][0]) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self.characters(name, least, most, inner[0], at, rest)

        def more(count: int, here: int) -> int | None:
            def again(end: int) -> int | None:
                return None if end == here and count >= least else more(count + 1, end)

            if count < least:
                return self.match(inner, 0, here, again)
            ways = [lambda: self.match(inner, 0, here, again) if count < most else None, lambda: rest(here)]
            return next((end for way in (ways if name == "MAX_REPEAT" else ways[::-1]) if (end := way()) is not None), None)

        return more(0, at)

    def characters(self, name: str, least: int, most: int, one: Any, at: int, rest: Callable[[int], int | None]) -> int | None:
        """A repetition of one character: no recursion for each."""
        if name == "MIN_REPEAT":
            end = at
            while True:
                if end - at >= least and (found := rest(end)) is not None:
                    return found
                if end - at >= most or not self.fits(str(one[0]), one[1], end):
                    return None
                end += 1
        end = at
        while end - at < most and self.fits(str(one[0]), one[1], end):
            end += 1
        return next((found for stop in range(end, at + least - 1, -1) if (found := rest(stop)) is not None), None)

    def fits(self, name: str, value: Any, at: int) -> bool:
        """Whether the character here is one of those."""
        self.steps += 1
        if at >= len(self.text):
            return False
        forms = {self.text[at]} | ({self.text[at].lower(), self.text[at].upper()} if self.flags & re.I else set())
        if name == "ANY":
            return bool(self.flags & re.S) or self.text[at] != "\n"
        if name == "IN":
            negated = str(value[0][0]) == "NEGATE"
            return any(_one_of(kind, what, form) for kind, what in value for form in forms) != negated
        return (chr(value) in forms) == (name == "LITERAL")

    def stands(self, where: str, at: int) -> bool:
        text, many = self.text, bool(self.flags & re.M)
        word = [0 <= place < len(text) and bool(re.match(r"\w", text[place])) for place in (at - 1, at)]
        last = at == len(text)
        return {
            "AT_BEGINNING": at == 0 or (many and text[at - 1] == "\n"),
            "AT_BEGINNING_STRING": at == 0,
            "AT_END": last or (text[at] == "\n" and (many or at == len(text) - 1)),
            "AT_END_STRING": last,
            "AT_BOUNDARY": word[0] != word[1],
            "AT_NON_BOUNDARY": word[0] == word[1],
        }[where]


_CATEGORIES = {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S", "WORD": r"\w", "NOT_WORD": r"\W"}


def _one_of(kind: Any, what: Any, character: str) -> bool:
    if str(kind) == "LITERAL":
        return ord(character) == what
    if str(kind) == "RANGE":
        return what[0] <= ord(character) <= what[1]
    return str(kind) == "CATEGORY" and re.match(_CATEGORIES[str(what).removeprefix("CATEGORY_")], character) is not None


def regex_steps(pattern: re.Pattern[Any], text: str, once: bool = False) -> tuple[int, list[tuple[int, int]]]:
    """The steps that backtracking takes to find every match of the pattern in the text, and where they are.

    `once`: to match at its start.
    """
    engine = _Engine(pattern, text)
    if once:
        engine.match(engine.tree, 0, 0, lambda end: end)
        return engine.steps, []
    return engine.finditer(), engine.found


def words_of(pattern: re.Pattern[Any]) -> list[str]:
    """The runs of literal characters in a pattern, longest first."""
    found: set[str] = set()

    def walk(nodes: Any) -> None:
        run = ""
        for name, value in [*nodes, (None, None)]:
            if str(name) == "LITERAL":
                run += chr(value)
                continue
            found.add(run)
            run = ""
            for inner in _inner(value):
                walk(inner)

    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    walk(_parser.parse(source, pattern.flags & ~re.UNICODE))
    return sorted(found - {""}, key=lambda word: (-len(word), word))


def _inner(value: Any) -> Iterator[Any]:
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _inner(part)


class CountingStore:
    """A store that counts requests, by operation; those for the lease are left out, since a thread renews it."""

    def __init__(self, store: Store) -> None:
        self._store, self.requests = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.requests[name] += not any(isinstance(one, str) and "/." in one for one in arguments)
            return found(*arguments, **named)

        return counted
