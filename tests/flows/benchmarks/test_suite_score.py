"""`populora benchmark` on suites: completions made elsewhere, what cannot be scored, and benchmarks killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flows.benchmarks import suite_score, targets
from flows.benchmarks.score import request_for
from flows.benchmarks.suite_score import ELSEWHERE, done_shards, folder_of, score_suite
from flows.config import PROJECT, ConfigError
from flows.run.run import Run
from flows.storage import open_store
from flows.suites.suite_data import SAMPLES, load
from stages.core.suites.problems import Problem

GSM8K = load("gsm8k", SAMPLES)


def populora(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flows.cli", *arguments], cwd=PROJECT, capture_output=True, text=True)


def _written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _gold(problems: list[Problem]) -> list[dict[str, object]]:
    return [{"problem_id": one.problem_id, "text": f"The answer is {one.outputs[0]}."} for one in problems]


BAD = [
    ([], "12 problems have no completion, the first is 'gsm8k/0'"),
    ([{"problem_id": "gsm8k/9999", "text": ""}], "line 1: no problem 'gsm8k/9999' in the suite"),
    ([{"text": ""}], "line 1: no problem 'None' in the suite"),
    ([{"problem_id": "gsm8k/0"}], "line 1: no text, solution or completion"),
    (
        [{"problem_id": "gsm8k/0", "text": "9"}, {"problem_id": "gsm8k/0", "completion": "9"}],
        "line 2: a `completion` continues code, and 'gsm8k/0' asks for none; give `text`",
    ),
    ([{"problem_id": "gsm8k/0", "text": "", "attempt": 1}] * 2, "line 2: problem 'gsm8k/0' has attempt 1 twice"),
    ([{"problem_id": "gsm8k/0", "text": "", "attempt": "x"}], "line 1: problem 'gsm8k/0' has attempt 'x'"),
]


@pytest.mark.parametrize(("rows", "message"), BAD)
def test_completions_that_fit_nothing_name_the_line(rows: list[dict[str, object]], message: str, tmp_path: Path) -> None:
    file = _written(tmp_path / "c.jsonl", rows)
    with pytest.raises(ConfigError) as raised:
        targets.of_completions(open_store(str(tmp_path / "store")), file, GSM8K)
    assert message in str(raised.value) and str(raised.value).count("\n") == 0


def test_completions_of_any_size_and_kind_are_scored_and_the_rest_too(tmp_path: Path) -> None:
    """10 MB is a status of its row; so are no answer, and an answer of ten thousand letters."""
    rows = _gold(GSM8K)
    rows[1] = {"problem_id": GSM8K[1].problem_id, "text": "9" * 10_000_000}
    rows[2] = {"problem_id": GSM8K[2].problem_id, "text": ""}
    rows[3] = {"problem_id": GSM8K[3].problem_id, "text": "\\boxed{" + "1+" * 5_000 + "1}"}
    rows[4] = {"task_id": GSM8K[4].problem_id, "solution": GSM8K[4].outputs[0]}
    rows[5] = {"problem_id": GSM8K[5].problem_id, "text": "\ud800 the answer is " + GSM8K[5].outputs[0]}
    store = open_store(str(tmp_path / "store"))
    target = targets.of_completions(store, _written(tmp_path / "c.jsonl", rows), GSM8K)
    request = request_for("gsm8k", target.config, SAMPLES, style=ELSEWHERE)
    scores = score_suite(target, request).to_pylist()
    assert [(row["measure"], row["score"], row["problems"]) for row in scores] == [("pass@1 greedy", 0.75, 12)]
    answers = target.run.read_table(f"benchmarks/{folder_of(target, request)}/answers.parquet", "answers")
    assert answers["status"].to_pylist() == ["correct", "too_long", "format", "too_long", *["correct"] * 8]
    assert pc.max(pc.binary_length(answers["text"])).as_py() <= 1 << 16


LITERALS = load("cruxeval", SAMPLES)[:2]


@pytest.mark.parametrize("problem", LITERALS, ids=[one.form for one in LITERALS])
def test_a_completion_of_a_problem_that_asks_for_a_literal_is_refused(problem: Problem, tmp_path: Path) -> None:
    file = _written(tmp_path / "c.jsonl", [{"problem_id": problem.problem_id, "completion": problem.outputs[0]}])
    with pytest.raises(ConfigError, match=r"c\.jsonl, line 1: a `completion` continues code"):
        targets.of_completions(open_store(str(tmp_path / "store")), file, [problem])


LINES = [
    ([{}], [0], {"pass@1 greedy"}),
    ([{}, {}], [1, 2], {"avg@2", "pass@1", "pass@2"}),
    ([{"attempt": 0}, {}, {}], [0, 1, 2], {"pass@1 greedy", "avg@2", "pass@1", "pass@2"}),
    ([{}, {}, {"attempt": 0}], [1, 2, 0], {"pass@1 greedy", "avg@2", "pass@1", "pass@2"}),
]


@pytest.mark.parametrize(("lines", "attempts", "measures"), LINES)
def test_lines_of_a_problem_are_samples_unless_they_say_which_attempt(
    lines: list[dict[str, object]], attempts: list[int], measures: set[str], tmp_path: Path
) -> None:
    file = _written(tmp_path / "c.jsonl", [row | line for row in _gold(GSM8K[:2]) for line in lines])
    target = targets.of_completions(open_store(str(tmp_path / "store")), file, GSM8K[:2])
    assert target.given is not None and [one.attempt for one in target.given] == attempts * 2
    request = request_for("gsm8k", target.config, SAMPLES, style=ELSEWHERE)
    scores = score_suite(target, replace(request, problems=tuple(GSM8K[:2]))).to_pylist()
    assert {row["measure"]: row["score"] for row in scores} == dict.fromkeys(measures, 1.0)


def test_in_a_file_of_samples_a_problem_with_one_line_has_one_sample(tmp_path: Path) -> None:
    file = _written(tmp_path / "c.jsonl", [*_gold(GSM8K[:2]), *_gold(GSM8K[:1])])
    target = targets.of_completions(open_store(str(tmp_path / "store")), file, GSM8K[:2])
    assert target.given is not None and [one.attempt for one in target.given] == [1, 1, 2]


def test_shards_of_another_size_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that an older version began, with smaller shards, is answered whole."""
    file = _written(tmp_path / "c.jsonl", _gold(GSM8K))
    target = targets.of_completions(open_store(str(tmp_path / "store")), file, GSM8K)
    request = request_for("gsm8k", target.config, SAMPLES, style=ELSEWHERE)

    def progress(done: int, of: int) -> None:
        if done == 2:
            raise Killed

    monkeypatch.setattr(suite_score, "SHARD", 4)
    with pytest.raises(Killed):
        score_suite(target, request, progress)
    assert len(done_shards(target, request)) == 2
    monkeypatch.setattr(suite_score, "SHARD", 6)
    assert done_shards(target, request) == []
    assert [row["problems"] for row in score_suite(target, request).to_pylist()] == [12]


