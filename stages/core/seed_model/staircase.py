"""The suite `staircase`: programs of 1 to 10 dependent steps, three kinds, in two disjoint halves (`dev`, `test`).

Each program is asked in all three kinds, so that kinds and depths are compared on the same programs. Which half may hold a
program follows from its behaviour key, so no behaviour is in both; no syntax key and no behaviour is used twice.
"""

import numpy as np
import pyarrow as pa

from stages.core.prompts.styles import Kind
from stages.core.seed_model.chains import MOST_STEPS, Chain, draw_chain
from stages.core.seed_model.probe import HALVES, INDUCTION_PAIRS, SCHEMA
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import Behaviours, program_key

DEPTHS = tuple(range(1, MOST_STEPS + 1))
PER_DEPTH = 200
_SHARES = 6


def staircase_tables(seed: int, per_depth: int = PER_DEPTH) -> dict[str, pa.Table]:
    """Both halves: `per_depth` problems for each kind and depth. The column `band` holds the depth."""
    draw, behaviours = ScalarDraws(np.random.default_rng([seed, 13])), Behaviours()
    seen: set[str] = set()
    rows: dict[str, list[dict[str, object]]] = {half: [] for half in HALVES}
    for depth in DEPTHS:
        found = dict.fromkeys(HALVES, 0)
        while min(found.values()) < per_depth:
            drawn = draw_chain(draw, depth, INDUCTION_PAIRS)
            behaviour = behaviours.key(drawn.source, drawn.signature)
            share = int(behaviour, 16) % _SHARES
            if share >= len(HALVES) or found[HALVES[share]] >= per_depth:
                continue
            syntax, half = program_key(drawn.source), HALVES[share]
            if seen.isdisjoint((syntax, behaviour)):
                seen |= {syntax, behaviour}
                rows[half] += _rows(half, found[half], drawn, syntax, behaviour)
                found[half] += 1
    return {half: pa.Table.from_pylist(rows[half], SCHEMA) for half in HALVES}


def _rows(half: str, number: int, drawn: Chain, syntax: str, behaviour: str) -> list[dict[str, object]]:
    """A program's three problems: one input to run, another to find, and all pairs to explain."""
    pairs = {Kind.DEDUCTION: slice(0, 1), Kind.ABDUCTION: slice(1, 2), Kind.INDUCTION: slice(0, INDUCTION_PAIRS)}
    return [
        {
            "problem_id": f"{half}-{kind.value}-{drawn.depth:02d}-{number:03d}",
            "kind": kind.value,
            "band": drawn.depth,
            "program": drawn.source,
            "inputs": list(drawn.inputs[chosen]),
            "outputs": list(drawn.outputs[chosen]),
            "program_key": syntax,
            "behaviour": behaviour,
        }
        for kind, chosen in pairs.items()
    ]
