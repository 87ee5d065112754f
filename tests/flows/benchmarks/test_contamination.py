"""The contamination report: what counts as a match, and scores with and without the problems that matched."""

from pathlib import Path

import pytest

from flows.benchmarks import targets
from flows.benchmarks.contamination import _keys, contamination
from flows.benchmarks.score import request_for
from flows.benchmarks.suite_score import score_suite
from flows.config import dump
from flows.run.lease import hold
from flows.run.manifest import Ref
from flows.run.run import Run
from flows.storage import open_store
from flows.suites.program_keys import program_keys
from flows.suites.suite_data import SAMPLES, load
from stages.benchmark import StoredCompletion
from stages.core import tables
from stages.core.suites.contamination import matches
from stages.core.suites.problems import Form, Problem
from stages.core.suites.scores import Contestant, probe_scores
from tests.support.example_run import CLOCK, CONFIG, seed_row

QUESTION = "A farmer has seventeen sheep and all but nine of them run away in the night; how many are left to him?"
FARM = Problem("farm", Form.MATHEMATICS, "all", QUESTION, outputs=("9",))
SHORT = Problem("short", Form.MATHEMATICS, "all", "What is one and one and one and one?", outputs=("4",))
TINY = Problem("tiny", Form.MATHEMATICS, "all", "What is one and one?", outputs=("2",))
CODE = Problem("code", Form.FUNCTION, "mbpp", "", "", "add", "def add(a, b):\n    '''Adds.'''\n    return a + b\n")


def _task(program: str, message: str = "", key: str | None = None) -> dict[str, object]:
    return {"task_id": "g0002-m00-p001", "program": program, "message": message, "program_key": key}


CASES = [
    (_task("def f(x):\n    return x"), []),
    (_task("# A FARMER has\n# seventeen sheep, and all but nine of them run away!\ndef f(x): ..."), [("farm", "words")]),
    (_task("# A farmer has seventeen sheep and all but nine of them run\ndef f(x): ..."), []),  # twelve words are not enough
    (_task("# a FARMER has seventeen sheep and all but nine of"), [("farm", "words")]),  # unless they are all of the text
    (_task("def f(x): ...", "seventeen sheep, and all but nine of"), []),  # seven words never are
    (_task("def f(x): ...", "seventeen sheep, and all but nine of them"), [("farm", "words")]),
    (_task("# seventeen sheep and all but nine of them\ndef f(x): ..."), []),
    (_task("def f(x): ...", "what is One and one AND one and one"), [("short", "words")]),
    (_task("# what is one and one"), []),
    (_task("def g(x, y):\n    return x + y", "", program_keys(["def g(x, y):\n    return x + y"])[0]), [("code", "program")]),
    (_task("def g(x, y):\n    return x - y", "", program_keys(["def g(x, y):\n    return x - y"])[0]), []),
]


@pytest.mark.parametrize(("task", "wanted"), CASES)
def test_what_counts_as_a_match(task: dict[str, object], wanted: list[tuple[str, str]]) -> None:
    keys = {"code": [key for key in program_keys([CODE.reference]) if key]}
    found = matches([FARM, SHORT, TINY, CODE], keys, [(2, task)]).to_pylist()
    assert [(row["problem_id"], row["rule"]) for row in found] == wanted
    assert all((row["task_id"], row["generation"]) == ("g0002-m00-p001", 2) and row["shared"] for row in found)


def test_a_short_task_is_looked_up_as_a_whole_only() -> None:
    """That one task is eight words of a problem makes no match of a longer one that has these eight words, too."""
    short, longer = (
        _task("", "seventeen sheep and all but nine of them"),
        _task("", f"seventeen sheep and all but nine of them {'go ' * 9}"),
    )
    found = matches([FARM, SHORT], {}, [(0, short), (1, longer)]).to_pylist()
    assert [(row["problem_id"], row["generation"]) for row in found] == [("farm", 0)]


def test_a_text_that_is_no_program_has_no_key() -> None:
    assert program_keys(["def f(:", "def f(x): return x"])[0] is None


@pytest.mark.parametrize("line", ["from typing import List, Dict", "from typing import (\n    List,\n)", "import typing"])
def test_a_copy_without_what_annotations_need_is_the_same_program(line: str) -> None:
    stub = f"{line}\n\n\ndef add(a: List[int], b: int) -> List[int]:\n    return [x + b for x in a]\n"
    problem = Problem("typed", Form.FUNCTION, "humaneval", "", stub, "add", stub)
    [copied] = program_keys(["def f(values, n):\n    return [one + n for one in values]"])
    assert copied in _keys((problem,))["typed"]


