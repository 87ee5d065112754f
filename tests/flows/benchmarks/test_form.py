"""How many answers have the asked form, and how many of those are right: what `populora benchmark` prints under the scores."""

import math
from pathlib import Path

import pytest

from flows import cards
from flows.audit.fsck import fsck
from flows.benchmarks.benchmark_suites import benchmark
from flows.benchmarks.members import Chosen
from flows.benchmarks.score import Question, probe_folder, score_run
from flows.benchmarks.score_text import forms_text
from flows.cli import _parser
from flows.compare.scores import scored_states
from flows.config import ConfigError
from flows.monitoring.run_tables import RunTables
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core import tables
from stages.core.suites.scores import Contestant, forms, probe_scores, suite_scores
from tests.support import example_run
from tests.support.cards import machine

MEMBER = Contestant("s0", "student", "s0-g0001", "0" * 64)
STATUS = {"p0": ["correct", "correct"], "p1": ["wrong", "format"], "p2": ["format", "format"], "p3": ["error", "correct"]}
"""Each problem's greedy attempt, then two sampled ones that end as the greedy attempts of it and of the next problem do."""


def answers() -> list[dict[str, object]]:
    fixed = {"suite": "probe-dev", "member_id": "s0", "kind": "deduction", "band": 1, "text": "", "adapter_sha256": "0" * 64}
    rows = []
    for problem, (greedy, sampled) in STATUS.items():
        for attempt, status in enumerate((greedy, greedy, sampled)):
            row = {"problem_id": problem, "adapter_id": "s0-g0001", "attempt": attempt, "greedy": attempt == 0}
            answer = None if status == "format" else "1"
            rows.append(fixed | row | {"status": status, "correct": status == "correct", "answer": answer})
    return rows


def test_forms_are_shares_with_errors_over_problems() -> None:
    greedy, sampled = forms(tables.table(answers(), tables.ANSWERS))
    assert (greedy.greedy, greedy.formed, greedy.right, greedy.problems) == (True, 3 / 4, 1 / 3, 4)
    assert greedy.formed_stderr == pytest.approx(math.sqrt(3 / 4 * 1 / 4 / 3))
    # formed 2, 1, 0, 2 of 2 each; right 2, 0, 0, 1: residuals 0.8, -0.6, 0, -0.2 at 3 of 5
    assert (sampled.greedy, sampled.formed, sampled.right) == (False, 5 / 8, 3 / 5)
    assert sampled.right_stderr == pytest.approx(math.sqrt((0.8**2 + 0.6**2 + 0.2**2) * 4 / 3) / 5)
    by_hand = greedy.formed * greedy.right
    scores = probe_scores(tables.table(answers(), tables.ANSWERS), [MEMBER])
    assert scores["score"][0].as_py() == pytest.approx(by_hand) == 1 / 4


def test_answers_about_one_program_are_one_cluster() -> None:
    """Verdicts that agree in both directions say no more than those of one, so errors stay as they are."""
    both = [row | {"problem_id": f"{row['problem_id']}/{way}"} for row in answers() for way in "oi"]
    once, twice = (forms(tables.table(rows, tables.ANSWERS)) for rows in (answers(), both))
    for one, two in zip(once, twice, strict=True):
        assert (two.formed, two.right, two.problems) == (one.formed, one.right, 2 * one.problems)
        assert two.formed_stderr == pytest.approx(one.formed_stderr) and two.right_stderr == pytest.approx(one.right_stderr)


def test_where_no_answer_has_the_form_nothing_is_said_of_the_right_ones() -> None:
    lost = [row | {"status": "format", "correct": False, "answer": None} for row in answers()]
    (greedy, _) = forms(tables.table(lost, tables.ANSWERS))
    assert greedy.formed == 0.0 and math.isnan(greedy.right) and greedy.right_stderr is None
    assert "nan" in forms_text(tables.table(lost, tables.ANSWERS)).splitlines()[1]


def test_a_prompt_without_room_has_no_answer_and_so_no_form() -> None:
    """An answer that is itself too long has its form."""
    long = [row | {"status": "too_long", "correct": False} for row in answers()]
    shares = [forms(tables.table([row | {"answer": answer} for row in long], tables.ANSWERS)) for answer in (None, "1")]
    assert [one.formed for found in shares for one in found] == [0.0, 0.0, 1.0, 1.0]


WRITTEN = [
    ("output", " [1]", "[1]", True),
    ("output", " [1]  # as asked", "[1]", False),
    ("output", ' [1], "Test case 1 failed"', "[1]", False),
    ("output", "```output\n[1]\n```", "[1]", True),
    ("input", "1, 2)", "1, 2", True),
    ("input", "1, 2), 'no'", "1, 2", False),
    ("output", "1. The loop ends.\n```output\n1\n```", "1", True),
]


