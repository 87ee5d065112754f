"""The suite `probe`: fixed problems of three kinds in four bands, in two disjoint halves (`dev` for tuning, `test` for the end).

Which half may hold a program follows from its behaviour key, so no behaviour is in both; a syntax key is used once in all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from stages.core.prompts.styles import Kind
from stages.core.seed_model.program_blocks import LEVELS
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import Behaviours, Program, ProgramKeys, draw_program, program_key

HALVES = ("dev", "test")
PER_BAND = 300
INDUCTION_PAIRS = 10
_SHARES = 10

SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("kind", pa.string()),
        ("band", pa.int8()),
        ("program", pa.string()),
        ("inputs", pa.list_(pa.string())),
        ("outputs", pa.list_(pa.string())),
        ("program_key", pa.string()),
        ("behaviour", pa.string()),
    ]
)


class _Keyed(NamedTuple):
    program: Program
    syntax: str
    behaviour: str


def probe_tables(seed: int, per_band: int = PER_BAND) -> dict[str, pa.Table]:
    """Both halves: `per_band` problems for each kind and band, every problem a program of its own."""
    draw, behaviours = ScalarDraws(np.random.default_rng([seed, 11])), Behaviours()
    seen: set[str] = set()
    wanted = per_band * len(Kind)
    rows: dict[str, list[dict[str, object]]] = {half: [] for half in HALVES}
    for level in LEVELS:
        found: dict[str, list[_Keyed]] = {half: [] for half in HALVES}
        while any(len(programs) < wanted for programs in found.values()):
            drawn = draw_program(draw, level, INDUCTION_PAIRS)
            behaviour = behaviours.key(drawn.source, drawn.signature)
            share = int(behaviour, 16) % _SHARES
            if share >= len(HALVES) or len(found[HALVES[share]]) >= wanted:
                continue
            syntax = program_key(drawn.source)
            if seen.isdisjoint((syntax, behaviour)):
                seen |= {syntax, behaviour}
                found[HALVES[share]].append(_Keyed(drawn, syntax, behaviour))
        for half, programs in found.items():
            rows[half] += _rows(half, level, programs)
    return {half: pa.Table.from_pylist(rows[half], SCHEMA) for half in HALVES}


def _rows(half: str, level: int, programs: list[_Keyed]) -> list[dict[str, object]]:
    """The kinds take the programs in turn."""
    rows: list[dict[str, object]] = []
    for index, (program, syntax, behaviour) in enumerate(programs):
        kind = tuple(Kind)[index % len(Kind)]
        pairs = INDUCTION_PAIRS if kind is Kind.INDUCTION else 1
        rows.append(
            {
                "problem_id": f"{half}-{kind.value}-{level}-{index // len(Kind):03d}",
                "kind": kind.value,
                "band": level,
                "program": program.source,
                "inputs": list(program.inputs[:pairs]),
                "outputs": list(program.outputs[:pairs]),
                "program_key": syntax,
                "behaviour": behaviour,
            }
        )
    return rows


def with_program_keys(table: pa.Table, keys: Sequence[str | None]) -> pa.Table:
    """The table with the sandbox's program keys: those that a run compares its proposals with."""
    return table.set_column(SCHEMA.get_field_index("program_key"), "program_key", pa.array(keys, pa.string()))


def probe_keys(*tables: pa.Table) -> ProgramKeys:
    """What pretraining must keep away from. Syntax keys are computed anew: the column may hold the sandbox's."""
    programs = {program for table in tables for program in table["program"].to_pylist()}
    behaviours = [behaviour for table in tables for behaviour in table["behaviour"].to_pylist()]
    return ProgramKeys(frozenset(map(program_key, programs)), frozenset(behaviours))
