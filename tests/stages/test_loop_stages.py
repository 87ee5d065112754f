"""Propose, verify, solve, grade, reward: literal rows in, literal rows out, with scripted completions and verdicts."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from stages.core import tables
from stages.core.earlier_tasks import SeenTasks, StoredTasks
from stages.core.method.gates import GATES
from stages.core.method.proposing import ProposalPlan
from stages.core.method.rewards import Event, azr, form, learnable, populora
from stages.core.prompts.document import DocumentPrompts
from stages.core.prompts.styles import Kind
from stages.grade import grade
from stages.propose import propose
from stages.reward import ESTIMATORS, reward
from stages.solve import SolvePlan, answer_tokens, solve
from stages.verify import verify
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

PLAN = ProposalPlan(groups=1, group_size=2, references=2, num_inputs=2, max_new_tokens=8, temperature=1.0)
SEED_ROW = {
    "task_id": "seed-d0000",
    "kind": "deduction",
    "program": "id",
    "inputs": ["1"],
    "outputs": ["1"],
    "values": ["1"],
    "message": "",
    "program_key": "key of id",
}
DIGESTS = {"t0-start": "sha t", "s0-start": "sha s"}


def seeds() -> pa.Table:
    rows = [SEED_ROW, SEED_ROW | {"task_id": "seed-a0000", "kind": "abduction"}]
    return tables.table([*rows, SEED_ROW | {"task_id": "seed-i0000", "kind": "induction", "inputs": ["1", "2"]}], tables.SEEDS)


def matches() -> pa.Table:
    row = {
        "match_id": "g0000-m00",
        "teacher_id": "t0",
        "student_id": "s0",
        "teacher_adapter_id": "t0-start",
        "student_adapter_id": "s0-start",
        "teacher_mu": 25.0,
        "teacher_sigma": 8.0,
        "student_mu": 25.0,
        "student_sigma": 8.0,
        "expected": 0.5,
    }
    return tables.table([row], tables.MATCHES)


def proposals(*texts: str, plan: ProposalPlan = PLAN) -> pa.Table:
    buffers = {"t0": StoredTasks(seeds()).snapshot(100)}
    return propose(matches(), DIGESTS, buffers, ScriptedEngine(*texts), PlainStyle(), plan, seed=0, generation=0)


def verified(
    *texts: str, known: dict[tuple[str, str], str] | None = None, gates: tuple[str, ...] = ()
) -> tuple[pa.Table, pa.Table]:
    made = proposals(*texts)
    sandbox, style = TableSandbox(known or {}), PlainStyle()
    active = {name: GATES[name] for name in gates}
    return made, verify(made, sandbox, style, SeenTasks(seeds()).keys, {"key of probe"}, active, lambda text: len(text) < 200)


def test_a_teacher_writes_three_kinds_in_groups_that_share_a_prompt() -> None:
    made = proposals("p|1", "no bar", "p|2", "p|3", "4|5", "6")
    assert made["kind"].to_pylist() == ["deduction", "deduction", "abduction", "abduction", "induction", "induction"]
    assert made["status"].to_pylist() == ["parsed", "unparsed", "parsed", "parsed", "parsed", "unparsed"]
    assert made["inputs"].to_pylist() == [["1"], [], ["2"], ["3"], ["4", "5"], []]
    assert made["program"].to_pylist()[4:] == ["id", "id"]
    for first, second in ((0, 1), (2, 3), (4, 5)):
        assert made["prompt_ids"][first] == made["prompt_ids"][second]
        assert made["group_id"][first] == made["group_id"][second]
        assert made["seed"][first] != made["seed"][second]
    assert set(made["adapter_sha256"].to_pylist()) == {"sha t"}
    assert made.equals(proposals("p|1", "no bar", "p|2", "p|3", "4|5", "6"))


def test_a_teacher_writes_only_the_kinds_of_the_run() -> None:
    made = proposals("p|1", "p|2", "4|5", "6|7", plan=replace(PLAN, kinds=(Kind.DEDUCTION, Kind.INDUCTION)))
    assert made["kind"].to_pylist() == ["deduction", "deduction", "induction", "induction"]
    assert made["group_id"].to_pylist() == [f"g0000-m00-{kind}0" for kind in "ddii"]


def test_verify_keeps_every_row_with_its_status() -> None:
    known = {("p", "1"): "7", ("q", "2"): "timeout", ("probe", "3"): "9", ("id", "4"): "4", ("id", "5"): "error"}
    made, tasks = verified("p|1", "q|2", "probe|3", "p|1", "4|5", "bad", known=known)
    assert tasks["task_id"].to_pylist() == made["proposal_id"].to_pylist()
    assert tasks["status"].to_pylist() == ["valid", "timeout", "valid", "valid", "error", "unparsed"]
    assert tasks["outputs"].to_pylist() == [["7"], [], ["9"], ["7"], [], []]
    assert tasks["probe_overlap"].to_pylist() == [False, False, True, False, False, False]
    assert tasks["gate"].to_pylist() == [None, None, "held_out", None, None, None]
    assert tasks["duplicate"].to_pylist() == [False] * 6


def test_duplicates_are_told_by_kind_program_and_inputs() -> None:
    _, tasks = verified("p|1", "p|1", "id|1", "p|1", "4|5", "4|5")
    assert tasks["duplicate"].to_pylist() == [False, True, True, False, False, True]


def test_gates_name_their_reason_and_the_buffer_keeps_out_what_they_stop() -> None:
    _, tasks = verified("p|1", "p|2", "p|3", "p|4", "4|5", "4|6", known={("p", "1"): "1"}, gates=("identity", "constant"))
    assert tasks["gate"].to_pylist() == ["identity", None, None, None, "constant", "constant"]
    kept = StoredTasks(seeds(), [tasks]).snapshot(100)
    assert [row["task_id"] for row in kept[Kind.DEDUCTION]] == ["seed-d0000", "g0000-m00-p001"]


def test_a_program_that_the_run_keeps_out_is_neither_posed_stored_nor_paid() -> None:
    known = {("probe", "1"): "1", ("p", "2"): "8"}
    made, tasks = verified("probe|1", "p|2", "p|3", "p|3", "4|5", "no", known=known, gates=("identity",))
    assert tasks["gate"].to_pylist()[:2] == ["held_out", None]
    plan = SolvePlan(attempts=2, max_new_tokens=8, temperature=1.0)
    rollouts = solve(matches(), DIGESTS, tasks, ScriptedEngine("8", "1"), PlainStyle(), plan, seed=0, generation=0)
    assert "g0000-m00-p000" not in rollouts["task_id"].to_pylist()
    assert [row["task_id"] for row in StoredTasks(seeds(), [tasks]).snapshot(9)[Kind.DEDUCTION]] == [
        "seed-d0000",
        "g0000-m00-p001",
    ]
    grades = grade(tasks, rollouts, TableSandbox(known))
    samples = reward(made, tasks, rollouts, grades, populora, ESTIMATORS["dr_grpo"], "group", 0)
    assert samples["reward"].to_pylist()[:2] == [0.0, 0.5]


def test_the_buffer_keeps_the_newest() -> None:
    _, tasks = verified("p|1", "p|2", "p|3", "p|4", "4|5", "4|6")
    earlier = StoredTasks(seeds(), [tasks])
    assert [row["task_id"] for row in earlier.snapshot(2)[Kind.DEDUCTION]] == [
        "g0000-m00-p000",
        "g0000-m00-p001",
    ]
    assert [row["task_id"] for row in earlier.snapshot(9, "t9")[Kind.DEDUCTION]] == ["seed-d0000"]


def test_repeated_tasks_can_be_stopped_and_a_gate_of_the_users_is_asked() -> None:
    _, tasks = verified("p|1", "p|1", "p|3", "p|4", "4|5", "4|6", gates=("repeated",))
    assert tasks["gate"].to_pylist()[:3] == [None, "repeated", None]
    made = proposals("p|1", "p|2", "p|3", "p|4", "4|5", "4|6")
    own = {"mine.py:second": lambda row: row["inputs"] == ["2"]}
    tasks = verify(made, TableSandbox({}), PlainStyle(), set(), set(), own, lambda text: True)
    assert tasks["gate"].to_pylist()[:3] == [None, "mine.py:second", None]


def test_a_task_whose_prompt_is_too_long_counts_as_invalid() -> None:
    _, tasks = verified("p|1", "p" * 300 + "|1", "p|1", "p|1", "4|5", "4|6")
    assert tasks["status"].to_pylist()[:2] == ["valid", "too_long"]


def test_a_deduction_whose_output_is_longer_than_an_answer_may_be_counts_as_invalid() -> None:
    known = {("p", "1"): "77777", ("p", "2"): "7", ("p", "3"): "77777", ("id", "4"): "44444"}
    made = proposals("p|1", "p|2", "p|3", "p|4", "4|5", "4|6")
    arguments = TableSandbox(known), PlainStyle(), SeenTasks(seeds()).keys, set[str](), {}, lambda text: True
    tasks = verify(made, *arguments, answerable=lambda text: len(text) < 5)
    assert tasks["status"].to_pylist() == ["too_long", "valid", "valid", "valid", "valid", "valid"]
    assert tasks["detail"].to_pylist()[0] == "the output is longer than an answer may be"


def test_a_task_that_writes_out_a_control_token_counts_as_invalid() -> None:
    known = {("p", "1"): "'<|end|>'", ("p", "2"): "7", ("p", "'<|end|>'"): "7", ("id", "4"): "4"}
    made = proposals("p|1", "p|2", "p|'<|end|>'", "p|2", "4|5", "4|6")
    arguments = TableSandbox(known), PlainStyle(), SeenTasks(seeds()).keys, set[str](), {}, lambda text: True
    tasks = verify(made, *arguments, markers=("<|end|>", "<|start|>"))
    assert tasks["status"].to_pylist()[:3] == ["control_token", "valid", "control_token"]
    assert tasks["detail"].to_pylist()[0] == "it writes out '<|end|>', a control token of the model"


def played(*answers: str) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    known = {
        ("p", "1"): "7",
        ("p", "2"): "8",
        ("q", "2"): "error",
        ("id", "4"): "4",
        ("id", "5"): "5",
        ("g", "4"): "4",
        ("g", "5"): "5",
    }
    made, tasks = verified("p|1", "no", "p|2", "q|2", "4|5", "no", known=known)
    plan = SolvePlan(attempts=2, max_new_tokens=8, temperature=1.0)
    rollouts = solve(matches(), DIGESTS, tasks, ScriptedEngine(*answers), PlainStyle(), plan, seed=0, generation=0)
    return made, tasks, rollouts, grade(tasks, rollouts, TableSandbox(known))


def test_only_valid_tasks_are_posed_and_each_answer_is_graded() -> None:
    _, _, rollouts, grades = played("7", "8", "2", "1", "g", "")
    assert rollouts["task_id"].to_pylist() == [f"g0000-m00-p00{n}" for n in (0, 0, 2, 2, 4, 4)]
    assert grades["status"].to_pylist() == ["correct", "wrong", "correct", "wrong", "correct", "format"]
    assert grades["correct"].to_pylist() == [True, False, True, False, True, False]


def test_behind_an_answer_only_the_first_token_is_trained() -> None:
    made, tasks, rollouts, grades = played("7# why", "8", "8# ", "1", "g", "4")
    assert rollouts["answer"].to_pylist()[:4] == ["7", "8", "8", "1"]
    assert rollouts["answer_tokens"].to_pylist() == [2, None, 2, None, None, None]
    samples = reward(made, tasks, rollouts, grades, populora, ESTIMATORS["dr_grpo"], "group", 0)
    encode = ScriptedEngine("").encode
    assert samples["completion_ids"].to_pylist()[6:10] == [encode("7#"), encode("8"), encode("8#"), encode("1")]
    assert [len(each) for each in samples["logprobs"].to_pylist()[6:10]] == [2, 1, 2, 1]
    assert rollouts["text"].to_pylist()[0] == "7# why" and len(rollouts["completion_ids"].to_pylist()[0]) == 6


class WordEngine(ScriptedEngine):
    """A token is a word of WORDS."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(WORDS[token] for token in token_ids)


