"""Runs to compare: small whole ones with benchmarks whose answers are made up, problem by problem."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from flows.config import RunConfig, dump
from flows.run.lease import hold
from flows.run.run import Ref, Run
from flows.storage import Store
from stages.core import tables
from stages.core.suites.scores import Contestant, probe_scores
from tests.support import example_run

PROBLEMS = [f"p{number}" for number in range(8)]
KINDS = ("deduction", "abduction")
Right = Callable[[int], bool]
"""Whether the students' answer to the problem of that number is correct."""


def configured(**settings: Any) -> RunConfig:
    """The configuration of the example run with other settings."""
    return RunConfig.model_validate(dump(example_run.CONFIG) | settings)


def build(store: Store, run_id: str, generations: int, right: dict[int, Right], config: RunConfig | None = None) -> Run:
    """A run of so many generations, scored by itself after those generations that `right` names."""
    with hold(store, run_id) as epoch:
        run = example_run.build(Run(store, run_id, epoch), generations, config or example_run.CONFIG)
        for generation, one in right.items():
            score(run, generation, one)
    return Run(store, run_id)


def score(run: Run, generation: int, right: Right, suite_sha256: str = "1" * 64, *, scores_start: bool = False) -> None:
    """Write the run's own benchmark of a generation: both students give the same answers, also at the start if that is scored."""
    start = _written(run, "probe-dev/start", generation, right) if scores_start else []
    run.commit(
        "benchmark",
        generation,
        [],
        _written(run, f"probe-dev/generation={generation:04d}", generation, right) + start,
        {},
        {"suite": suite_sha256},
    )


def score_later(run: Run, generation: int, right: Right, limit: int = 0, suite_sha256: str = "") -> None:
    """Write a benchmark that `populora benchmark` would have made, of the first `limit` problems if there is a limit."""
    folder = f"probe-dev/asked/generation={generation:04d}-n{limit}-k0"
    counts = {"problems": limit or len(PROBLEMS)}
    versions = {"suite": suite_sha256} if suite_sha256 else {}
    run.commit_benchmark(folder, [], _written(run, folder, generation, right, limit), counts, versions, {})


def score_public(
    run: Run, generation: int, right: Right, style: str, key: str, attempts: int = 0, limit: int = 0, temperature: float = 1.0
) -> None:
    """Write what `populora benchmark --style` would have made of a public suite; sampled answers are like the greedy ones."""
    folder = f"cruxeval/asked/generation={generation:04d}-{key}"
    question = {"style": style, "attempts": attempts, "max_new_tokens": 96, "temperature": temperature, "seed": 0}
    versions, counts = {"suite": "3" * 64, "question": question}, {"problems": limit or len(PROBLEMS)}
    run.commit_benchmark(folder, [], _written(run, folder, generation, right, limit, attempts), counts, versions, {})


def _written(run: Run, folder: str, generation: int, right: Right, limit: int = 0, attempts: int = 0) -> list[Ref]:
    members = [row for row in run.read_table(generation, "ratings").to_pylist() if row["role"] == "student"]
    who = [Contestant(row["member_id"], "student", row["next_adapter_id"], row["next_adapter_sha256"]) for row in members]
    answers = _answers(who, right, PROBLEMS[: limit or None], attempts)
    return [
        run.write_table_at(f"benchmarks/{folder}/answers.parquet", answers, tables.ANSWERS),
        run.write_table_at(f"benchmarks/{folder}/scores.parquet", probe_scores(answers, who), tables.SCORES),
    ]


def _answers(who: list[Contestant], right: Right, problems: Sequence[str] = PROBLEMS, attempts: int = 0) -> pa.Table:
    rows = [
        {
            "suite": "probe-dev",
            "problem_id": problem,
            "member_id": one.member_id,
            "kind": KINDS[number % 2],
            "band": 0,
            "attempt": attempt,
        }
        | {"greedy": attempt == 0, "adapter_id": one.adapter_id, "adapter_sha256": one.adapter_sha256, "text": "", "answer": None}
        | {"status": "correct" if right(number) else "wrong", "correct": right(number)}
        for one in who
        for number, problem in enumerate(problems)
        for attempt in range(attempts + 1)
    ]
    return tables.table(rows, tables.ANSWERS)
