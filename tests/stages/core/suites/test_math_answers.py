"""Mathematical answers: where a completion gives its answer, when two are equal, and what the grader does with the rest."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.config import PROJECT
from flows.suites.suite_data import SAMPLES, load
from stages.core.suites import math_grader, prompts
from stages.core.suites.math_answers import extract, last_boxed, normal
from stages.core.suites.math_grader import GraderUnavailable, MathAnswer, MathGrader
from tests.stages.core.suites.suite_answers import PHRASINGS, near_misses

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
    replies = grader.grade([MathAnswer((gold,), answer) for gold, answer in EQUAL + APART])
    assert [reply.status for reply in replies] == ["correct"] * len(EQUAL) + ["wrong"] * len(APART)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1 2", "1 2"),
        ("2 1/2", "2 1/2"),
        ("2\\ 1/2", "2 1/2"),
        ("3 \\quad 4", "3 4"),
        ("10^2 3", "10^2 3"),
        ("$1$ $2$", "1 2"),
        ("21/2", "21/2"),
        ("70\\,000", "70000"),
        ("1,234,567", "1234567"),
        ("1, 2", "1,2"),
        ("x 2", "x2"),
        ("2 x", "2x"),
        ("( 3 , 4 )", "(3,4)"),
        ("New York", "newyork"),
        ("\\$ 18", "18"),
    ],
)
def test_space_counts_between_digits_only(text: str, form: str) -> None:
    assert normal(text) == form


def test_space_between_digits_is_another_answer(grader: MathGrader) -> None:
    asked = [MathAnswer(("12",), "1 2"), MathAnswer(("21/2",), "2 1/2"), MathAnswer(("\\frac12",), "\\frac 1 2")]
    assert [one.status for one in grader.grade(asked)] == ["wrong", "wrong", "correct"]


def test_any_of_several_gold_answers_counts(grader: MathGrader) -> None:
    assert [one.status for one in grader.grade([MathAnswer(("5", "7"), "7"), MathAnswer(("5", "7"), "6")])] == [
        "correct",
        "wrong",
    ]


def test_what_no_grader_needs_to_see() -> None:
    """No process is started for nothing, too much, or the same text."""
    with_none = MathGrader(workers=0)
    asked = [
        MathAnswer(("5",), None),
        MathAnswer(("5",), " "),
        MathAnswer(("5",), "9" * 10_000_000),
        MathAnswer(("\\frac12",), "\\dfrac12"),
    ]
    assert [one.status for one in with_none.grade(asked)] == ["format", "format", "too_long", "correct"]


def test_an_answer_that_hangs_is_its_own_timeout_and_the_rest_is_graded(grader: MathGrader) -> None:
    hanging = MathAnswer(("2",), "9^{9^{9^{9}}}")
    usual, grader.seconds = grader.seconds, 4.0
    statuses = [
        one.status for one in grader.grade([hanging, MathAnswer(("2",), "\\frac{4}{2}"), MathAnswer(("2",), "\\frac{4}{3}")])
    ]
    grader.seconds = usual
    assert statuses == ["timeout", "correct", "wrong"]


def test_waiting_for_a_processor_is_no_timeout(grader: MathGrader) -> None:
    """A process that is stopped for twice its limit has used none of it."""
    grader.grade([MathAnswer(("20",), "\\frac{40}{2}")])
    usual, grader.seconds = grader.seconds, 0.5
    grader.workers[0].process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(1.0, grader.workers[0].process.send_signal, [signal.SIGCONT])
    timer.start()
    statuses = [one.status for one in grader.grade([MathAnswer(("30",), "\\frac{60}{2}")])]
    timer.join()
    grader.seconds = usual
    assert statuses == ["correct"]


def test_silence_is_no_verdict_and_weaker_walls_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(math_grader, "WORKER", "tests.stages.core.suites.silent_grader")
    monkeypatch.setattr(math_grader, "_warned", [])
    silent = MathGrader(workers=1, seconds=0.01)
    with pytest.raises(GraderUnavailable, match="got no answer in 1 s"):
        silent.grade([MathAnswer(("1",), "2")])
    silent.close()
    assert capsys.readouterr().err.count("weaker walls here: no limit as, system call filter") == 1


def test_what_sympy_loads_late_is_loaded_and_the_question_asked_again(grader: MathGrader) -> None:
    cups = MathAnswer(("[1,2]\\cup[3,4]",), "[1,2]\\cup[3,4)"), MathAnswer(("[1,2]\\cup[3,4]",), "[3,4]\\cup[1,2]")
    assert [one.status for one in grader.grade(cups)] == ["wrong", "correct"]
    assert grader.modules == [] if grader.missing else "sympy.sets.handlers.issubset" in grader.modules


BEHIND = """
import os, resource, socket, threading
from stages.core.suites.math_walls import raise_walls
missing = raise_walls()
tries = {
    "read": lambda: open("/etc/hostname"), "write": lambda: open("/tmp/math-walls", "w"), "list": lambda: os.listdir("/"),
    "look": lambda: os.stat("/etc/hostname"), "remove": lambda: os.unlink("/tmp"), "internet": lambda: socket.socket(),
    "local": lambda: socket.socketpair(), "fork": os.fork, "exec": lambda: os.execv("/bin/true", ["true"]),
    "signal": lambda: os.kill(os.getppid(), 0), "root": lambda: os.setuid(0), "thread": threading.Thread(target=int).start,
    "limit": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (99, 99)), "memory": lambda: bytearray(3 << 30),
    "more memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name)
    except (OSError, RuntimeError, ValueError, MemoryError):
        pass
