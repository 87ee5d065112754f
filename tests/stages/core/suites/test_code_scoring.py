"""Scores of programs: EvalPlus's and LiveCodeBench's rules, the references of the samples, and solutions that try something."""

import base64
import gzip
import json
import random
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.backend import Backend
from flows.benchmarks.suite_score import MEMORY_MB, PATIENT_SECONDS
from flows.config import RunConfig
from flows.suites.suite_data import SAMPLES, load
from stages.core.sandbox.protocol import Status, Verdict
from stages.core.suites import evalplus_rules, harness, livecode_rules
from stages.core.suites.code_scoring import Sandboxes, Score, expected_values, score_programs
from stages.core.suites.harness import ReturnedValue
from stages.core.suites.mutants import mutants
from stages.core.suites.problems import BadSuite, Form, Problem

CPU = 1.0  # of solutions that never end there are three below
FULL = Path(__file__).resolve().parents[5] / "shared" / "benchdata" / "code"


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[Sandboxes]:
    """One container for all: the second pool starts only where a reference is slow."""
    backend = Backend(RunConfig())
    room = {"memory_mb": MEMORY_MB, "input_text": harness.MAX_INPUT}
    usual, patient = (
        backend.sandbox_with(cpu_seconds=seconds, wall_seconds=60.0 + 6 * seconds, **room) for seconds in (CPU, PATIENT_SECONDS)
    )
    yield Sandboxes(usual, patient)
    for pool in (usual, patient):
        pool.close()
    backend.close()


# --- when a value counts, without a sandbox


def _mbpp(name: str, tolerance: float = 0.0) -> Problem:
    return Problem("Mbpp/1", Form.FUNCTION, "mbpp", "", "", name, "reference", ("(2, 3)",), tolerance=tolerance)


def _values(*texts: str) -> list[ReturnedValue]:
    return [ReturnedValue(text[0], text[1:]) for text in texts]


RULES = [
    ("f", 0.0, "v1", "v1.0", True),
    ("f", 0.0, "v1", "vTrue", True),
    ("f", 0.0, "v[1, 2]", "v(1, 2)", False),
    ("f", 0.0, "s{'a': 1}", "v{'a': 1}", True),
    ("f", 0.0, "v0.1", "v0.10000001", True),
    ("f", 0.0, "v0.1", "v0.1001", False),
    ("f", 1e-3, "v0.1", "v0.1001", True),
    ("f", 0.0, "v[1.0, 2.0]", "v[1.0, 2.0000001]", True),
    ("f", 0.0, "v[1.0]", "v[1.0, 1.0]", False),
    ("f", 0.0, "v1", "v1.0000001", False),
    ("f", 0.0, "v2.0", "vNone", False),
    ("f", 0.0, "vnan", "vnan", False),
    ("f", 0.0, "o'Y'", "v1", False),
    ("f", 0.0, "e'ValueError: no'", "v1", False),
    ("f", 0.0, "d'ab'", "d'ab'", True),
    ("f", 0.0, "d'ab'", "v1", False),
    ("are_equivalent", 0.0, "vTrue", "vFalse", True),
    ("sum_div", 0.0, "v0", "v7", True),
    ("sum_div", 0.0, "v1", "v7", False),
    ("digit_distance_nums", 0.0, "v1", "v7", True),
    ("surface_Area", 0.0, "v17", "v99", True),
    ("check_str", 0.0, "vTrue", "vTrue", True),
    ("check_str", 0.0, "v1", "vTrue", False),
]


@pytest.mark.parametrize(("name", "tolerance", "given", "wanted", "counts"), RULES)
def test_when_a_returned_value_counts(name: str, tolerance: float, given: str, wanted: str, counts: bool) -> None:
    failing = evalplus_rules.failing(_mbpp(name, tolerance), ["(2, 3)"], _values(given), _values(wanted))
    assert (failing == "") == counts


def test_a_run_that_ended_early_names_the_test() -> None:
    assert (
        evalplus_rules.failing(_mbpp("f"), ["(1,)", "(2,)"], _values("v1"), _values("v1", "v2"))
        == "test 2: the run ended before it"
    )


