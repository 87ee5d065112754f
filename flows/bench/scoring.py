"""`populora bench scoring`: MBPP+ solutions per minute, all base and plus tests, against EvalPlus's evaluator; and agreement.

    populora bench scoring [--data DIR] [--rival PYTHON] [--mutants 2] [--limit 0] [--turns 4]

Every problem's reference, and so many mutants of each (stages.core.suites.mutants), are scored by both. What the references
return is worked out before the clock starts, on both sides. `--rival` is an interpreter with evalplus (0.3.1); without it only
our own rate is measured. EvalPlus runs with two processes, warm before the clock starts as our two containers are, and with
generous time limits: the machine may be busy. Each side begins every other turn.
"""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flows.backend import Backend
from flows.bench.turns import in_turns
from flows.benchmarks.suite_score import benchmark_sandboxes
from flows.commands.arguments import OneLineParser
from flows.config import ConfigError, RunConfig
from flows.suites import suite_data
from stages.core.suites.code_scoring import Sandboxes, Score, score_programs
from stages.core.suites.mutants import mutants
from stages.core.suites.problems import Problem

Answers = Sequence[tuple[Problem, str]]
Verdict = tuple[bool, bool]  # base tests passed, all tests passed

RIVAL = """
import json, sys, time
from concurrent.futures import ProcessPoolExecutor
from evalplus.data import get_mbpp_plus
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.evaluate import check_correctness, get_groundtruth
out, sys.stdout = sys.stdout, sys.stderr
problems = get_mbpp_plus()
expected = get_groundtruth(problems, sys.argv[1], MBPP_OUTPUT_NOT_NONE_TASKS)
pool = ProcessPoolExecutor(2)
name = min(problems)
first = problems[name]["prompt"] + problems[name]["canonical_solution"]
for one in [pool.submit(check_correctness, "mbpp", 0, problems[name], first, expected[name]) for _ in range(8)]:
    one.result()
print(json.dumps("ready"), file=out, flush=True)
for line in sys.stdin:
    answers = json.loads(line)
    began = time.monotonic()
    asked = [
        pool.submit(check_correctness, "mbpp", number, problems[name], text, expected[name], False, True, number, 10.0, 8.0)
        for number, (name, text) in enumerate(answers)
    ]
    found = [one.result() for one in asked]
    seconds = time.monotonic() - began
    verdicts = [(one["base"][0] == "pass", one["base"][0] == one["plus"][0] == "pass") for one in found]
    print(json.dumps([seconds, verdicts]), file=out, flush=True)
"""