@pytest.mark.parametrize(("kind", "text", "answer", "alone"), WRITTEN)
def test_a_strict_score_counts_a_literal_where_nothing_but_it_was_written(kind: str, text: str, answer: str, alone: bool) -> None:
    row = answers()[0] | {"suite": "cruxeval", "kind": kind, "text": text, "answer": answer, "status": "correct", "correct": True}
    scores = suite_scores(tables.table([row], tables.ANSWERS), [MEMBER]).to_pylist()
    assert {each["group"]: each["score"] for each in scores} == {"all": 1.0, f"{kind} strict": float(alone)}


def test_the_command_prints_them_under_the_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, folder = open_store(str(tmp_path)), "probe-dev/asked/s0-g0001-n4-k2"
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 2)
        table = tables.table(answers(), tables.ANSWERS)
        refs = [run.write_table_at(f"benchmarks/{folder}/answers.parquet", table, tables.ANSWERS)]
        refs.append(run.write_table_at(f"benchmarks/{folder}/scores.parquet", probe_scores(table, [MEMBER]), tables.SCORES))
        run.commit_benchmark(folder, [], refs, {}, {}, {})
    words = ["benchmark", "smoke", "--suite", "probe-dev", "--adapter", "s0-g0001", "--limit", "4", "--attempts", "2"]
    assert benchmark(_parser().parse_args(words), store, Run(store, "smoke")) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "probe-dev" and printed[2].split()[:4] == ["s0-g0001", "all", "pass@1", "greedy"]
    assert printed[-2].split() == ["s0-g0001", "greedy", "75.00", "25.00", "33.33", "31.43", "4"]
    assert printed[-1].split()[:3] == ["s0-g0001", "sampled", "62.50"]


def test_the_command_prints_what_has_changed_since_an_earlier_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 2)
        for generation, correct in ((1, True), (-1, False)):
            table = tables.table([row | {"correct": correct and row["problem_id"] != "p3"} for row in answers()], tables.ANSWERS)
            folder = probe_folder(run, Chosen((), generation), Question("probe-dev", 4, 2))
            refs = [run.write_table_at(f"benchmarks/{folder}/answers.parquet", table, tables.ANSWERS)]
            refs.append(run.write_table_at(f"benchmarks/{folder}/scores.parquet", probe_scores(table, [MEMBER]), tables.SCORES))
            run.commit_benchmark(folder, [], refs, {}, {}, {})
    words = [
        "benchmark",
        "smoke",
        "--suite",
        "probe-dev",
        "--limit",
        "4",
        "--attempts",
        "2",
        "--generation",
        "1",
        "--against",
        "-1",
    ]
    assert benchmark(_parser().parse_args(words), store, Run(store, "smoke")) == 0
    printed = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(printed) if line.startswith("since the start"))
    assert [line.split() for line in printed[at + 1 :] if line.startswith("all")] == [
        ["all", "pass@1", "greedy", "+75.00", "25.00", "3", "0", "4"],
        ["all", "pass@1", "+75.00", "25.00", "3", "0", "4"],
        ["all", "pass@2", "+75.00", "25.00", "3", "0", "4"],
    ]
    assert benchmark(_parser().parse_args([*words, "--dry-run"]), store, Run(store, "smoke")) == 0
    assert "4 adapters, 48 answers" in capsys.readouterr().out
    assert (
        benchmark(
            _parser().parse_args([*words, "--dry-run", "--problems", "dev-deduction-1-00[0-2]"]), store, Run(store, "smoke")
        )
        == 0
    )
    assert "probe-dev: 3 problems, 4 adapters" in capsys.readouterr().out
    one = ["benchmark", "smoke", "--suite", "probe-dev", "--adapter", "s0-start", "--dry-run", "--attempts", "999"]
    assert benchmark(_parser().parse_args(one), store, Run(store, "smoke")) == 0
    assert capsys.readouterr().out == "probe-dev: 3,600 problems, 1 adapter, 3,600,000 answers\n"
    with pytest.raises(ConfigError, match="suite probe-dev: no problem has an id that matches 'test-"):
        benchmark(_parser().parse_args([*words, "--problems", "test-*"]), store, Run(store, "smoke"))


def test_scores_that_are_computed_need_a_card_and_stored_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path / "store"))
    config = example_run.CONFIG.model_copy(update={"model": example_run.CONFIG.model.model_copy(update={"device": "auto"})})
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 2, config)
    machine(tmp_path / "cards", monkeypatch, 1)
    training = [cards.claim(card) for card in cards.cards()]
    chosen, asked = Chosen((), 1), Question("probe-dev", 4)
    with pytest.raises(cards.CardUnavailable, match="in use: card 0 by process"):
        score_run(run, chosen, asked)
    with hold(store, "smoke") as epoch:
        answered = tables.table(answers(), tables.ANSWERS)
        refs = [
            Run(store, "smoke", epoch).write_table_at(
                f"benchmarks/{probe_folder(run, chosen, asked)}/scores.parquet", probe_scores(answered, [MEMBER]), tables.SCORES
            )
        ]
        Run(store, "smoke", epoch).commit_benchmark(probe_folder(run, chosen, asked), [], refs, {}, {}, {})
    assert score_run(run, chosen, asked).num_rows > 0
    for held in training:
        assert held is not None
        held.release()


