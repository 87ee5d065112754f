"""A made-up run of realistic shape for reports: teachers write longer and longer code, students improve, members are replaced.

Matching, rewards, ratings, metrics and births come from the real stages; completions, verdicts and scores are drawn. Some texts
are hostile: a report must show them and obey none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from flows.config import RunConfig, dump
from flows.run.lease import hold
from flows.run.run import Ref, Run
from flows.store.file_store import FileStore
from stages.analysis.measure import explore, measure
from stages.core import tables
from stages.core.earlier_tasks import SeenTasks
from stages.core.judging.complexity import measure as measure_program
from stages.core.judging.shapes import shape_of
from stages.core.method.advantages import reinforce_plus_plus_baseline
from stages.core.method.rating import Rating, Scale
from stages.core.method.rewards import populora
from stages.core.population import Member, initial_members, population_after
from stages.evolve import EvolutionPolicy, births
from stages.match import match
from stages.rate import rate
from stages.reward import reward
from tests.support.example_run import rating_row

KINDS = ("deduction", "abduction", "induction")
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\u202e"
SHA = "0" * 64


@contextmanager
def made(root: Path, run_id: str, generations: int, until: str = "", mode: str = "population") -> Iterator[Run]:
    """A run of so many generations in a store at `root`; with `until` the last one stops after that stage."""
    members = 1 if mode == "single" else 3
    config = RunConfig.model_validate(
        {
            "mode": mode,
            "generations": generations,
            "population": {"teachers": members, "students": members},
            "propose": {"groups": 1, "group_size": 4},
            "evolution": {"every": 10 if generations > 10 else 2},
            "sandbox": {"kind": "local"},
        }
    )
    store = FileStore(root)
    with hold(store, run_id) as epoch:
        run = Run(store, run_id, epoch)
        run.describe(dump(config), {"code": "0123456789abcdef"}, {})
        population = initial_members(members, members, mode, _Digests(), Rating())
        seeds = run.write_table(None, "seeds", tables.SEEDS.empty_table())
        born = run.write_table(None, "population", tables.table([rating_row(member) for member in population], tables.RATINGS))
        run.commit("start", None, [], [seeds, born], clock={"seconds": 30.0})
        for generation in range(generations):
            last = generation == generations - 1
            population = _Generation(run, config, generation, np.random.default_rng([0, generation])).write(
                population, until if last else ""
            )
        yield run


class _Digests(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return SHA


class _Generation:
    def __init__(self, run: Run, config: RunConfig, generation: int, rng: np.random.Generator) -> None:
        self.run, self.config, self.generation, self.rng = run, config, generation, rng
        self.progress = generation / 60

    def write(self, population: list[Member], until: str) -> list[Member]:
        """All stages in order; stops after `until`."""
        found: dict[str, pa.Table] = {}
        adapters = {member.member_id: (f"{member.member_id}-g{self.generation:04d}", SHA) for member in population}
        makers = {
            "match": ("matches", lambda: match(population, self.rng, self.generation, 25 / 6)),
            "propose": ("proposals", lambda: self.proposals(found)),
            "verify": ("tasks", lambda: self.tasks(found)),
            "solve": ("rollouts", lambda: self.rollouts(found)),
            "grade": ("grades", lambda: self.grades(found)),
            "reward": ("samples", lambda: self.samples(found)),
            "update": ("metrics", lambda: self.metrics(found, population)),
            "rate": ("ratings", lambda: self.ratings(found, population, adapters)),
            "benchmark": ("scores", lambda: self.scores(population)),
            "evolve": ("offspring", lambda: self.offspring(found, population)),
        }
        for stage, (name, make) in makers.items():
            if stage == "benchmark" and (self.generation + 1) % 10:
                continue
            found[name] = make()
            self.commit(stage, name, found[name])
            if stage == until:
                return population
        return population_after(found["ratings"], found["offspring"], self.generation)

    def commit(self, stage: str, name: str, table: pa.Table) -> None:
        refs: list[Ref] = []
        if stage == "benchmark":
            folder = f"benchmarks/probe-dev-g{self.generation:04d}"
            refs.append(self.run.write_table_at(f"{folder}/scores.parquet", table, tables.SCORES))
        else:
            refs.append(self.run.write_table(self.generation, name, table))
        spent = {"propose": 2.1, "solve": 4.0, "update": 5.2, "verify": 1.2, "grade": 1.5}.get(stage, 0.1)
        slow = 12 if stage == "grade" and self.generation == 7 else 1
        self.run.commit(stage, self.generation, [], refs, clock={"seconds": slow * spent * float(self.rng.uniform(0.9, 1.1))})

    def completion(self, adapter: str, tokens: int) -> dict[str, Any]:
        ids = self.rng.integers(0, 144, tokens).astype(int).tolist()
        entropy = 0.9 - 0.5 * self.progress
        return {
            "adapter_id": adapter,
            "adapter_sha256": SHA,
            "seed": 1,
            "prompt_ids": list(range(60)),
            "completion_ids": ids,
            "logprobs": (-self.rng.exponential(entropy, tokens)).tolist(),
            "truncated": bool(self.rng.random() < 0.03),
        }

    def program(self) -> str:
        depth = 1 + int(self.rng.poisson(1.5 + 4 * self.progress))
        lines = ["def f(x):", "    total = 0"]
        for number in range(depth):
            chosen = self.rng.integers(0, 4)
            lines += [
                [f"    total += x * {self.rng.integers(2, 99)}"],
                [f"    for i{number} in range(x % {self.rng.integers(2, 9)}):", f"        total += i{number}"],
                [f"    if total > {self.rng.integers(5, 50)} and x:", "        total = total // 2  # halve it"],
                [f"    name{number} = [item for item in range(x) if item % 2]", f"    total += len(name{number})"],
            ][chosen]
        return "\n".join([*lines, "    return total"])

    def proposals(self, found: dict[str, pa.Table]) -> pa.Table:
        rows = []
        for played in found["matches"].to_pylist():
            for number in range(12):
                kind = KINDS[number // 4]
                own = {
                    "proposal_id": f"{played['match_id']}-p{number:03d}",
                    "match_id": played["match_id"],
                    "teacher_id": played["teacher_id"],
                    "kind": kind,
                    "group_id": f"{played['match_id']}-{kind[0]}0",
                    "reference_ids": [],
                    "program": self.program(),
                    "inputs": [str(self.rng.integers(0, 40)) for _ in range(10 if kind == "induction" else 1)],
                    "message": HOSTILE if kind == "induction" else "",
                    "status": "parsed",
                    "detail": "",
                    "text": "text",
                }
                rows.append(
                    own | self.completion(played["teacher_adapter_id"], int(40 + 40 * self.progress + self.rng.poisson(20)))
                )
        return tables.table(rows, tables.PROPOSALS)

    def tasks(self, found: dict[str, pa.Table]) -> pa.Table:
        rows = []
        for row in found["proposals"].to_pylist():
            broken = ("unparsed", "error", "timeout", "banned", "nondeterministic", "too_long")
            status = (
                "valid"
                if self.rng.random() < 0.7 + 0.2 * self.progress
                else str(self.rng.choice(broken, p=[0.5, 0.3, 0.05, 0.05, 0.02, 0.08]))
            )
            valid = status == "valid"
            outputs = [str(self.rng.integers(0, 999)) for _ in row["inputs"]] if valid else []
            own = {name: row[name] for name in ("match_id", "teacher_id", "kind", "program", "inputs", "message")}
            rows.append(
                own
                | {
                    "task_id": row["proposal_id"],
                    "outputs": outputs,
                    "values": outputs,
                    "status": status,
                    "detail": "",
                    "duplicate": bool(self.rng.random() < 0.05),
                    "probe_overlap": False,
                    "program_key": f"{crc32(row['program'].encode()) % 5000}" if valid else None,
                    "gate": None,
                }
                | (_measured(row["program"]) if valid else {})
            )
        return tables.table(rows, tables.TASKS)

    def rollouts(self, found: dict[str, pa.Table]) -> pa.Table:
        played = {row["match_id"]: row for row in found["matches"].to_pylist()}
        rows = []
        for task in found["tasks"].to_pylist():
            skill = self.rng.beta(2, 2)
            for attempt in range(8 if task["status"] == "valid" else 0):
                answer = task["outputs"][0] if self.rng.random() < skill else self.rng.choice(["41", "[1, 2]", HOSTILE, ""])
                own = {
                    "rollout_id": f"{task['task_id']}-r{attempt:02d}",
                    "task_id": task["task_id"],
                    "match_id": task["match_id"],
                    "student_id": played[task["match_id"]]["student_id"],
                    "kind": task["kind"],
                    "attempt": attempt,
                    "text": str(answer),
                    "answer": str(answer) or None,
                }
                rows.append(own | self.completion(played[task["match_id"]]["student_adapter_id"], int(4 + self.rng.poisson(8))))
        return tables.table(rows, tables.ROLLOUTS)

    def grades(self, found: dict[str, pa.Table]) -> pa.Table:
        outputs = {row["task_id"]: row["outputs"] for row in found["tasks"].to_pylist()}
        rows = []
        for row in found["rollouts"].to_pylist():
            correct = row["answer"] == outputs[row["task_id"]][0]
            status = "correct" if correct else "format" if row["answer"] is None else "wrong"
            own = {name: row[name] for name in ("rollout_id", "task_id", "match_id", "student_id", "kind")}
            rows.append(own | {"status": status, "correct": correct, "detail": ""})
        return tables.table(rows, tables.GRADES)

    def samples(self, found: dict[str, pa.Table]) -> pa.Table:
        inputs = [found[name] for name in ("proposals", "tasks", "rollouts", "grades")]
        return reward(*inputs, populora, reinforce_plus_plus_baseline, "group", 0)

    def metrics(self, found: dict[str, pa.Table], population: list[Member]) -> pa.Table:
        measured = measure(*(found[name] for name in ("proposals", "tasks", "rollouts", "grades", "samples")))
        drift = [
            {
                "name": "update.drift_mean",
                "value": float(self.rng.exponential(1e-5)),
                "member_id": m.member_id,
                "role": m.role,
                "kind": None,
            }
            for m in population
        ]
        apart = [
            {"name": "pair.adapter_distance", "value": 1 + self.progress, "member_id": one.member_id, "role": one.role}
            | {"opponent_id": other.member_id}
            for one, other in combinations(population, 2)
            if one.role == other.role
        ]
        made_up = tables.table([*drift, *apart], tables.METRICS)
        explored = explore(found["proposals"], found["tasks"], SeenTasks(tables.SEEDS.empty_table()))
        return tables.join([measured, explored, made_up], tables.METRICS)

    def ratings(self, found: dict[str, pa.Table], population: list[Member], adapters: dict[str, tuple[str, str]]) -> pa.Table:
        return rate(population, found["matches"], found["tasks"], found["grades"], adapters, Scale(), 0.02, 3.0)

    def scores(self, population: list[Member]) -> pa.Table:
        rows = []
        for member in population:
            for group in ("all", *KINDS, "deduction band 1"):
                for measured, plus in (("pass@1 greedy", 0.0), ("pass@8", 0.2)):
                    score = 0.4 + plus + 0.1 * self.progress + float(self.rng.normal(0, 0.01))
                    row = {"suite": "probe-dev", "member_id": member.member_id, "role": member.role, "adapter_sha256": SHA}
                    row |= {"adapter_id": f"{member.member_id}-g{self.generation:04d}", "group": group, "measure": measured}
                    rows.append(row | {"score": score, "problems": 1200, "attempts": 1, "stderr": 0.014})
        return tables.table([row for row in rows if row["role"] != "teacher"], tables.SCORES)

    def offspring(self, found: dict[str, pa.Table], population: list[Member]) -> pa.Table:
        every = self.config.evolution.every
        if (self.generation + 1) % every or self.generation == self.config.generations - 1:
            return tables.OFFSPRING.empty_table()
        trained = population_after(found["ratings"], tables.OFFSPRING.empty_table(), self.generation)
        rows = []
        for birth in (
            births(trained, self.generation, 0, EvolutionPolicy(every=every)) if self.config.mode == "population" else ()
        ):
            rows.append(
                {
                    "member_id": birth.member_id,
                    "role": birth.replaces.role,
                    "replaces": birth.replaces.member_id,
                    "parents": [parent.member_id for parent in birth.parents],
                    "parent_adapter_ids": [parent.adapter_id for parent in birth.parents],
                    "operator": birth.operator,
                    "operator_kind": birth.kind,
                    "seed": "1",
                    "parameters": "{}",
                    "adapter_id": f"{birth.member_id}-start",
                    "adapter_sha256": SHA,
                    "mu": birth.rating.mu,
                    "sigma": birth.rating.sigma,
                    "relative_change": 0.12,
                    "cosine": 0.98,
                    "note": birth.note,
                }
            )
        return tables.table(rows, tables.OFFSPRING)


def _measured(program: str) -> dict[str, Any]:
    """What the sandbox would measure; here by hand, since the programs are the tests' own."""
    shape = shape_of(measure_program(program))
    assert shape is not None, program
    return shape.columns() | {"value_types": "(int) -> int"}