class Killed(BaseException):
    """As if the process had ended there."""


def test_an_interrupted_benchmark_resumes_and_asks_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_score, "SHARD", 4)
    file = _written(tmp_path / "c.jsonl", [*_gold(GSM8K)[:-1], {"problem_id": GSM8K[-1].problem_id, "text": "no"}])
    problems: list[str] = []

    def scored(store: str, ends_at: int | None) -> list[dict[str, object]]:
        target = targets.of_completions(open_store(str(tmp_path / store)), file, GSM8K)
        request = request_for("gsm8k", target.config, SAMPLES, style=ELSEWHERE)
        before = len(done_shards(target, request))

        def progress(done: int, of: int) -> None:
            if done == ends_at:
                raise Killed
            if before <= done < of:
                problems.extend(one.problem_id for one in request.problems[4 * done : 4 * done + 4])

        return score_suite(target, request, progress).to_pylist()

    whole = scored("whole", None)
    problems.clear()
    with pytest.raises(Killed):
        scored("resumed", 2)
    assert scored("resumed", None) == whole
    assert problems == [one.problem_id for one in GSM8K]
    assert scored("resumed", None) == whole and len(problems) == 12  # and what is scored is not scored again


def test_a_benchmark_killed_after_its_last_shard_still_names_the_engine(tmp_path: Path) -> None:
    """The process that resumes starts no engine: the shards say which one made them, and which walls the grader was without."""
    target = targets.of_model(open_store(str(tmp_path)), str(PROJECT / "infra/models/seed"), [], ["model.device=cpu"])
    request = request_for("gsm8k", target.config, SAMPLES, limit=2, style="azr", max_new_tokens=4)

    def progress(done: int, of: int) -> None:
        if done == of:
            raise Killed

    with pytest.raises(Killed):
        score_suite(target, request, progress)
    score_suite(target, request)
    [done] = target.run.history.benchmarks()
    [shard] = done_shards(target, request)
    assert done.versions == shard.versions and done.versions["engine"]["kind"] == "transformers"
    bare = replace(shard, versions=shard.versions | {"grader": {"missing_walls": ["seccomp"]}})
    assert suite_score._made_versions([bare, shard, bare])["grader"] == {"missing_walls": ["seccomp"]}


