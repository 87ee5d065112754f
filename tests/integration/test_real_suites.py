"""A pretrained model on a few problems of public suites: asked as benchmarks ask, it writes programs, ends them, solves some."""

import ast
from collections.abc import Iterator

import pytest

from flows.backend import Backend
from flows.benchmarks.suite_score import BenchmarkRequest, benchmark_sandboxes, style_of, words_of
from flows.suites.suite_data import SAMPLES, expected, load
from stages.benchmark import Grader, Recording, SamplingPlan, StoredCompletion, complete, judge, program_grader
from stages.core.suites.prompts import wording
from stages.core.suites.scores import Contestant

pytestmark = [pytest.mark.real, pytest.mark.docker]

NAMES = ("HumanEval/2", "HumanEval/53", "Mbpp/17", "Mbpp/139")
PROBLEMS = [one for suite in ("humaneval-plus", "mbpp-plus") for one in load(suite, SAMPLES) if one.problem_id in NAMES]
TOKENS = 128


@pytest.fixture(scope="module")
def grader(real_backend: Backend) -> Iterator[Grader]:
    sandboxes = benchmark_sandboxes(real_backend, real_backend.config.sandbox)
    yield program_grader(sandboxes, expected(PROBLEMS, sandboxes))
    sandboxes.usual.close()
    sandboxes.patient.close()


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_a_real_model_writes_programs_ends_them_and_solves_some(real_backend: Backend, grader: Grader, style: str) -> None:
    assert style_of(real_backend) == "chat"
    words = words_of(BenchmarkRequest("mbpp-plus", tuple(PROBLEMS), style), real_backend)
    who = Contestant("base", "base", None, "")
    given: list[StoredCompletion] = complete(
        [who], PROBLEMS, real_backend.engine({}), SamplingPlan("mbpp-plus", words, 0, TOKENS, 1.0, 0)
    )
    assert all(
        stop not in one.text for one, problem in zip(given, PROBLEMS, strict=True) for stop in wording(problem, style).stops
    )
    assert sum(not one.truncated for one in given) >= 3, [one.text for one in given]  # ended by a stop sequence or its own end
    rows = judge(given, PROBLEMS, words, [grader], Recording("mbpp-plus")).to_pylist()
    assert len([ast.parse(row["answer"]) for row in rows]) == len(NAMES)
    solved = [row["problem_id"] for row in rows if row["correct"]]
    assert len(solved) >= 2, [(row["problem_id"], row["status"], row["answer"]) for row in rows]
