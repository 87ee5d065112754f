"""Seeding: rows of the model first, shipped rows where its yield is low, and an early end where nothing can be read."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flows.backend import Backend
from flows.config import apply
from stages.core.engines.protocol import Completion, Ended, Request
from stages.core.judging.judge import TaskItem, judge_tasks
from stages.core.method.proposing import ProposalPlan
from stages.core.prompts.document import DocumentPrompts
from stages.core.prompts.styles import Kind, Proposed
from stages.core.sandbox.local import LocalSandbox
from stages.core.sandbox.protocol import Status
from stages.core.values.canonical import canonical, parse_arguments
from stages.seed import TRIED, SeedPlan, UnreadableProposals, seed
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

PLAN = ProposalPlan(groups=1, group_size=2, references=1, num_inputs=2, max_new_tokens=8, temperature=1.0)
SHIPPED = [Proposed(f"shipped{number}", (str(number),)) for number in range(4)]
SHIPPED += [Proposed(f"shipped{number}", ("1", "2", "3"), f"hint {number}") for number in range(4)]


class CountingEngine(ScriptedEngine):
    """Notes how many requests come at once, and their stop sequences."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self.batches: list[int] = []
        self.stops: set[tuple[str, ...]] = set()

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        self.batches.append(len(requests))
        self.stops |= {request.stops for request in requests}
        return super().generate(requests, temperature, ended)


def seeded(
    engine: ScriptedEngine, wanted: SeedPlan, num_inputs: int = 2, kept_out: frozenset[str] = frozenset()
) -> tuple[list[dict], dict[str, int]]:
    plan, style = replace(PLAN, num_inputs=num_inputs), PlainStyle()
    table, counts = seed(engine, TableSandbox({}), style, plan, wanted, 0, kept_out, lambda text: True, SHIPPED)
    return table.to_pylist(), counts


def of_kind(rows: list[dict], kind: Kind) -> list[str]:
    return [row["program"] for row in rows if row["kind"] == kind]


def test_a_model_that_fills_its_buffers_gets_no_shipped_row() -> None:
    rows, counts = seeded(ScriptedEngine(*(f"p{number}|{number}" for number in range(64))), SeedPlan(rows=4, max_rounds=3))
    assert "seed_shipped" not in counts
    assert of_kind(rows, Kind.DEDUCTION) == ["def f(a):\n    return a", "p0", "p1", "p2"]
    assert len(of_kind(rows, Kind.INDUCTION)) == 4 and "hint" not in str(rows)


def test_a_run_without_inductions_needs_no_inputs_for_them() -> None:
    engine = CountingEngine(*(f"p{number}|{number}" for number in range(64)))
    plan = replace(PLAN, kinds=(Kind.ABDUCTION,))
    table, _ = seed(engine, TableSandbox({}), PlainStyle(), plan, SeedPlan(4, 3), 0, frozenset(), lambda text: True, SHIPPED)
    assert Counter(table["kind"].to_pylist()) == {"deduction": 4, "abduction": 4}
    assert len(engine.batches) == 1


def test_a_low_yield_is_topped_up_with_shipped_rows_and_counted() -> None:
    engine = CountingEngine("p|1", *["no bar"] * 15)
    rows, counts = seeded(engine, SeedPlan(rows=5, max_rounds=40, round=16), num_inputs=3)
    programs = of_kind(rows, Kind.DEDUCTION)
    assert programs == of_kind(rows, Kind.ABDUCTION) and len(programs) == 5
    assert programs[1] == "p" and {*programs[2:]} < {f"shipped{number}" for number in range(4)}
    assert {*engine.batches} == {16} and TRIED < len(engine.batches) < 20, "of 80 rounds: nothing new has come for too long"
    assert engine.stops == {("\n",)}
    hints = [row["message"] for row in rows if row["kind"] == "induction"]
    assert sorted(filter(None, hints)) == [f"hint {number}" for number in range(4)]  # as many as there are
    assert all(len(row["inputs"]) == 3 for row in rows if row["kind"] == "induction")
    assert counts["seed_shipped"] == 3 + 4


def test_no_row_of_any_kind_has_a_program_that_the_run_keeps_out() -> None:
    texts, wanted = ("p|1", *["no bar"] * 15), SeedPlan(rows=5, max_rounds=40, round=16)
    rows, counts = seeded(ScriptedEngine(*texts), wanted, num_inputs=3, kept_out=frozenset({"key of shipped1"}))
    assert {row["kind"] for row in rows} == set(Kind) and "shipped1" not in {row["program"] for row in rows}
    assert counts["seed_probe_overlap"] == 2, "once among the programs, once among the inductions"


def test_no_row_is_stored_that_a_student_could_not_be_asked_or_answer() -> None:
    """Such a row would be posed again by `solve.top_up`: one ends the run, the other only trains on failure."""
    texts, wanted = ("p|1", "a long program|2", "q|3"), SeedPlan(rows=4, max_rounds=1, round=3)
    plan, style = replace(PLAN, kinds=(Kind.DEDUCTION,)), PlainStyle()

    def short(text: str) -> bool:
        return "a long program" not in text

    def answerable(text: str) -> bool:
        return "a long output" not in text

    judge = TableSandbox({("q", "3"): "'a long output'"})
    table, counts = seed(ScriptedEngine(*texts), judge, style, plan, wanted, 0, frozenset(), short, answerable=answerable)
    assert of_kind(table.to_pylist(), Kind.DEDUCTION) == of_kind(table.to_pylist(), Kind.ABDUCTION)
    assert of_kind(table.to_pylist(), Kind.DEDUCTION) == ["def f(a):\n    return a", "p"]
    assert counts["seed_too_long"] == 2


def test_where_shipped_rows_run_out_too_the_buffers_are_smaller() -> None:
    rows, counts = seeded(ScriptedEngine("p|1", "no bar"), SeedPlan(rows=99, max_rounds=2, round=4), num_inputs=3)
    assert len(of_kind(rows, Kind.DEDUCTION)) == 6 and counts["seed_shipped"] == 8


def test_a_model_that_writes_nothing_readable_ends_early_and_says_why() -> None:
    engine = CountingEngine("(a):\n    return a\n```\n\n", "")
    with pytest.raises(
        UnreadableProposals, match=r"^none of the base model's first 64 proposals could be read \(no_\w+ 32, no_\w+ 32\)$"
    ):
        seed(engine, TableSandbox({}), DocumentPrompts(), PLAN, SeedPlan(9, 40), 0, frozenset(), lambda text: True, SHIPPED)
    assert engine.batches == [32, 32]


def test_every_shipped_row_is_a_valid_task_and_they_vary() -> None:
    shipped = Backend(apply({}, [])).shipped_tasks()
    programs, many = [one for one in shipped if not one.message], [one for one in shipped if one.message]
    assert len({one.program for one in programs}) == len(programs) >= 40 and len(many) >= 20
    assert all(len(one.inputs) == 1 for one in programs)
    assert all(len({canonical(parse_arguments(text)) for text in one.inputs}) == 20 for one in many)
    sandbox = LocalSandbox(2)
    try:
        verdicts = list(judge_tasks(sandbox, [TaskItem(one.program, one.inputs) for one in shipped]))
    finally:
        sandbox.close()
    assert {verdict.status for verdict in verdicts} == {Status.VALID}, [v.detail for v in verdicts if v.status != "valid"]
    assert len({verdict.program_key for verdict in verdicts[: len(programs)]}) == len(programs)
    assert all(len(set(verdict.values)) >= 4 for verdict in verdicts[len(programs) :])