def test_of_two_scorers_whose_answers_differ_one_adopts_the_shards_of_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second has looked for each shard before the first commits it, as on two machines that round differently."""
    monkeypatch.setattr(suite_score, "SHARD", 4)
    file, judge, firsts = _written(tmp_path / "c.jsonl", _gold(GSM8K)), suite_score.stage.judge, []
    target = targets.of_completions(open_store(str(tmp_path / "store")), file, GSM8K)
    request = request_for("gsm8k", target.config, SAMPLES, style=ELSEWHERE)

    def judged(*given: Any) -> pa.Table:
        answers = judge(*given)
        if firsts:
            return answers
        firsts.append(None)
        firsts[0] = score_suite(targets.of_completions(open_store(str(tmp_path / "store")), file, GSM8K), request)
        return answers.set_column(answers.schema.get_field_index("text"), "text", pa.array(["other"] * len(answers)))

    monkeypatch.setattr(suite_score.stage, "judge", judged)
    assert score_suite(target, request).equals(firsts[0])
    kept = Run(open_store(str(tmp_path / "store")), target.run.run_id)
    (done,) = kept.history.benchmarks()
    assert "other" not in kept.read_table(done.output("answers.parquet"), "answers")["text"].to_pylist()
    assert all(
        kept.holds(shard) and shard.outputs[0].sha256 == read.sha256
        for shard, read in zip(done_shards(target, request), [ref for ref in done.inputs if "/shards/" in ref.uri], strict=True)
    )


def test_a_suite_that_is_not_there_is_one_line_and_code_2(tmp_path: Path) -> None:
    done = populora(
        "benchmark",
        "--suite",
        "math500",
        "--model",
        "infra/models/seed",
        "--data",
        str(SAMPLES),
        "--store",
        str(tmp_path / "store"),
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "download with: populora benchmark" in done.stderr


def test_completions_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file does not exist"):
        targets.of_completions(open_store(str(tmp_path / "store")), tmp_path / "none.jsonl", GSM8K)


# --- the real thing: the seed model, and SIGKILL

_MAIN = "from flows.benchmarks import suite_score; suite_score.SHARD = 3; from flows.cli import main; main()"


def _command(store: Path) -> list[str]:
    options = ["--model", "infra/models/seed", "--suite", "gsm8k", "--data", str(SAMPLES), "--style", "azr"]
    options += ["--max-new-tokens", "24"]
    return [sys.executable, "-c", _MAIN, "benchmark", *options, "--attempts", "1", "--store", str(store)]


def _shards(store: Path) -> list[Path]:
    return sorted(store.glob("*/benchmarks/gsm8k/asked/*/shards/*/shard.json"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_seed_model_killed_in_a_suite_ends_with_the_same_scores(tmp_path: Path) -> None:
    whole = subprocess.run(_command(tmp_path / "whole"), cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    process = subprocess.Popen(_command(tmp_path / "killed"), cwd=PROJECT, stdout=subprocess.DEVNULL, start_new_session=True)
    while len(_shards(tmp_path / "killed")) < 2 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in _shards(tmp_path / "killed")}
    assert 2 <= len(done) < 4
    resumed = subprocess.run(_command(tmp_path / "killed"), cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert resumed == whole
    assert {path: path.stat().st_mtime_ns for path in done} == done
    tables = [
        Run(open_store(str(tmp_path / store)), next((tmp_path / store).glob("model-*")).name) for store in ("whole", "killed")
    ]
    answers = [run.read_table(next(iter(run.history.benchmarks())).output("answers.parquet"), "answers") for run in tables]
    assert answers[0].equals(answers[1]) and answers[0].num_rows == 24
