"""Find benchmark problems that overlap with a run's tasks and seed rows: shared n-grams of words, and equal programs. Pure.

Two rules, each named in a match. `words`: `SPAN` words in a row (letters, digits and underscores; case and punctuation do not
count) stand both in a problem's question or program and in a task's program or message; a text with fewer words, but at least
`SHORTEST`, counts where all of it stands in the other. `program`: a task's program key, the digest of its syntax tree without
names, comments and layout (containers/sandbox/runner/key.py), is that of the problem's reference or of the program it shows.
Answers and inputs are not compared: small values agree by chance.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from stages.core.suites.problems import Problem
from stages.core.tables import table

SPAN, SHORTEST = 13, 8
Words = tuple[str, ...]
_WORD = re.compile(r"\w+")
_STRING, _WHOLE = pa.string(), pa.int64()

MATCHES = pa.schema(
    [
        pa.field("problem_id", _STRING, nullable=False),
        pa.field("task_id", _STRING, nullable=False),
        pa.field("generation", _WHOLE, nullable=False),  # -1: a seed row
        pa.field("rule", _STRING, nullable=False),  # words or program
        pa.field("shared", _STRING, nullable=False),  # the first words in common, or the program key
    ],
    metadata={"table": "matches", "schema": "1"},
)


def matches(
    problems: Sequence[Problem],
    keys: Mapping[str, Iterable[str]],
    tasks: Sequence[tuple[int, Mapping[str, Any]]],
    span: int = SPAN,
) -> pa.Table:
    """Return MATCHES, task by task: one row per problem and rule. `keys` are each problem's program keys, by its id.

    `tasks` are (generation, row of TASKS or SEEDS), whatever their status: what was proposed is what counts.
    """
    spans = _spans(problems, span)
    sizes = sorted({len(words) for words in spans})
    whole = _standing(problems, {words for _, task in tasks for words in _texts(task) if SHORTEST <= len(words) < span})
    by_key: dict[str, list[str]] = {}
    for problem_id, own in keys.items():
        for key in own:
            by_key.setdefault(key, []).append(problem_id)
    rows = []
    for generation, task in tasks:
        found = {(name, "program"): str(task["program_key"]) for name in by_key.get(task["program_key"] or "", ())}
        for words in _texts(task):
            for name, shared in chain(_shared(spans, words, sizes), _shared(whole, words, (len(words),))):
                found.setdefault((name, "words"), shared)
        rows += [
            {"problem_id": name, "task_id": task["task_id"], "generation": generation, "rule": rule, "shared": shared}
            for (name, rule), shared in sorted(found.items())
        ]
    return table(rows, MATCHES)


def texts_of(problem: Problem) -> tuple[str, ...]:
    """Return the texts of a problem that a task could have been copied from."""
    return tuple(text for text in (problem.question, problem.program, problem.reference) if text)


def _words(text: str) -> Words:
    return tuple(_WORD.findall(text.lower()))


def _texts(task: Mapping[str, Any]) -> tuple[Words, Words]:
    """Return the words of a task's program and of its message."""
    return _words(task["program"] or ""), _words(task["message"] or "")


def _spans(problems: Sequence[Problem], span: int) -> dict[Words, list[str]]:
    """Every span of words of every problem, and the problems that have it; a short text is one span."""
    found: dict[Words, list[str]] = {}
    for problem in problems:
        own: set[Words] = set()
        for text in texts_of(problem):
            words = _words(text)
            if len(words) >= SHORTEST:
                own.update(_windows(words, min(span, len(words))))
        for words_in_a_row in own:
            found.setdefault(words_in_a_row, []).append(problem.problem_id)
    return found


def _standing(problems: Sequence[Problem], short: Collection[Words]) -> dict[Words, list[str]]:
    """The short texts of tasks that stand whole in a problem, and the problems that have them. Keeps nothing else in memory."""
    sizes = sorted({len(words) for words in short})
    found: dict[Words, list[str]] = {}
    for problem in problems:
        texts = [_words(text) for text in texts_of(problem)]
        for words_in_a_row in {one for words in texts for size in sizes for one in _windows(words, size) if one in short}:
            found.setdefault(words_in_a_row, []).append(problem.problem_id)
    return found


def _windows(words: Words, size: int) -> Iterator[Words]:
    return (words[at : at + size] for at in range(len(words) - size + 1))


def _shared(spans: Mapping[Words, list[str]], words: Words, sizes: Sequence[int]) -> Iterator[tuple[str, str]]:
    for size in sizes:
        for words_in_a_row in _windows(words, size):
            for name in spans.get(words_in_a_row, ()):
                yield name, " ".join(words_in_a_row)