def test_a_report_gives_scores_with_and_without_the_matches(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    problems = load("gsm8k", SAMPLES)
    seed = seed_row("deduction") | {"message": problems[0].question}
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        run.describe(dump(CONFIG), {"base_model": "0" * 64}, CLOCK)
        seeds = run.write_table(None, "seeds", tables.table([seed], tables.SEEDS))
        run.commit("start", None, [], [seeds], {}, {"base_model": "0" * 64}, CLOCK)
    who = Contestant("s0", "student", "s0-start", "0" * 64)
    texts = [f"\\boxed{{{problems[0].outputs[0]}}}", *["no"] * 11]
    given = tuple(StoredCompletion(who, one.problem_id, 0, text) for one, text in zip(problems, texts, strict=True))
    target = targets.BenchmarkTarget(run, "start", CONFIG, (who,), {}, (), given)
    score_suite(target, request_for("gsm8k", CONFIG, SAMPLES))
    for _ in range(2):  # the second finds the first, and says the same
        found = contamination(run, "gsm8k", SAMPLES)
        assert [(row["problem_id"], row["task_id"], row["generation"]) for row in found.matches.to_pylist()] == [
            ("gsm8k/0", "seed-deduction", -1)
        ]
        ((_, (whole, clean)),) = found.scores.items()
        assert (round(whole["score"], 4), whole["problems"]) == (0.0833, 12)
        assert clean is not None and (clean["score"], clean["problems"]) == (0.0, 11)
        assert "1 tasks and seed rows compared with 12 problems: 1 match" in found.text()
        assert "8.33 ± 8.33 (n = 12); without matches 0.00 ± 0.00 (n = 11)" in found.text()
    assert len([one for one in run.history.benchmarks() if "contamination" in one.outputs[0].uri]) == 1


def test_scores_of_an_own_suite_have_the_same_measures_without_the_matches(tmp_path: Path) -> None:
    """Own suites call the mean of sampled answers avg@1, public ones avg@n."""
    store = open_store(str(tmp_path / "store"))
    with hold(store, "r") as epoch:
        run = _begun(Run(store, "r", epoch))
        run.commit_benchmark("probe-dev/asked/start-n2-k2", [], _scored(run, "probe-dev/asked/start-n2-k2"), {}, {}, {})
    found = contamination(run, "probe-dev", None)
    assert {measure for *_, measure in found.scores} >= {"avg@1", "pass@2"} and found.matches.num_rows == 0
    assert all(clean is not None and clean["score"] == whole["score"] == 1.0 for whole, clean in found.scores.values())


def test_scores_that_the_run_made_itself_are_in_the_report(tmp_path: Path) -> None:
    store, folders = open_store(str(tmp_path / "store")), ["start", "generation=0000", "generation=0000/births"]
    with hold(store, "r") as epoch:
        run = _begun(Run(store, "r", epoch))
        refs = [ref for folder in folders for ref in _scored(run, f"probe-dev/{folder}")]
        run.commit("benchmark", 0, [], [*refs, *_scored(run, "probe-test/start")], {}, {}, CLOCK)
    found = contamination(run, "probe-dev", None)
    assert [where for where, *_, measure in found.scores if measure == "pass@1 greedy"] == folders
    assert "generation=0000/births s0-start pass@1 greedy: 100.00" in found.text()


def _begun(run: Run) -> Run:
    run.describe(dump(CONFIG), {"base_model": "0" * 64}, CLOCK)
    seeds = run.write_table(None, "seeds", tables.table([seed_row("deduction")], tables.SEEDS))
    run.commit("start", None, [], [seeds], {}, {"base_model": "0" * 64}, CLOCK)
    return run


def _scored(run: Run, folder: str) -> list[Ref]:
    """Write two solved problems, each with a greedy and two sampled answers."""
    who = Contestant("s0", "student", "s0-start", "0" * 64)
    row = {"suite": folder.partition("/")[0], "adapter_id": who.adapter_id, "adapter_sha256": who.adapter_sha256}
    row |= {"member_id": "s0", "kind": "deduction", "band": 1, "text": "1", "answer": "1", "status": "correct", "correct": True}
    asked = [
        row | {"problem_id": f"dev-{number}", "attempt": attempt, "greedy": attempt == 0}
        for number in range(2)
        for attempt in range(3)
    ]
    answers = tables.table(asked, tables.ANSWERS)
    return [
        run.write_table_at(f"benchmarks/{folder}/answers.parquet", answers, tables.ANSWERS),
        run.write_table_at(f"benchmarks/{folder}/scores.parquet", probe_scores(answers, [who]), tables.SCORES),
    ]
