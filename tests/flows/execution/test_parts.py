"""Joined parts: the manifest of the whole stage counts what the parts could not read."""

from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from flows.backend import Backend
from flows.config import load
from flows.execution import parts
from flows.run.stage_io import StageIO
from stages.core import tables
from tests.flows.benchmarks.test_schedule import rows

MATCHES = rows(tables.MATCHES, *({"match_id": f"m{n}", "teacher_id": f"t{n}", "student_id": f"s{n}"} for n in range(2)))
DETAILS = ["no_program: the first line", "", "cut_off", "no_program: nothing", "cut_off", "cut_off"]
PROPOSALS = rows(
    tables.PROPOSALS,
    *({"proposal_id": f"p{n}", "match_id": f"m{n // 3}", "detail": detail} for n, detail in enumerate(DETAILS)),
)


@dataclass
class TwoParts:
    """What `join` reads and writes of a stage, in memory."""

    stage: str = "propose"
    counts: dict[str, int] = field(default_factory=dict)
    written: dict[str, pa.Table] = field(default_factory=dict)

    def table(self, _: str) -> pa.Table:
        return MATCHES

    def parts(self, names: list[str], _: Any) -> list[pa.Table]:
        assert names == ["00of02", "01of02"]
        return [PROPOSALS.slice(0, 3), PROPOSALS.slice(3)]

    def write_table(self, name: str, table: pa.Table) -> None:
        self.written[name] = table

    def count(self, **numbers: int) -> None:
        self.counts |= numbers


def test_a_joined_stage_counts_the_refusals_of_all_its_parts() -> None:
    whole = TwoParts()
    parts.join(cast(StageIO, whole), load("smoke", ["engine.shards=2"]), cast(Backend, None))
    assert whole.written["proposals"].equals(PROPOSALS)
    assert whole.counts == {"refused_no_program": 2, "refused_cut_off": 3}


def test_a_stage_has_no_more_parts_than_prompts() -> None:
    named = parts.named_parts(cast(StageIO, TwoParts()), load("smoke", ["engine.shards=64"]))
    assert len(named) == 6  # two matches, three kinds, one group each
    assert named[:2] == [("00of06", "1 of 6"), ("01of06", "2 of 6")]
    assert parts.named_parts(cast(StageIO, TwoParts()), load("smoke")) == []
