"""Invariants of the tables of one generation, however they were made. Each check yields (table, problem) pairs.

Derived tables (samples, ratings) are recomputed from their source tables and compared. Sums and moments are checked by
separate formulas, so that an error in the stage itself shows too.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from flows.added_rewards import weights
from flows.config import RunConfig
from stages.core.judging.traces import MOST_LINES
from stages.core.method.leak import admitted, believed, leaks, paid
from stages.core.method.rating import Rating, Scale, win_chance
from stages.core.method.rewards import Rule
from stages.core.method.top_up import fresh
from stages.core.population import Member, of_role, task_generator
from stages.core.prompts.room import UNPOSED
from stages.rate import rate
from stages.reward import Estimator, reward
from stages.trace import missed_deductions

Tables = Mapping[str, pa.Table]
Problem = tuple[str, str]
TOLERANCE = 1e-9
WHITE = 1e-3  # tolerance on a variance of 1; the epsilon in the division lowers it slightly when rewards hardly differ
KEYS = {
    "matches": "match_id",
    "proposals": "proposal_id",
    "tasks": "task_id",
    "rollouts": "rollout_id",
    "grades": "rollout_id",
    "samples": "sample_id",
    "offspring": "member_id",
}
CENTRED_BY_GROUP = ("reinforce_plus_plus_baseline", "grpo", "dr_grpo", "pass_at_k")


@dataclass(frozen=True)
class GenerationInputs:
    """What a generation starts from: its members, the tasks stored before it, and the configuration with its functions.

    A field is None if its source is damaged, or if its function is not loaded here; the checks that need it are skipped.
    """

    population: Sequence[Member] | None
    stored: Collection[str] | None
    digests: Mapping[str, str] | None
    config: RunConfig
    rule: Rule | None
    estimator: Estimator | None
    generation: int

    def added(self, found: Tables) -> dict[str, float] | None:
        """Return what is added to the rewards, by sample; None if the table of the traces is needed and cannot be read."""
        if self.config.reward.trace_weight and "traces" not in found:
            return None
        tasks, paid = believed(found["tasks"]), self.paid(found["grades"])
        return weights(self.config).of(tasks, found["rollouts"], paid, found.get("traces"))

    def paid(self, grades: pa.Table) -> pa.Table:
        """Return the grades as they are paid: the judge's own, unless the configuration lets wrong ones through."""
        return paid(grades, self.config.experiment.leak, self.config.seed, self.generation)