print("missing", missing)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="these walls are Linux's; elsewhere the grader says that it has none")
def test_nothing_is_in_reach_behind_the_walls() -> None:
    done = subprocess.run([sys.executable, "-c", BEHIND], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("missing []\n", 0), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_grader_stands_behind_the_walls(grader: MathGrader) -> None:
    grader.grade([MathAnswer(("40",), "\\frac{80}{2}")])
    shown = Path(f"/proc/{grader.workers[0].process.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in shown and "Seccomp:\t2" in shown and "Uid:\t0" not in shown
    assert grader.missing == ()


@pytest.mark.parametrize(("sent", "wanted"), [(signal.SIGKILL, "correct"), (signal.SIGSEGV, "crash")])
def test_a_grader_that_died_is_replaced_and_a_kill_is_no_verdict(sent: signal.Signals, wanted: str, grader: MathGrader) -> None:
    grader.grade([MathAnswer(("20",), "\\frac{40}{2}")])
    grader.workers[0].process.send_signal(sent)
    grader.workers[0].process.wait()
    gold = str(int(sent))
    asked = [MathAnswer((gold,), f"\\frac{{{2 * sent}}}{{2}}"), MathAnswer(("4",), f"\\frac{{{4 * sent}}}{{{sent}}}")]
    assert sorted(one.status for one in grader.grade(asked)) == sorted([wanted, "correct"])


def test_a_grader_that_is_killed_at_each_try_is_unavailable_and_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_grader, "WORKER", "tests.stages.core.suites.killed_grader")
    killed, question = MathGrader(workers=1), MathAnswer(("1",), "2")
    with pytest.raises(GraderUnavailable, match="was killed twice at one answer: free memory on this machine"):
        killed.grade([question])
    assert killed.known == {} and killed.workers == []


def test_a_grader_that_does_not_start_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_grader, "WORKER", "stages.core.suites.no_such_worker")
    with pytest.raises(GraderUnavailable, match="math-verify"):
        MathGrader(workers=1).grade([MathAnswer(("1",), "2")])


def _phrasings(suite: str, data: Path, grader: MathGrader) -> tuple[int, int]:
    """How many gold answers in all phrasings, and near misses, count."""
    problems = load(suite, data)
    right = [
        MathAnswer(problem.outputs, prompts.answer(problem, phrasing.replace("%s", problem.outputs[0])))
        for problem in problems
        for phrasing in PHRASINGS.values()
    ]
    wrong = [
        MathAnswer(problem.outputs, prompts.answer(problem, PHRASINGS["boxed"].replace("%s", miss)))
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
