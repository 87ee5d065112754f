"""Generate: the project's own generator writes the tasks of a run without teachers, in the form of proposals.

Each task is a program of graded depth (`stages.core.seed_model.chains`) with inputs, of a kind and depth that a curriculum
weighs by the record of earlier attempts (`stages.core.method.curriculum`). Programs of the suites that a run keeps out are drawn
again. What follows is the same as for a teacher's proposals: the sandbox judges every task. No adapter wrote these, so nobody is
rewarded for them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.method.curriculum import Cell, Curriculum, Record, shares
from stages.core.population import GENERATOR
from stages.core.prompts.styles import Kind
from stages.core.randomness import completion_seed
from stages.core.seed_model.chains import MOST_STEPS, depth_of
from stages.core.seed_model.fresh_chains import FreshChains
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import ProgramKeys
from stages.core.shards import WHOLE, Shard

CELLS = tuple(Cell(kind, depth) for kind in Kind for depth in range(1, MOST_STEPS + 1))


def generate(
    matches: pa.Table,
    records: Mapping[Cell, Record],
    curriculum: Curriculum,
    tasks_per_match: int,
    num_inputs: int,
    held_out: ProgramKeys,
    seed: int,
    generation: int,
    shard: Shard = WHOLE,
) -> pa.Table:
    """Return PROPOSALS: `tasks_per_match` rows per match, or a shard of them.

    `records` are of the cells to draw from (see `records_of`); `num_inputs` is the number of inputs of an induction task; no
    program has a key in `held_out`. A row's own seed draws its cell, program and inputs. Raise ValueError for a curriculum that
    weighs nothing.
    """
    cells, chances, chains = list(records), shares(curriculum, records), FreshChains(held_out)
    numbered = [(match, number) for match in matches.to_pylist() for number in range(tasks_per_match)]
    rows = []
    for match, number in shard.of(numbered, [1] * len(numbered)):
        draw = completion_seed(seed, generation, "generate", match["match_id"], number)
        rng = np.random.default_rng(draw)
        kind, depth = cells[int(rng.choice(len(cells), p=chances))]
        chain = chains.draw(ScalarDraws(rng), depth, num_inputs if kind is Kind.INDUCTION else 1)
        rows.append(
            {
                "proposal_id": f"{match['match_id']}-p{number:03d}",
                "match_id": match["match_id"],
                "teacher_id": match["teacher_id"],
                "kind": kind,
                "group_id": f"{match['match_id']}-{kind[0]}{depth:02d}",
                "reference_ids": [],
                "program": chain.source,
                "inputs": list(chain.inputs),
                "message": "",
                "status": "parsed",
                "detail": "",
                "adapter_id": "",
                "adapter_sha256": "",
                "seed": draw,
                "prompt_ids": [],
                "completion_ids": [],
                "logprobs": [],
                "text": "",
                "truncated": False,
            }
        )
    return tables.table(rows, tables.PROPOSALS)


def records_of(recent: Iterable[tuple[pa.Table, pa.Table]], kinds: Collection[Kind] = tuple(Kind)) -> dict[Cell, Record]:
    """Return the record of every cell of these kinds from (TASKS, GRADES) of earlier generations, all students together.

    An attempt counts in the generation that posed its task: attempts at tasks that were posed again do not.
    """
    attempts, correct = Counter[Cell](), Counter[Cell]()
    for tasks, grades in recent:
        drawn = tasks.filter(pc.equal(tasks["teacher_id"], GENERATOR)).select(["task_id", "kind", "program"])
        cell_of = {row["task_id"]: Cell(Kind(row["kind"]), depth_of(row["program"])) for row in drawn.to_pylist()}
        for task_id, right in zip(grades["task_id"].to_pylist(), grades["correct"].to_pylist(), strict=True):
            if task_id in cell_of:
                attempts[cell_of[task_id]] += 1
                correct[cell_of[task_id]] += right
    return {cell: Record(attempts[cell], correct[cell]) for cell in CELLS if cell.kind in kinds}
