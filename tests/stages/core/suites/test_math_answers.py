"""Mathematical answers: where a completion gives its answer, when two are equal, and what the grader does with the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.benchmarks.suite_data import SAMPLES, load
from stages.core.suites import math_grader, prompts
from stages.core.suites.math_answers import extract, last_boxed
from stages.core.suites.math_grader import GraderUnavailable, MathGrader, Question
from tests.support.suite_answers import PHRASINGS, near_misses

FULL = Path(__file__).resolve().parents[5] / "shared" / "benchdata"


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    """One for all: loading its libraries takes seconds."""
    made = MathGrader(workers=1, seconds=60.0)
    yield made
    made.close()


CASES = [
    ("So \\boxed{4}. Check: \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
    ("\\boxed {7}", "7"),
    ("\\fbox{7}", "7"),
    ("\\boxed 7$.", "7"),
    ("first \\boxed{5} and then \\boxed{6", "5"),
    ("<think>\\boxed{1}</think><answer>2</answer>", "2"),
    ("<answer>1</answer> no: <answer> $\\boxed{3}$ </answer>", "3"),
    ("<answer>17", "17"),
    ("<answer>The answer is 12 apples</answer>", "12 apples"),
    ("####  1,234 ", "1,234"),
    ("#### 5\n#### 6", "6"),
    ("The answer is: **42**.", "42"),
    ("**Answer:** $x^2$", "x^2"),
    ("Final Answer: The final answer is $(1, 2)$. I hope it is correct.", "(1, 2)"),
    ("The answer is $3$ or $-3$.", "3 or -3"),
    ("answer = 12", "12"),
    ("we get\n\\[ x = 5 \\]\nand stop", "x = 5"),
    ("hence $y$ and so \\(9\\)", "9"),
    ("It costs \\$5 and then \\$12.50 in all", "12.50"),
    ("There are 12 of 3,500", "3,500"),
    ("Take 3/4 of it", "3/4"),
    ("-7", "-7"),
    (".5", ".5"),
    ("\\frac{35}{64}", "\\frac{35}{64}"),
    ("```\n2\\sqrt{3}\n```", "2\\sqrt{3}"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ("", None),
    ("   \n", None),
    ("no idea at all", None),
    ("\\boxed{}", None),
]


@pytest.mark.parametrize(("text", "answer"), CASES)
def test_the_answer_of_a_completion(text: str, answer: str | None) -> None:
    assert extract(text) == answer


def test_an_unended_box_of_a_megabyte_is_read_in_passing() -> None:
    assert last_boxed("\\boxed{" + "{" * 1_000_000) == ""


EQUAL = [
    ("27", "27.0"),
    ("0.5", "\\frac12"),
    ("18", "18 dollars"),
    ("18", "\\$18.00"),
    ("70000", "70,000"),
    ("\\frac{3}{56}", "3/56"),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"),
    ("1,-2", "-2, 1"),
    ("p - q", "-q+p"),
    ("90^\\circ", "90"),
    ("\\text{Evelyn}", "Evelyn"),
    ("4.5e33", "4.5 \\times 10^{33}"),
    ("864 \\mbox{ inches}^2", "864"),
    ("11_2", "11_{2}"),
]
APART = [
    ("27", "27.5"),
    ("0.3333", "1/3"),
    ("18", "-18"),
    ("(3, 4)", "(4, 3)"),
    ("[1,2)", "[1,2]"),
    ("p - q", "q - p"),
    ("\\text{Evelyn}", "Evan"),
    ("6.6e-34", "7.6e-34"),
    ("864 \\mbox{ inches}^2", "864 \\mbox{ inches}^2 - \\frac{1}{2}"),
    ("11_2", "11_3"),
    ("1,2,3", "1,2"),
]


def test_equal_and_unequal_answers(grader: MathGrader) -> None:
    replies = grader.grade([Question((gold,), answer) for gold, answer in EQUAL + APART])
    assert [reply.status for reply in replies] == ["correct"] * len(EQUAL) + ["wrong"] * len(APART)


def test_any_of_several_gold_answers_counts(grader: MathGrader) -> None:
    assert [one.status for one in grader.grade([Question(("5", "7"), "7"), Question(("5", "7"), "6")])] == ["correct", "wrong"]


def test_what_no_grader_needs_to_see() -> None:
    """No process is started for nothing, too much, or the same text."""
    with_none = MathGrader(workers=0)
    asked = [
        Question(("5",), None),
        Question(("5",), " "),
        Question(("5",), "9" * 10_000_000),
        Question(("\\frac12",), "\\dfrac12"),
    ]
    assert [one.status for one in with_none.grade(asked)] == ["format", "format", "too_long", "correct"]


def test_an_answer_that_hangs_is_its_own_timeout_and_the_rest_is_graded(grader: MathGrader) -> None:
    hanging = Question(("2",), "9^{9^{9^{9}}}")
    usual, grader.seconds = grader.seconds, 4.0
    statuses = [one.status for one in grader.grade([hanging, Question(("2",), "\\frac{4}{2}"), Question(("2",), "\\frac{4}{3}")])]
    grader.seconds = usual
    assert statuses == ["timeout", "correct", "wrong"]


def test_a_grader_that_was_killed_is_replaced(grader: MathGrader) -> None:
    grader.grade([Question(("20",), "\\frac{40}{2}")])
    grader.workers[0].process.kill()
    grader.workers[0].process.wait()
    statuses = [one.status for one in grader.grade([Question(("3",), "\\frac{6}{2}"), Question(("4",), "\\frac{8}{2}")])]
    assert statuses == ["crash", "correct"]


def test_a_grader_that_does_not_start_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_grader, "WORKER", "stages.core.suites.no_such_worker")
    with pytest.raises(GraderUnavailable, match="math-verify"):
        MathGrader(workers=1).grade([Question(("1",), "2")])


def _phrasings(suite: str, data: Path, grader: MathGrader) -> tuple[int, int]:
    """How many gold answers in all phrasings, and near misses, count."""
    problems = load(suite, data)
    right = [
        Question(problem.outputs, prompts.answer(problem, phrasing.replace("%s", problem.outputs[0])))
        for problem in problems
        for phrasing in PHRASINGS.values()
    ]
    wrong = [
        Question(problem.outputs, prompts.answer(problem, PHRASINGS["boxed"].replace("%s", miss)))
        for problem in problems
        for miss in near_misses(problem.outputs[0])
    ]
    assert len(wrong) >= len(problems)
    assert all(one.status == "correct" for one in grader.grade(right))
    assert not [question for question, one in zip(wrong, grader.grade(wrong), strict=True) if one.status == "correct"]
    return len(right), len(wrong)


@pytest.mark.parametrize("suite", ["gsm8k", "olympiadbench"])
def test_gold_answers_count_in_five_phrasings_and_near_misses_never(suite: str, grader: MathGrader) -> None:
    right, wrong = _phrasings(suite, SAMPLES, grader)
    assert right >= 35 and wrong >= 7


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not FULL.is_dir(), reason="no folder shared/benchdata beside the checkout")
@pytest.mark.parametrize(
    ("suite", "problems"),
    [("gsm8k", 1319), ("math500", 500), ("olympiadbench", 675), ("aime24", 30), ("aime25", 30), ("amc23", 40), ("minerva", 272)],
)
def test_gold_answers_of_the_whole_suites(suite: str, problems: int, grader: MathGrader) -> None:
    assert _phrasings(suite, FULL, grader)[0] == 5 * problems