WORDS = (" 3", "\n", " #", " so", ", 'so'", " 3,")


@pytest.mark.parametrize(
    ("token_ids", "trained"),
    [
        ((0, 1), None),
        ((0, 2, 3, 1), 2),
        ((0, 4), 2),
        ((5, 3, 1), 1),  # the token that ends the answer already reaches beyond it
    ],
)
def test_the_decision_to_write_on_is_the_last_trained_token(token_ids: tuple[int, ...], trained: int | None) -> None:
    engine = WordEngine()
    text = engine.decode(token_ids)
    assert answer_tokens(engine, DocumentPrompts(), Kind.DEDUCTION, token_ids, text) == trained


@pytest.mark.parametrize("stops", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_the_gradient_of_the_decision_to_stop_is_that_of_the_expected_reward(stops: float, right: bool, penalty: float) -> None:
    """By enumeration of both branches behind a given answer; the logit of stopping against writing on."""
    engine, earned = WordEngine(), 1.0 if right else -0.5
    branches = ((stops, (0, 1), 1 - stops, earned), (1 - stops, (0, 2, 3, 1), -stops, earned - penalty))
    found = 0.0
    for chance, token_ids, slope, value in branches:  # slope: of the log-probability of the branch's second token
        count = answer_tokens(engine, DocumentPrompts(), Kind.DEDUCTION, token_ids, engine.decode(token_ids))
        found += chance * value * slope if len(token_ids[:count]) > 1 else 0.0
    assert found == pytest.approx(penalty * stops * (1 - stops))


def test_rewards_are_the_papers_and_centred_ones_sum_to_zero_in_a_group() -> None:
    made, tasks, rollouts, grades = played("7", "8", "2", "1", "g", "")
    samples = reward(made, tasks, rollouts, grades, populora, ESTIMATORS["dr_grpo"], "group", 0)
    assert samples["reward"].to_pylist() == [0.5, -1.0, 0.5, -1.0, 0.5, -1.0, 1.0, -0.5, 1.0, -0.5, 1.0, -1.0]
    assert samples["role"].to_pylist() == ["teacher"] * 6 + ["student"] * 6
    sums: dict[str, float] = {}
    for group, centred in zip(samples["group_id"].to_pylist(), samples["centred"].to_pylist(), strict=True):
        sums[group] = sums.get(group, 0.0) + centred
    assert max(map(abs, sums.values())) < 1e-12


def test_one_trained_attempt_leaves_the_solve_rate_as_it_is() -> None:
    made, tasks, rollouts, grades = played("7", "8", "2", "1", "g", "")
    samples = reward(made, tasks, rollouts, grades, populora, ESTIMATORS["trr_plus_plus"], "none", 1)
    assert samples["reward"].to_pylist() == [0.5, -1.0, 0.5, -1.0, 0.5, -1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("status", "rate", "expected", "by_azr"),
    [
        ("valid", 0.0, 0.0, -0.5),
        ("valid", 0.125, 0.875, 0.875),
        ("valid", 1.0, 0.0, -0.5),
        ("timeout", None, -1.0, -1.0),
        ("gated", None, 0.0, 0.0),
    ],
)
def test_teachers_are_paid_for_tasks_that_are_hard_but_solved(
    status: str, rate: float | None, expected: float, by_azr: float
) -> None:
    event = Event("teacher", Kind.DEDUCTION, status, rate)
    assert (populora(event), azr(event)) == (expected, by_azr)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0.0), (0.25, 0.75), (0.5, 1.0), (1.0, 0.0), (None, -1.0)])
def test_a_teacher_can_be_paid_for_what_half_of_the_attempts_solve(rate: float | None, expected: float) -> None:
    assert learnable(Event("teacher", Kind.DEDUCTION, "error" if rate is None else "valid", rate)) == expected
    assert learnable(Event("student", Kind.DEDUCTION, "wrong", None)) == -0.5


@pytest.mark.parametrize(
    ("role", "status", "rate", "expected"),
    [
        ("student", "correct", None, 1.0),
        ("student", "wrong", None, 1.0),
        ("student", "timeout", None, 1.0),
        ("student", "format", None, -1.0),
        ("teacher", "valid", 0.0, 1.0),
        ("teacher", "gated", None, 1.0),
        ("teacher", "error", None, 1.0),
        ("teacher", "unparsed", None, -1.0),
    ],
)
def test_form_alone_pays_for_what_can_be_read_whatever_its_verdict(
    role: str, status: str, rate: float | None, expected: float
) -> None:
    assert form(Event(role, Kind.ABDUCTION, status, rate)) == expected
