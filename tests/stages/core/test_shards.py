"""Shards of a stage's completions: together they are the whole, in its order, however many there are."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.core import tables
from stages.core.earlier_tasks import SeenTasks, StoredTasks
from stages.core.engines.protocol import Completion, Ended, Request
from stages.core.method.proposing import ProposalPlan
from stages.core.shards import WHOLE, Shard
from stages.propose import own_matches, propose
from stages.solve import SolvePlan, posed, solve
from stages.verify import verify
from tests.stages.test_loop_stages import SEED_ROW, matches, seeds
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

PLAN = ProposalPlan(groups=2, group_size=2, references=2, num_inputs=2, max_new_tokens=8, temperature=1.0)
SOLVE = SolvePlan(3, 8, 1.0)


class SeededEngine(ScriptedEngine):
    """A completion depends on its own request alone, as a draw does."""

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        texts = [f"p{request.seed % 7}|{request.seed % 5}" for request in requests]
        return [Completion(tuple(self.encode(text)), (-0.5,) * len(text), False) for text in texts]


def three_matches() -> pa.Table:
    (row,) = matches().to_pylist()
    names = [("t0", "s1"), ("t1", "s0"), ("t2", "s1")]
    rows = [
        row
        | {
            "match_id": f"g0000-m{number:02d}",
            "teacher_id": teacher,
            "student_id": student,
            "teacher_adapter_id": f"{teacher}-start",
            "student_adapter_id": f"{student}-start",
        }
        for number, (teacher, student) in enumerate(names)
    ]
    return tables.table(rows, tables.MATCHES)


MATCHES = three_matches()
DIGESTS = {f"{name}-start": f"sha {name}" for name in ("t0", "t1", "t2", "s0", "s1")}


def proposals(shard: Shard) -> pa.Table:
    teachers = own_matches(MATCHES, PLAN, shard)["teacher_id"].to_pylist()  # no other buffer is needed
    buffers = {name: StoredTasks(seeds()).snapshot(100) for name in teachers}
    return propose(MATCHES, DIGESTS, buffers, SeededEngine(), PlainStyle(), PLAN, 0, 0, shard)


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 12))
def test_every_item_is_in_one_shard_in_order_and_shards_weigh_alike(costs: list[int], count: int) -> None:
    found = [Shard(number, count).of(list(enumerate(costs)), costs) for number in range(count)]
    assert [item for shard in found for item in shard] == list(enumerate(costs))
    for shard in found:  # within one item of its equal part
        assert abs(sum(cost for _, cost in shard) - sum(costs) / count) <= max(costs, default=0)


@pytest.mark.parametrize("count", [2, 3, 5, 18, 40])
def test_proposals_of_shards_are_those_of_the_whole(count: int) -> None:
    parts = [proposals(Shard(number, count)) for number in range(count)]
    assert tables.join(parts, tables.PROPOSALS).equals(proposals(WHOLE))
    assert all(len(set(part["group_id"].to_pylist())) <= -(-18 // count) for part in parts)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_rollouts_of_shards_are_those_of_the_whole(count: int) -> None:
    tasks = verify(
        proposals(WHOLE),
        TableSandbox({("p1", "1"): "error"}),
        PlainStyle(),
        SeenTasks(seeds()).keys,
        set(),
        {},
        lambda _: True,
    )
    replays: Mapping[str, Sequence[dict[str, Any]]] = {"g0000-m00": [SEED_ROW], "g0000-m02": [SEED_ROW]}

    def rollouts(shard: Shard) -> pa.Table:
        return solve(MATCHES, DIGESTS, tasks, SeededEngine(), PlainStyle(), SOLVE, 0, 0, replays, shard)

    whole, parts = rollouts(WHOLE), [rollouts(Shard(number, count)) for number in range(count)]
    assert whole.num_rows == SOLVE.attempts * len(posed(MATCHES, tasks, SOLVE, replays)) > 20
    assert tables.join(parts, tables.ROLLOUTS).equals(whole)
    sizes = [part.num_rows for part in parts]
    assert max(sizes) - min(sizes) <= 2 * SOLVE.attempts


def test_names_are_read_back_and_others_refused() -> None:
    assert Shard(2, 8).name == "02of08"
    assert (Shard.named("02of08"), Shard.named(None)) == (Shard(2, 8), WHOLE)
    for name in ("00", "08of08", "1of0", "of"):
        with pytest.raises(ValueError, match=r"shard|invalid literal"):
            Shard.named(name)
