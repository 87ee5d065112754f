"""What the seed stage leaves out is counted by its reason, and an error of ours names the row and file where it happened."""

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flows.execution.run_stage import Spec, perform
from flows.judging import stream as judge
from flows.run.held_adapters import HeldAdapters
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core.engines.counted import TokenCount
from stages.core.judging.judge import AnswerItem, judge_answers
from stages.core.method.proposing import ProposalPlan
from stages.core.progress import silent
from stages.core.prompts.styles import Kind
from stages.core.row_errors import ItemFailed, RowFailed
from stages.core.sandbox.protocol import Job, SandboxUnavailable, Status, Verdict
from stages.core.sandbox.verdicts import ProgramRun as Ran
from stages.core.sandbox.verdicts import verdict
from stages.seed import SeedPlan, seed
from stages.solve import SolvePlan, solve
from tests.stages.test_loop_stages import DIGESTS, matches, verified
from tests.support import example_run
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

PLAN = ProposalPlan(groups=1, group_size=2, references=1, num_inputs=2, max_new_tokens=8, temperature=1.0)


def test_seeds_that_do_not_fit_the_window_are_no_duplicates() -> None:
    wanted = SeedPlan(rows=2, max_rounds=1)
    size = wanted.round
    inputs = [f"{'long' * (number % 8 == 0)}{number}|2" for number in range(size - 1)]
    texts = ["p|1"] * size + inputs + [inputs[1]]
    table, counts = seed(
        ScriptedEngine(*texts), TableSandbox({}), PlainStyle(), PLAN, wanted, 0, frozenset(), lambda text: "long" not in text
    )
    assert (counts["seed_too_long"], counts["seed_proposals"]) == (4, 2 * size)
    assert counts["seed_duplicates"] in (size - 1, size)  # the last repeats inputs, perhaps of the other program
    assert [row["inputs"] for row in table.to_pylist() if row["kind"] == "induction"] == [["1", "2"], ["2", "2"]]


@pytest.mark.parametrize(("levels", "status"), [(25, Status.VALID), (26, Status.UNSUPPORTED_VALUE)])
def test_a_value_nested_too_deep_to_be_compared_is_unsupported_and_no_crash(levels: int, status: Status) -> None:
    run = Ran(b"V", 0.1, 0.1, 1, "key", "frozenset({" * levels + "1" + "})" * levels)
    assert verdict([run, run]).status is status


class Broken:
    """A sandbox with a fault of ours in it: it takes two jobs, and fails between them."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        given = iter(jobs)
        next(given)
        yield Verdict(Status.VALID, "7", "", None)
        next(given)
        raise self.error

    def attestation(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        return None


@dataclass
class Judging:
    """What a stage that judges wants of a backend."""

    broken: Broken
    tokens: TokenCount = field(default_factory=TokenCount)
    held: HeldAdapters = field(default_factory=lambda: HeldAdapters(0))
    progress = staticmethod(silent)

    def sandbox(self) -> Broken:
        return self.broken

    def walls(self) -> dict[str, object]:
        return {}


def test_an_error_of_ours_names_its_file_and_row(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    spec = Spec(tmp_path.as_uri(), "r", "grade", 0, None, None, 1)
    with hold(store, "r") as epoch:
        run = example_run.build(Run(store, "r", epoch), 1)
    rollouts = run.read_table(run.history.find("generation=0000/rollouts.parquet"), "rollouts")
    with pytest.raises(RowFailed) as failed:
        perform(run, spec, example_run.CONFIG, Judging(Broken(OverflowError("too large"))))  # type: ignore[arg-type]
    said = str(failed.value)
    assert said.startswith("r/generation=0000/rollouts.parquet, row ") and said.endswith("OverflowError: too large")
    assert any(rollout in said for rollout in rollouts["rollout_id"].to_pylist())
    with pytest.raises(SandboxUnavailable) as gone:  # the world's fault stays what it is
        perform(run, spec, example_run.CONFIG, Judging(Broken(SandboxUnavailable("gone"))))  # type: ignore[arg-type]
    assert str(gone.value) == "gone"


class Overflowing(PlainStyle):
    """A style with a fault of ours at one text."""

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        if completion == "odd":
            raise OverflowError("too large")
        return completion


def test_a_completion_that_we_cannot_read_is_named_and_shown() -> None:
    tasks = verified("p|1", known={("p", "1"): "7"})[1]
    engine = ScriptedEngine("7", "7", "odd", "7")
    with pytest.raises(RowFailed, match=r"row g0000-m00-p\d+-r\d\d: OverflowError: too large; its text begins 'odd'"):
        solve(matches(), DIGESTS, tasks, engine, Overflowing(), SolvePlan(2, 8, 1.0), 0, 0)


def test_an_item_that_cannot_be_planned_is_named_by_its_place() -> None:
    items = [AnswerItem("deduction", "", (), ("1",), "1"), AnswerItem("guess", "", (), ("1",), "1")]
    with pytest.raises(ItemFailed, match="unknown kind 'guess'") as failed:
        list(judge_answers(TableSandbox({}), items))
    assert (failed.value.first, failed.value.last) == (1, 1)


def test_an_error_of_the_one_who_makes_the_items_stays_theirs() -> None:
    def items() -> Iterator[AnswerItem]:
        yield AnswerItem("deduction", "", (), ("1",), "1")
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        list(judge_answers(TableSandbox({}), items()))


def test_grade_names_the_line_at_which_our_code_fails() -> None:
    row = {"kind": "abduction", "program": "p", "output": "7"}
    lines = [json.dumps(row | {"id": name, "answer": str(number)}) for number, name in enumerate(("a", "b", "c"))]
    stdin, out = io.BytesIO("\n".join([lines[0], "bad", *lines[1:]]).encode()), io.StringIO()
    with pytest.raises(judge.NotJudged, match="failed at the line with id 'b' or shortly after it: OverflowError") as failed:
        judge.grade(Broken(OverflowError("too large")), stdin, out)
    assert failed.value.exit_code == 1
    assert [json.loads(line)["id"] for line in out.getvalue().splitlines()] == ["a", None]