REFUSED = [
    (["--model", "somewhere", "--against", "0"], "compares generations of RUN"),
    (["smoke", "--adapter", "s0-start", "--against", "0"], "compares generations of RUN"),
    (["smoke", "--contamination", "--against", "0"], "compares generations of RUN"),
    (["smoke", "--contamination", "--dry-run"], "--contamination generates nothing; leave out --dry-run"),
    (
        ["smoke", "--contamination", "--problems", "dev-*"],
        "compares all problems of a suite; leave out --problems",
    ),
    (["smoke", "--members", "s0-g0001", "--against", "0"], "choose them with students, all or top:N"),
    (["smoke", "--against", "-2"], "-2: give a generation, or -1 for the start"),
    (
        ["smoke", "--max-new-tokens", "224"],
        "do not apply to probe-dev with RUN, whose model.style and benchmark.max_new_tokens hold",
    ),
    (["smoke", "--style", "chat"], "do not apply to probe-dev with RUN"),
    (["smoke", "--set", "threads=8"], "--set and --probe-prompts apply to --model"),
    (["smoke", "--probe-prompts", "chat"], "--set and --probe-prompts apply to --model"),
    (["--model", "somewhere", "--style", "chat"], "--probe-prompts says how probe-dev is asked"),
    (["--completions", "a.jsonl", "--attempts", "8", "--style", "azr"], "scored as they are; leave out --attempts, --style"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_options_that_say_nothing_of_a_run_s_own_suite_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        benchmark(_parser().parse_args(["benchmark", *words, "--suite", "probe-dev"]), open_store("/nowhere"), None)


def test_members_that_no_rule_chooses_and_generations_before_the_start_are_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 1)
    for members in ("", ",", "top:0"):
        with pytest.raises(ConfigError, match="is not one of students, all, top:N, or adapter ids"):
            Chosen(members=members).contestants(run)
    with pytest.raises(ConfigError, match="run smoke has no adapter s0-g0009; did you mean s0-g000"):
        Chosen(("s0-g0009",)).contestants(run)
    with pytest.raises(ConfigError, match="run smoke has no adapter stdents; did you mean students"):
        Chosen(members="stdents").contestants(run)
    with pytest.raises(ConfigError, match="no adapter nosuch; members are students, all, top:N, or adapter ids"):
        Chosen(members="nosuch").contestants(run)
    with pytest.raises(ConfigError, match="no adapter nosuch; there are s0-g0000, "):  # ids alone are possible here
        Chosen(("nosuch",)).contestants(run)
    for chosen in (Chosen(("students",)), Chosen(members="students,all"), Chosen(members="students,")):
        with pytest.raises(ConfigError, match="no adapter students; students is a rule of --members, and stands alone there"):
            chosen.contestants(run)
    with pytest.raises(ConfigError, match=r"--generation -7: give -1 \(the start\) or more"):
        Chosen(generation=-7)


def test_scores_of_some_problems_have_a_folder_of_their_own(tmp_path: Path) -> None:
    run = Run(open_store(str(tmp_path)), "smoke")
    folders = [
        probe_folder(run, Chosen(("s0-g0001",)), Question("probe-dev", 4, 2, pattern))
        for pattern in ("", "dev-*-1-*", "dev-*-2-*")
    ]
    assert folders[0] == "probe-dev/asked/s0-g0001-n4-k2" and len(set(folders)) == 3
    assert all(folder.startswith("probe-dev/chosen/s0-g0001-n4-k2-p") for folder in folders[1:])


def test_scores_of_chosen_problems_are_never_taken_for_the_suite_s(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 2)
        before = scored_states(RunTables(run))
        table = tables.table(answers(), tables.ANSWERS)
        folder = probe_folder(run, Chosen((), 1), Question("probe-dev", pattern="dev-*-1-*"))
        refs = [run.write_table_at(f"benchmarks/{folder}/answers.parquet", table, tables.ANSWERS)]
        refs.append(run.write_table_at(f"benchmarks/{folder}/scores.parquet", probe_scores(table, [MEMBER]), tables.SCORES))
        made = run.commit_benchmark(folder, [], refs, {}, {}, {})
    run = Run(store, "smoke")
    assert scored_states(RunTables(run)) == before
    assert made not in run.history.benchmarks() and made in run.history.chosen_benchmarks()
    assert list(fsck(run)) == []


def test_two_adapters_of_a_member_have_scores_of_their_own() -> None:
    right = [row | {"adapter_id": "s0-g0002", "status": "correct", "correct": True} for row in answers()]
    both = [MEMBER, Contestant("s0", "student", "s0-g0002", "1" * 64)]
    scores = probe_scores(tables.table([*answers(), *right], tables.ANSWERS), both).to_pylist()
    found = {row["adapter_id"]: row["score"] for row in scores if (row["group"], row["measure"]) == ("all", "pass@1 greedy")}
    assert found == {"s0-g0001": 1 / 4, "s0-g0002": 1.0}