MANY = 10_002  # members: such a list comes out as a digest
SAME = [
    ([1] * MANY, [True, 1.0, 1 + 0j] * (MANY // 3)),
    ([0, *range(MANY)], [-0.0, *range(MANY)]),
    ([1.5, 10**400] * MANY, [1.5 + 0j, 10**400] * MANY),
    ([{1: "a", 2: [b"x"]}, {3, 4}] * MANY, [{2.0: [b"x"], True: "a"}, frozenset([4, 3])] * MANY),
    ((None, float("inf"), 1 + 2j) * MANY, (None, float("inf"), 1.0 + 2j) * MANY),
    ([(1, 2)] * MANY, [namedtuple("Pair", "a b")(1, 2)] * MANY),
]
OTHER = [
    ([-1] * MANY, [-2] * MANY),  # one hash in Python
    ([0] * MANY, [2**61 - 1] * MANY),
    ([{-1: 0}] * MANY, [{-2: 0}] * MANY),
    ([-1, *range(MANY)], [-2, *range(MANY)]),
    ([1] * MANY, [1] * (MANY + 1)),
    ([1] * MANY, (1,) * MANY),
    ([[1, 2]] * MANY, [(1, 2)] * MANY),
    (["1"] * MANY, [1] * MANY),
    (["a"] * MANY, [b"a"] * MANY),
    (["a\nb"] * MANY, ["a", "b"] * MANY),
    ([set()] * MANY, [{}] * MANY),
    ([1.5] * MANY, [1.5000001] * MANY),
    ([["a,b"]] * MANY, [["a", "b"]] * MANY),
]


def test_long_lists_have_one_digest_exactly_where_they_are_equal() -> None:
    scope: dict[str, Any] = {}
    exec(harness._COMMON, scope)
    line_of = scope["line_of"]
    for one, other in SAME:
        assert line_of(one, True) == line_of(other, True), (one[:3], other[:3])
    for one, other in OTHER:
        assert line_of(one, True) != line_of(other, True), (one[:3], other[:3])
    assert all(line_of(one, True)[0] == "d" and len(line_of(one, True)) == 67 for pair in SAME + OTHER for one in pair)
    assert line_of([float("nan")] * MANY, True) == line_of([object()] * MANY, True) == "o'list'"


OUTPUTS = [
    ("v'3\\n4'", "3\n4\n", True),
    ("v'3 \\n 4'", "3\n4", True),
    ("v'3.0'", "3", True),
    ("v'1.50 2'", "1.5 2.00", True),
    ("v'yes'", "YES", False),
    ("v'1\\n2\\n3'", "1\n2", False),
    ("v'0.333333'", "0.333334", False),
    ("vnope(", "1", False),
    ("v3", "3", False),
    ("v'" + "\\n" * 100_000 + "3'", "3", True),
    ("v'sNaN'", "1", False),
]


def test_a_result_of_a_million_lines_is_a_crash_and_not_a_million_objects() -> None:
    packed = harness._packed(b"v1\n" * 1_000_000)
    found = harness.read(Verdict(Status.VALID, repr(packed), "", None))
    assert (found.status, found.groups) == ("crash", ()) and "more than 65536 lines" in found.detail


def test_more_groups_than_were_asked_for_are_a_crash_and_none_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = repr([harness._packed(b"v1\nv2")] * 3)
    assert len(harness.read(Verdict(Status.VALID, groups, "", None), asked=3).groups) == 3
    monkeypatch.setattr(harness, "_lines", None)
    for asked in (1, 2):
        found = harness.read(Verdict(Status.VALID, groups, "", None), asked)
        assert (found.status, found.groups) == ("crash", ()) and f"3 groups where {asked} were asked for" in found.detail


@pytest.mark.parametrize(("written", "expected", "counts"), OUTPUTS)
def test_when_an_output_counts(written: str, expected: str, counts: bool) -> None:
    assert livecode_rules.output_counts(ReturnedValue(written[0], written[1:]), expected) == counts


def test_a_result_that_is_none_of_ours_is_a_crash() -> None:
    for text in ("'!!'", "[1]", "['eJwrTk0GAAJKAS4=']"):
        outcome = harness.read(Verdict(Status.VALID, text, "", None, None))
        assert outcome.status == Status.CRASH, text


# --- in the sandbox


@pytest.mark.docker
@pytest.mark.parametrize("suite", ["mbpp-plus", "humaneval-plus"])
def test_references_pass_and_mutants_fail(suite: str, sandboxes: Sandboxes) -> None:
    """Of each kind of change the first: what returns nothing, a list, or an error is wrong in every task."""
    problems = load(suite, SAMPLES)
    expected = expected_values(problems, sandboxes)
    assert score_programs([(one, one.reference) for one in problems], sandboxes, expected) == [Score("correct")] * len(problems)
    wrong = [
        (problem, next(text for kind, text in mutants(problem.reference) if kind == wanted))
        for problem in problems
        for wanted in ("listed", "refused")
        if problem.entry_point not in evalplus_rules.PRESENCE | evalplus_rules.SETS | {"are_equivalent"}
    ]
    assert len(wrong) >= len(problems)
    found = score_programs(wrong, sandboxes, expected)
    assert not [(problem.problem_id, score) for (problem, _), score in zip(wrong, found, strict=True) if score.correct]


TWICE = Problem(
    "Mbpp/1", Form.FUNCTION, "mbpp", "", "", "f", "def f(x):\n    return x * 2\n", ("(1,)", "(2,)"), ("(10,)", "(300,)")
)
TRICKS = {
    "def f(x):\n    return x + x": "correct",
    "f = lambda x: 2 * x\nif __name__ == '__main__':\n    raise ValueError": "correct",
    "import functools\nclass A:\n    def __call__(self, x):\n        return 2.0 * x\nf = A()": "correct",
    "def f(x):\n    print('x' * 10**6)\n    return x * 2": "correct",
    "def f(x):\n    return x * 2 if x < 100 else 0": "base_only",
    "def f(x):\n    if x > 100: 1 / 0\n    return x * 2": "base_only",
    "def f(x):\n    while x > 100: pass\n    return x * 2": "base_only",
    "def f(x):\n    if x > 100: import os; os._exit(0)\n    return x * 2": "base_only",
    "def f(x):\n    return x * 3": "wrong",
    "def f(x):\n    return": "wrong",
    "def f(x):\n    raise SystemExit(0)": "error",
    "def f(x):\n    return 1 / 0": "error",
    "def g(x):\n    return x * 2": "error",
    "def f(:": "error",
    "def f(x):\n    while True: pass": "timeout",
    "import os\nos._exit(0)": "error",
    "import os\nclass A:\n    os._exit(0)\ndef f(x):\n    return A": "crash",
    "def f(x):\n    return 2 * x\nprint(f(1))\nassert f(1) == 3\ny = int(input())": "correct",
    "The answer:\n\ndef f(x):\n    return twice(x)\n\ndef twice(x):\n    return 2 * x\n\nIt doubles x.": "correct",
    "def f(x):\n    pass\n\ndef f(x):\n    return 2 * x": "correct",
    "class Y:\n    def __eq__(self, other): return True\ndef f(x):\n    return Y()": "wrong",
    "class I(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(x):\n    return I(7)": "wrong",
    "import sys\ndef f(x):\n    frame = sys._getframe(1)\n    frame.f_locals['lines'].append(\"v2\")\n    return 0": "wrong",
    "import sys\ndef f(x):\n    sys._getframe(1).f_locals['answers'].extend([['v2']] * 300)\n    return x * 2": "crash",
    "def f(x):\n    x = [0] * 10**10\n    return 2": "error",
    "   ": "format",
    "#" * 60_000: "too_long",
}


@pytest.mark.docker
def test_what_becomes_of_solutions_that_try_something(sandboxes: Sandboxes) -> None:
    found = score_programs([(TWICE, text) for text in TRICKS], sandboxes, expected_values([TWICE], sandboxes))
    assert {text[:50]: str(one.status) for text, one in zip(TRICKS, found, strict=True)} == {k[:50]: v for k, v in TRICKS.items()}


@pytest.mark.docker
def test_equal_answers_run_once_and_none_is_no_program(sandboxes: Sandboxes) -> None:
    found = score_programs([(TWICE, TWICE.reference), (TWICE, None)] * 3, sandboxes, expected_values([TWICE], sandboxes))
    assert [one.status for one in found] == ["correct", "format"] * 3


@pytest.mark.docker
def test_long_lists_of_lists_are_compared(sandboxes: Sandboxes) -> None:
    rows = Problem(
        "Mbpp/2", Form.FUNCTION, "mbpp", "", "", "f", "def f(n):\n    return [[i, i] for i in range(n)]\n", ("(20000,)",)
    )
    asked = [
        (rows, rows.reference),
        (rows, rows.reference.replace("[i, i]", "[i, i // 2]")),
        (rows, rows.reference.replace("i, i", "i, i * 1.0")),
    ]
    found = score_programs(asked, sandboxes, expected_values([rows], sandboxes))
    assert [one.status for one in found] == ["correct", "wrong", "correct"]


@pytest.mark.docker
def test_a_reference_that_fails_is_a_fault_of_the_data(sandboxes: Sandboxes) -> None:
    broken = Problem("Mbpp/3", Form.FUNCTION, "mbpp", "", "", "f", "def f(x):\n    return 1 / x\n", ("(0,)",))
    with pytest.raises(BadSuite, match=r"problem Mbpp/3: its reference fails here: .*ZeroDivisionError"):
        expected_values([broken], sandboxes)


LIVE = {
    "sample_a": {
        "a, b = map(int, input().split())\nprint(a + b)\nprint(a - b)": "correct",
        "import sys\na, b = map(int, sys.stdin.read().split())\nprint(f'{a + b}\\n{a - b}'); exit()": "correct",
        "a, b = map(int, open(0).read().split())\nprint(a + b, a - b, sep='\\n')": "correct",
        "a, b = map(int, input().split())\nprint(a + b)": "wrong",
        "a, b = map(int, input().split())\nprint(a + b)\nprint(a - b)\nraise SystemExit(1)": "correct",
        "a, b = map(int, input().split())\nprint(a + b)\nprint(a - b)\nraise ValueError": "error",
        "input(); input()": "error",
        "a, b = map(int, stdin.readline().split())\nassert pow(3, -1, 7) == 5\nprint(a + b)\nprint(a - b)": "correct",
        "a, b = deepcopy([int(x) for x in re.split(' ', input())])\ndatetime.date\nprint(a + b)\nprint(a - b)": "correct",
    },
    "sample_b": {
        "n = int(input())\nprint(sum(map(float, input().split())) / n)": "wrong",
        "n = int(input())\nprint(f'{mean:.6f}')": "error",
    },
    "sample_c": {
        "class Solution:\n    def rotate(self, nums: List[int], k: int) -> List[int]:\n        k = k % len(nums) if nums else 0\n"
        "        return nums[-k:] + nums[:-k] if k else nums": "correct",
        "class Solution:\n    def rotate(self, nums, k):\n        d = deque(nums)\n        d.rotate(k)\n"
        "        return tuple(d)": "correct",
        "class Solution:\n    def rotate(self, nums, k):\n        return nums": "wrong",
        "def rotate(nums, k):\n    return nums": "wrong",
        "def rotate(nums, k):\n    k = k % len(nums) if nums else 0\n    return nums[-k:] + nums[:-k]": "correct",
        "def turn(nums, k):\n    return nums": "error",
    },
    "sample_d": {
        "class Solution:\n    def allDifferent(self, text):\n"
        "        return len(set(text.split())) == len(text.split())": "correct"
    },
}


@pytest.mark.docker
def test_livecodebench_programs_and_methods(sandboxes: Sandboxes) -> None:
    problems = {one.problem_id: one for one in load("livecodebench", SAMPLES)}
    asked = [(problems[name], text, wanted) for name, answers in LIVE.items() for text, wanted in answers.items()]
    found = score_programs([(problem, text) for problem, text, _ in asked], sandboxes, {})
    assert [(one.problem_id, text, str(score.status)) for (one, text, _), score in zip(asked, found, strict=True)] == [
        (one.problem_id, text, wanted) for one, text, wanted in asked
    ]


LONG = list(range(120_000))
NOISE = base64.b64encode(random.Random(0).randbytes(2_000_000)).decode()  # compressed, the job has 2.7 million characters
COUNT = Problem(
    "live/1",
    Form.FUNCTION,
    "hard",
    "",
    "class Solution:\n    def count(self, n):\n",
    "Solution.count",
    inputs=("(3,)", "(120000,)", "(4,)"),
    outputs=("[0, 1, 2]", repr(LONG), "[0, 1, 2, 3]"),
)
COUNTED = {
    "class Solution:\n    def count(self, n):\n        return list(range(n))": "correct",
    "class Solution:\n    def count(self, n):\n        return tuple(range(n))": "correct",
    "class Solution:\n    def count(self, n):\n        return list(range(n - 1)) + [n]": "wrong",
    "import time\nclass Solution:\n    def count(self, n):\n        t = time.process_time()\n"
    "        while time.process_time() < t + 0.6: pass\n        return list(range(n))": "correct",  # 1.8 s in all, 0.6 s a test
    "class Solution:\n    def count(self, n):\n        while n > 4: pass\n        return list(range(n))": "timeout",
}


@pytest.mark.docker
def test_long_values_of_methods_count_and_the_time_limit_is_a_tests(sandboxes: Sandboxes) -> None:
    found = score_programs([(COUNT, text) for text in COUNTED], sandboxes, {})
    assert [(text, str(score.status)) for text, score in zip(COUNTED, found, strict=True)] == list(COUNTED.items())


@pytest.mark.docker
def test_long_inputs_are_read_whole(sandboxes: Sandboxes) -> None:
    problem = Problem("live/2", Form.STDIN, "hard", "", inputs=(NOISE,), outputs=(str(len(NOISE)),))
    assert score_programs([(problem, "print(len(input()))")], sandboxes, {}) == [Score("correct")]


def test_a_test_too_long_for_the_sandbox_is_the_suites_fault() -> None:
    with pytest.raises(BadSuite, match="characters, over 32,000,000"):
        harness.stdin_job("print(1)", "", NOISE * 20)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not FULL.is_dir(), reason="no folder shared/benchdata beside the checkout")
def test_every_reference_of_mbpp_plus_passes_and_what_refuses_fails(sandboxes: Sandboxes) -> None:
    problems = load("mbpp-plus", FULL)
    expected = expected_values(problems, sandboxes)
    found = score_programs([(one, one.reference) for one in problems], sandboxes, expected)
    assert len(found) == 378 and all(one.correct for one in found)
    refusing = [(one, next(text for kind, text in mutants(one.reference) if kind == "refused")) for one in problems]
    scores = zip(problems, score_programs(refusing, sandboxes, expected), strict=True)
    assert [problem.problem_id for problem, score in scores if score.correct] == ["Mbpp/9"]  # no input reaches its last return


def _humaneval(folder: Path) -> dict[str, str]:
    """HumanEval in EvalPlus's layout, of its early form (whose plus inputs break contracts) and OpenAI's; OpenAI's solutions."""
    rows = [json.loads(line) for line in gzip.decompress((FULL.parent / "extra/HumanEval.jsonl.gz").read_bytes()).splitlines()]
    early = [json.loads(line) for line in (FULL / "HumanEvalPlus_early.jsonl").read_text().splitlines()]
    originals = {row["task_id"]: row["prompt"] + row["canonical_solution"] for row in rows}
    for row, better in zip(rows, early, strict=True):
        row |= {"base_input": better["base_input"], "plus_input": [], "atol": float(better["atol"])}
        row |= {"canonical_solution": better["reference"]}
    (folder / "HumanEvalPlus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return originals


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not FULL.is_dir(), reason="no folder shared/benchdata beside the checkout")
def test_every_solution_of_humaneval_passes_and_what_refuses_fails(sandboxes: Sandboxes, tmp_path: Path) -> None:
    """EvalPlus's references and OpenAI's solutions: two authors, one verdict."""
    originals = _humaneval(tmp_path)
    problems = load("humaneval-plus", tmp_path)
    assert len(problems) == 164
    expected = expected_values(problems, sandboxes)
    assert all(one.correct for one in score_programs([(one, one.reference) for one in problems], sandboxes, expected))
    second = score_programs([(one, originals[one.problem_id]) for one in problems], sandboxes, expected)
    assert [(one.problem_id, score) for one, score in zip(problems, second, strict=True) if not score.correct] == []
    refusing = [(one, next(text for kind, text in mutants(one.reference) if kind == "refused")) for one in problems]
    scores = zip(problems, score_programs(refusing, sandboxes, expected), strict=True)
    unseen = [problem.problem_id for problem, score in scores if score.correct]
    assert unseen == ["HumanEval/38", "HumanEval/46", "HumanEval/50"]  # a helper's return is first, or no base test reaches it
