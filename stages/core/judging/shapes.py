"""The shape of a valid task, for complexity and coverage: measured in the sandbox, summarized here.

A *cell* of the problem space is (kind of syntax tree, kinds of values, kind of execution where it was measured):

- syntax: the node types of the program, stripped of comments and dead code, each with its number of occurrences in powers of
  two (1, 2-3, 4-7, ...), so that another constant or name stays in the cell and another construct leaves it;
- values: the types of the arguments and of the output, two levels deep (`(int, list[str]) -> str`);
- execution: the lines that the first input's run executes, in powers of two. `verify` does not trace: in TASKS it is null.

Induction tasks count by their first input. Programs are parsed by `stages.core.judging.complexity`, a trusted program in the
sandbox.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from stages.core.judging import complexity
from stages.core.sandbox.protocol import Job, Sandbox, Status
from stages.core.values.canonical import LiteralError, parse_arguments, parse_value

COUNTS = ("lines", "depth", "cyclomatic", "variables")
STRIPPED = tuple(f"stripped_{name}" for name in COUNTS)
MEASURING = inspect.getsource(complexity)
BATCH, BATCH_TEXT = 16, 12_000  # programs and characters that one job measures
_SHOWN = 3  # distinct element types that a type's name lists


@dataclass(frozen=True)
class ProgramShape:
    """Counts of one program, as written and stripped, and the digest of its node types."""

    written: tuple[int, ...]
    stripped: tuple[int, ...]
    syntax: str

    def columns(self) -> dict[str, Any]:
        """Return the columns of TASKS that describe a program."""
        counts = zip((*COUNTS, *STRIPPED), (*self.written, *self.stripped), strict=True)
        return dict(counts) | {"syntax": self.syntax}


def shapes(sandbox: Sandbox, programs: Sequence[str]) -> dict[str, ProgramShape]:
    """Return the shape of each distinct program; programs that cannot be measured (too deep, too slow) are left out.

    Programs are measured in batches; a batch that fails is split, so that one program cannot hide the others.
    """
    distinct = list(dict.fromkeys(programs))
    found: dict[str, ProgramShape | None] = {}
    failed = _measure(sandbox, _batches(distinct), found)
    _measure(sandbox, [[program] for batch in failed if len(batch) > 1 for program in batch], found)
    return {program: shape for program in distinct if (shape := found.get(program)) is not None}


def _batches(programs: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    size = BATCH_TEXT
    for program in programs:
        size += len(program)
        if size > BATCH_TEXT or len(batches[-1]) == BATCH:
            batches.append([])
            size = len(program)
        batches[-1].append(program)
    return batches


def _measure(sandbox: Sandbox, batches: list[list[str]], found: dict[str, ProgramShape | None]) -> list[list[str]]:
    """Add the batches' results to `found` (made by the caller for this purpose); return the batches without a result."""
    failed = []
    jobs = [Job(MEASURING, repr(batch), False) for batch in batches]
    for batch, verdict in zip(batches, sandbox.run(jobs), strict=True):
        measured = parse_value(verdict.value) if verdict.status is Status.VALID and verdict.value is not None else None
        if isinstance(measured, list) and len(measured) == len(batch):
            found.update((program, shape_of(one)) for program, one in zip(batch, measured, strict=True))
        else:
            failed.append(batch)
    return failed


def shape_of(measured: list | None) -> ProgramShape | None:
    """Return the shape from the measuring program's output for one program."""
    if measured is None:
        return None
    written, stripped, nodes = measured
    return ProgramShape(tuple(written), tuple(stripped), _syntax(nodes))


def _syntax(nodes: Mapping[str, int]) -> str:
    """Return the digest of node types with their occurrences in powers of two."""
    return _digest(" ".join(f"{name}:{nodes[name].bit_length()}" for name in sorted(nodes)))


def value_types(arguments: str, value: str) -> str:
    """Return `(int, list[str]) -> str` for an argument list and a canonical output; `?` for anything unreadable."""
    try:
        inner = ", ".join(_type(argument, 1) for argument in parse_arguments(arguments))
        return f"({inner}) -> {_type(parse_value(value), 1)}"
    except LiteralError:
        return "?"


def _type(value: object, below: int) -> str:
    name = type(value).__name__
    if isinstance(value, dict):
        items: list[object] = [item for pair in value.items() for item in pair]
    elif isinstance(value, list | tuple | set | frozenset):
        items = list(value)
    else:
        return name
    if not below:
        return name
    inner = sorted({_type(item, below - 1) for item in items})
    return f"{name}[{', '.join(inner) if len(inner) <= _SHOWN else 'mixed'}]"


def cell(task: Mapping[str, Any]) -> str | None:
    """Return the cell of a row of TASKS; None if its program has no shape."""
    if task["syntax"] is None:
        return None
    executed = task["executed_lines"]
    return _digest(f"{task['syntax']} {task['value_types']} {'' if executed is None else executed.bit_length()}")


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()