def main(options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per figure; `ratio` over 1: ours is faster."""
    parser = OneLineParser(prog="populora bench scoring")
    parser.add_argument(
        "--data", default=str(suite_data.SAMPLES), help="folder with MbppPlus.jsonl (default: the committed sample)"
    )
    parser.add_argument("--rival", help="a Python interpreter with evalplus")
    parser.add_argument("--mutants", type=int, default=0, help="mutants of each problem in addition to its reference")
    parser.add_argument("--limit", type=int, default=0, help="problems (0: all)")
    parser.add_argument("--turns", type=int, default=4, help="measurements of each side, in turn")
    chosen = parser.parse_args(options)
    problems = suite_data.load("mbpp-plus", Path(chosen.data))
    answers = _answers(problems[: chosen.limit or None], chosen.mutants)
    yield from _measured(answers, max(1, min(chosen.turns, len(answers))), Path(chosen.data), chosen.rival)


def _answers(problems: Sequence[Problem], count: int) -> list[tuple[Problem, str]]:
    """Return each problem's reference and `count` mutants, spread over the kinds of change."""
    found = []
    for number, problem in enumerate(problems):
        found.append((problem, problem.reference))
        if count:
            texts = [text for _, text in mutants(problem.reference)]
            found += [(problem, texts[(number * 7 + turn * len(texts) // count) % len(texts)]) for turn in range(count)]
    return found


def _measured(answers: Answers, turns: int, data: Path, rival: str | None) -> Iterator[dict[str, Any]]:
    backend = Backend(RunConfig())
    boxes = benchmark_sandboxes(backend, RunConfig().sandbox)
    other = _Rival(rival, data) if rival else None
    parts = [answers[turn::turns] for turn in range(turns)]
    try:
        expected = suite_data.expected(list(dict.fromkeys(problem for problem, _ in answers)), boxes)
        ours, theirs = iter(parts), iter(parts)
        sides: dict[str, Callable[[], tuple[float, Sequence[Any]]]] = {"ours": lambda: _scored(next(ours), boxes, expected)}
        if other:
            rival_score = other.score
            sides["rival"] = lambda: rival_score(next(theirs))
        found = in_turns(turns, sides)
    finally:
        _close(boxes, backend, other)
    rates = {
        side: [60 * len(part) / seconds for part, (seconds, _) in zip(parts, turned, strict=True)]
        for side, turned in found.items()
    }
    pairs = [
        (problem.problem_id, score, verdict)
        for part, (_, scores), (_, verdicts) in zip(parts, found["ours"], found.get("rival", []), strict=bool(other))
        for (problem, _), score, verdict in zip(part, scores, verdicts, strict=True)
    ]
    yield from _lines(rates, len(answers), pairs)


def _scored(part: Answers, boxes: Sandboxes, expected: Any) -> tuple[float, list[Score]]:
    """Seconds, and a score an answer."""
    began = time.monotonic()
    scores = list(score_programs(part, boxes, expected))
    return time.monotonic() - began, scores


def _close(boxes: Sandboxes, backend: Backend, other: "_Rival | None") -> None:
    boxes.usual.close()
    boxes.patient.close()
    backend.close()
    if other:
        other.close()


def _lines(rates: dict[str, list[float]], count: int, pairs: list[tuple[str, Score, Verdict]]) -> Iterator[dict[str, Any]]:
    load = {"solutions": count, "load": round(os.getloadavg()[0], 1)}
    ours = statistics.median(rates["ours"])
    line = {"name": "scoring.mbpp-plus", "value": round(ours, 1), "unit": "solutions/min"} | load
    if not pairs:
        yield line
        return
    rival = statistics.median(rates["rival"])
    yield line | {"against": "evalplus", "rival": round(rival, 1), "ratio": round(ours / rival, 2)}
    yield {"name": "rival.evalplus", "value": round(rival, 1), "unit": "solutions/min"}
    apart = [
        {"problem": name, "ours": score.status, "detail": score.detail[:80], "evalplus": verdict}
        for name, score, verdict in pairs
        if (score.correct or score.status == "base_only", score.correct) != tuple(verdict)
    ]
    right = sum(verdict[1] for _, _, verdict in pairs)
    yield {
        "name": "scoring.agreement",
        "value": 1 - len(apart) / len(pairs),
        "unit": "share",
        "right": right,
        "apart": apart,
    } | load


class _Rival:
    """EvalPlus's evaluator in a separate interpreter."""

    def __init__(self, python: str, data: Path) -> None:
        file = next(iter(sorted(data.rglob("MbppPlus.jsonl"))), None)
        if file is None or not Path(python).is_file():
            raise ConfigError(f"bench scoring: --rival {python} is not an interpreter, or --data {data} has no MbppPlus.jsonl")
        home = suite_data.CACHE / "rival"
        home.mkdir(parents=True, exist_ok=True)
        known = {"PATH": os.defpath, "HOME": str(home), "MBPP_OVERRIDE_PATH": str(file.absolute()), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [python, "-c", RIVAL, f"mbpp-{suite_data.sha256(file)[:12]}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=known,
            text=True,
        )
        if self._read() != "ready":
            raise ConfigError(f"bench scoring: {python} has no evalplus")

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def score(self, answers: Answers) -> tuple[float, list[Verdict]]:
        """Return the seconds and one verdict per answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([(problem.problem_id, text) for problem, text in answers]) + "\n")
        self.process.stdin.flush()
        seconds, verdicts = self._read()
        return seconds, verdicts

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