def problems(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Yield every problem among the tables in `found`; absent tables are not checked."""
    for name, key in KEYS.items():
        if name in found:
            repeated = [value for value, count in Counter(_column(found[name], key)).items() if count > 1]
            yield from _wrong(name, f"{key} is not unique", repeated)
    for needed, check in _CHECKS:
        if all(name in found for name in needed):
            yield from check(found, given)


def _references(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check that every id in a row exists and names the same member as the row it points to."""
    matches = {row["match_id"]: row for row in found["matches"].to_pylist()}
    yield from _foreign("proposals", found["proposals"], "match_id", matches)
    yield from _foreign("proposals", found["proposals"], "teacher_id", [row["teacher_id"] for row in matches.values()])
    if given.stored is not None:
        shown = chain.from_iterable(_column(found["proposals"], "reference_ids"))
        yield from _wrong("proposals", "reference_ids name no stored task", set(shown) - set(given.stored))


def _tasks(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check that verify keeps every proposal, in order, and that only programs that returned values have outputs."""
    if _column(found["tasks"], "task_id") != _column(found["proposals"], "proposal_id"):
        yield "tasks", "task ids are not the proposals' ids in order"
    rows = found["tasks"].select(["task_id", "status", "outputs", "values"]).to_pylist()
    passed = {row["task_id"] for row, one in zip(rows, admitted(found["tasks"]), strict=True) if one and row["status"] != "valid"}
    odd = [
        row["task_id"]
        for row in rows
        if ((row["status"] in ("valid", *UNPOSED)) != bool(row["outputs"]) or len(row["outputs"]) != len(row["values"]))
        and row["task_id"] not in passed
    ]
    yield from _wrong("tasks", "outputs do not match the status", odd)
    share, seed = given.config.experiment.leak, given.config.seed
    drawn = {task_id for task_id in passed if leaks(share, seed, given.generation, task_id)}
    yield from _wrong("tasks", "passed although invalid, which experiment.leak does not explain", passed - drawn)


def _rollouts(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check that the matched student attempts valid, ungated tasks as often as configured; for replays see replay_check."""
    tasks = believed(found["tasks"])
    posed = {row["task_id"] for row in tasks.to_pylist() if row["status"] == "valid" and row["gate"] is None}
    replayed = set(_column(found["rollouts"], "task_id")) - set(_column(found["tasks"], "task_id"))
    yield from _foreign("rollouts", found["rollouts"], "task_id", posed | replayed if given.config.solve.replays else posed)
    yield from _foreign("rollouts", found["rollouts"], "match_id", _column(found["matches"], "match_id"))
    attempts = Counter(_column(found["rollouts"], "task_id"))
    expected = given.config.solve.attempts
    yield from _wrong("rollouts", f"not attempted {expected} times", [task for task in posed if attempts[task] != expected])
    student = dict(zip(_column(found["matches"], "match_id"), _column(found["matches"], "student_id"), strict=True))
    rows = found["rollouts"].select(["rollout_id", "match_id", "student_id"]).to_pylist()
    other = [row["rollout_id"] for row in rows if student.get(row["match_id"], row["student_id"]) != row["student_id"]]
    yield from _wrong("rollouts", "written by a different student than the match's", other)


def _grades(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check one grade per rollout, in order; `correct` agrees with the status; no answer is a format error."""
    if _column(found["grades"], "rollout_id") != _column(found["rollouts"], "rollout_id"):
        yield "grades", "rollout ids are not the rollouts' ids in order"
        return
    rows = found["grades"].select(["rollout_id", "status", "correct"]).to_pylist()
    yield from _wrong(
        "grades", "correct does not agree with the status", _ids(rows, lambda row: row["correct"] != (row["status"] == "correct"))
    )
    answers = _column(found["rollouts"], "answer")
    unread = [row["rollout_id"] for row, answer in zip(rows, answers, strict=True) if answer is None and row["correct"]]
    yield from _wrong("grades", "correct without an answer", unread)


def _traces(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check that there is a trace for every deduction that some answer got wrong, of no more lines than steps."""
    if _column(found["traces"], "task_id") != missed_deductions(found["grades"]):
        yield "traces", "task ids are not those of the deductions with a wrong answer, in order"
    rows = found["traces"].to_pylist()
    odd = [row["task_id"] for row in rows if len(row["lines"]) != min(row["steps"], MOST_LINES)]
    yield from _wrong("traces", "lines do not fit the number of steps", odd)


def _weights(name: str, found: pa.Table, given: GenerationInputs, prefix: str = "") -> Iterator[Problem]:
    """Check that every row has the digest that the manifests record for its adapter."""
    if given.digests is None:
        return
    pairs = set(zip(_column(found, f"{prefix}adapter_id"), _column(found, f"{prefix}adapter_sha256"), strict=True))
    pairs -= {("", "")}  # drawn by the generator, see generator_check
    other = [adapter for adapter, sha256 in sorted(pairs) if given.digests.get(adapter) != sha256]
    yield from _wrong(name, f"{prefix}adapter_sha256 is not the digest of the stored adapter", other)


def _all_weights(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    for name in ("proposals", "rollouts", "samples", "ratings", "offspring"):
        if name in found:
            yield from _weights(name, found[name], given)
    if "ratings" in found:
        yield from _weights("ratings", found["ratings"], given, "next_")


def _matches(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check that matches are between members as they were, with the win probability that their ratings imply."""
    if given.population is None:
        return
    members = {member.member_id: member for member in given.population}
    if not of_role(given.population, "teacher"):
        rule = given.config.rating
        members |= {one.member_id: one for one in [task_generator(Rating(rule.mu, rule.sigma))]}
    for row in found["matches"].to_pylist():
        teacher, student = members.get(row["teacher_id"]), members.get(row["student_id"])
        if teacher is None or student is None:
            yield "matches", f"{row['match_id']}: {row['teacher_id']} or {row['student_id']} is not a member"
            continue
        stated = [(row[f"{role}_adapter_id"], row[f"{role}_mu"], row[f"{role}_sigma"]) for role in ("teacher", "student")]
        actual = [(member.adapter_id, member.rating.mu, member.rating.sigma) for member in (teacher, student)]
        if stated != actual:
            yield "matches", f"{row['match_id']}: adapters or ratings are not those of the population"
        expected = 0.5 if teacher is student else win_chance(student.rating, teacher.rating, given.config.rating.beta)
        if not math.isclose(row["expected"], expected, abs_tol=TOLERANCE):
            yield "matches", f"{row['match_id']}: expected is {row['expected']}, the ratings give {expected}"


def _samples(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check samples against grades; `centred` sums to zero per group; whitened advantages have mean 0 and variance 1."""
    rule, estimator = given.rule, given.estimator
    if rule is None or estimator is None:
        yield from _moments(found["samples"], given.config)
        return
    baseline, trained = given.config.learning.teacher_baseline, given.config.solve.trained_attempts
    proposals, tasks, rollouts, grades = (found[name] for name in ("proposals", "tasks", "rollouts", "grades"))
    try:
        if (added := given.added(found)) is None:
            return
        paid = given.paid(grades)
        again = reward(proposals, believed(tasks), rollouts, paid, rule, estimator, baseline, trained, added)
    except (AssertionError, KeyError, ValueError) as error:
        yield "samples", f"cannot be recomputed from the grades ({type(error).__name__}: {error})"
        return
    yield from _same("samples", found["samples"], again, "sample_id")
    yield from _moments(found["samples"], given.config)


def _moments(samples: pa.Table, config: RunConfig) -> Iterator[Problem]:
    estimator = config.learning.estimator
    rows = samples.select(["group_id", "role", "kind", "adapter_id", "centred", "advantage", "completion_ids"]).to_pylist()
    groups, policies = defaultdict(list), defaultdict(list)
    for row in rows:
        groups[row["adapter_id"], row["role"], row["group_id"]].append(row["centred"])
        policies[(row["adapter_id"], row["role"], row["kind"] if estimator == "trr_plus_plus" else "")].append(row)
    if estimator in CENTRED_BY_GROUP:
        tilted = [
            key[2] for key, values in groups.items() if len(values) > 1 and abs(math.fsum(values)) > TOLERANCE * len(values)
        ]
        yield from _wrong("samples", "centred does not sum to zero in a group", tilted)
    if estimator == "trr_plus_plus" or (estimator == "reinforce_plus_plus_baseline" and config.learning.whiten_shift):
        off = [" ".join(key).strip() for key, own in policies.items() if not _white(own)]
        yield from _wrong("samples", "advantages do not have token-weighted mean 0 and variance 1", off)


def _white(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the advantages are whitened over tokens; all zero if the centred rewards do not differ."""
    advantage = np.array([row["advantage"] for row in rows])
    weight = np.array([len(row["completion_ids"]) for row in rows], np.float64)
    if not advantage.any():
        return True
    mean = float((weight * advantage).sum() / weight.sum())
    variance = float((weight * (advantage - mean) ** 2).sum() / max(weight.sum() - 1.0, 1.0))
    return abs(mean) < WHITE and abs(variance - 1.0) < WHITE


def _ratings(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check the ratings against the matches and their grades."""
    if given.population is None:
        return
    rule = given.config.rating
    rows = found["ratings"].to_pylist()
    after = {row["member_id"]: (row["next_adapter_id"], row["next_adapter_sha256"]) for row in rows}
    grades = given.paid(found["grades"])
    try:
        again = rate(
            given.population,
            found["matches"],
            believed(found["tasks"]),
            fresh(grades, found["tasks"]),
            after,
            Scale(rule.beta, rule.tau, rule.draw_probability),
            rule.draw_margin,
            given.config.evolution.kappa,
        )
    except (AssertionError, KeyError, ValueError) as error:
        yield "ratings", f"cannot be recomputed from the matches ({type(error).__name__}: {error})"
        return
    yield from _same("ratings", found["ratings"], again, "member_id")


def _offspring(found: Tables, given: GenerationInputs) -> Iterator[Problem]:
    """Check that parents and replaced members were members in this generation."""
    members = set(_column(found["ratings"], "member_id"))
    yield from _foreign("offspring", found["offspring"], "replaces", members)
    yield from _wrong(
        "offspring", "parents are not members", set(chain.from_iterable(_column(found["offspring"], "parents"))) - members
    )


def _same(name: str, found: pa.Table, again: pa.Table, key: str) -> Iterator[Problem]:
    """Yield the columns in which the stored table differs from the recomputed one, with the first row that does."""
    if found.num_rows != again.num_rows:
        yield name, f"{found.num_rows} rows, recomputed {again.num_rows}"
        return
    for column in again.schema.names:
        pairs = zip(_column(found, key), _column(found, column), _column(again, column), strict=True)
        differing = [identity for identity, old, new in pairs if not _equal(old, new)]
        yield from _wrong(name, f"{column} differs from the recomputed values", differing)


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(old == new)


def _foreign(name: str, table: pa.Table, column: str, known: Iterable[str]) -> Iterator[Problem]:
    yield from _wrong(name, f"{column} names an unknown id", set(_column(table, column)) - set(known))


def _wrong(name: str, problem: str, ids: Iterable[str]) -> Iterator[Problem]:
    listed = sorted(set(ids))
    if listed:
        more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
        yield name, f"{problem}: {', '.join(listed[:3])}{more}"


def _ids(rows: Iterable[Mapping[str, Any]], odd: Any) -> list[str]:
    return [row["rollout_id"] for row in rows if odd(row)]


def _column(table: pa.Table, name: str) -> list[Any]:
    return list(table[name].to_pylist())


_CHECKS = (
    (("matches",), _matches),
    (("matches", "proposals"), _references),
    (("proposals", "tasks"), _tasks),
    (("matches", "tasks", "rollouts"), _rollouts),
    (("rollouts", "grades"), _grades),
    (("grades", "traces"), _traces),
    ((), _all_weights),
    (("proposals", "tasks", "rollouts", "grades", "samples"), _samples),
    (("matches", "tasks", "grades", "ratings"), _ratings),
    (("ratings", "offspring"), _offspring),
)
