"""One schema for the problems of every public suite, whatever its publisher's files look like."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any


class Form(StrEnum):
    """Form of the answer to a problem."""

    FUNCTION = "function"  # a program with `entry_point`, called with every argument list
    STDIN = "stdin"  # a program that reads standard input and writes standard output
    MATHEMATICS = "mathematics"  # an expression
    DEDUCTION = "deduction"  # an output literal
    ABDUCTION = "abduction"  # input literals
    INDUCTION = "induction"  # a program `f`


class BadSuite(ValueError):
    """A suite's data is invalid: one line that names the row and the error."""


@dataclass(frozen=True)
class Problem:
    """One problem.

    `inputs` are the base tests (argument lists as literal text, or standard inputs), `plus_inputs` the further ones. `outputs`
    hold the correct results: expected values as literal text or standard outputs, in the order of the tests; in mathematics the
    gold answers (any of them counts); empty if `reference`, a correct program, defines them.
    """

    problem_id: str
    form: Form
    group: str  # subject, difficulty or kind: a slice that scores are also given for
    question: str  # what is asked, in words; for program suites the text of the prompt
    program: str = ""  # the code shown: a signature, a starter, or the program asked about
    entry_point: str = ""
    reference: str = ""
    inputs: tuple[str, ...] = ()
    plus_inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    plus_outputs: tuple[str, ...] = ()
    tolerance: float = 0.0
    released: str = ""  # ISO date, where the suite gives one


def digest(problems: Sequence[Problem]) -> str:
    """sha256 over the problems in order: the same whatever file or format they came from."""
    total = hashlib.sha256()
    for problem in problems:
        total.update(json.dumps(asdict(problem), sort_keys=True, ensure_ascii=True).encode() + b"\n")
    return total.hexdigest()


def checked(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems if every id is unique. Raise BadSuite otherwise."""
    seen: set[str] = set()
    for problem in problems:
        if problem.problem_id in seen:
            raise BadSuite(f"problem {problem.problem_id!r} occurs twice")
        seen.add(problem.problem_id)
    if not problems:
        raise BadSuite("the suite has no problems")
    return list(problems)


def matching(problem_ids: Sequence[str], pattern: str) -> list[int]:
    """Return the places of ids that match a shell pattern such as `test-deduction-07-*`. Raises BadSuite if there is none."""
    places = [place for place, problem_id in enumerate(problem_ids) if fnmatchcase(problem_id, pattern)]
    if not places:
        raise BadSuite(f"no problem has an id that matches {pattern!r}; the first of {len(problem_ids)} is {problem_ids[0]!r}")
    return places


def chosen(problems: Sequence[Problem], limit: int, since: str = "", until: str = "", pattern: str = "") -> list[Problem]:
    """Problems released in the window (ISO dates, both ends in; empty: open), then `limit` of them (0: all), evenly spread.

    Only problems whose ids match `pattern` count (empty: all). Each form and group gets its share: in a suite whose forms take
    turns, every second problem would be of one form only.
    """
    inside = [one for one in problems if (not since or one.released >= since) and (not until or one.released <= until)]
    if (since or until) and not inside:
        raise BadSuite(f"no problem was released from {since or 'the beginning'} until {until or 'today'}")
    if pattern:
        inside = [inside[place] for place in matching([one.problem_id for one in inside], pattern)]
    if not limit or limit >= len(inside):
        return inside
    by_group = sorted(range(len(inside)), key=lambda place: (inside[place].form, inside[place].group))
    return [inside[place] for place in sorted(by_group[number * len(inside) // limit] for number in range(limit))]


def field(row: dict[str, Any], *names: str) -> Any:
    """Return the first of the named fields that the row has. Raise BadSuite if it has none."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise BadSuite(f"no field {' or '.join(names)}; there are {', '.join(sorted(row))[:200]}")
