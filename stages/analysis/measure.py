"""Measure: compute the metrics of a generation from its tables.

`measure` covers proposals, answers and rewards. `explore` covers what is new compared with the past. `relate` covers the members:
how well ratings predict solve rates, how far apart adapters are, and how offspring perform. Every row names its subject; a mean
also has its n and standard error over clusters (prompts for teachers, tasks for students and the generator). Metrics of tasks
and solve rates cover only this generation's own tasks; `replayed` counts the stored ones that filled short batches.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.earlier_tasks import SeenTasks
from stages.core.judging.shapes import COUNTS, STRIPPED, cell
from stages.core.lora.adapter import Weights
from stages.core.lora.distances import distances, inner_products
from stages.core.method.top_up import fresh
from stages.core.population import Member
from stages.core.statistics.condensed import CLUSTER, clusters, completions, with_clusters
from stages.core.statistics.metric_rows import Row, clustered, mean_row, value_row
from stages.core.statistics.novelty import distance, novelty
from stages.core.training.still_groups import still_groups

STAGE_OF = {"teacher": "propose", "student": "solve"}


def measure(proposals: pa.Table, tasks: pa.Table, rollouts: pa.Table, grades: pa.Table, samples: pa.Table) -> pa.Table:
    """Return METRICS of proposing, solving and rewards: for all members together, each member, each kind and each pair."""
    groups = clusters(proposals.select(CLUSTER).to_pylist())
    rows = _proposal_rows(tasks, groups) + _program_rows(tasks, groups) + _answer_rows(tasks, fresh(grades, tasks))
    rows += _completion_rows(completions(proposals, rollouts)) + _sample_rows(with_clusters(samples, proposals))
    return tables.table(rows, tables.METRICS)


def _proposal_rows(tasks: pa.Table, groups: Mapping[str, str]) -> list[Row]:
    names = ["task_id", "teacher_id", "kind", "status", "duplicate", "probe_overlap", "gate"]
    listed = [row | {"group": groups.get(row["task_id"])} for row in tasks.select(names).to_pylist()]
    rows = []
    for scope, chosen in _slices(listed, "teacher_id", "teacher"):
        valid = [row for row in chosen if row["status"] == "valid"]
        rows.append(_mean("propose.valid_share", chosen, lambda row: row["status"] == "valid", "group", scope))
        rows.append(_mean("propose.duplicate_share", valid, lambda row: row["duplicate"], "group", scope))
    reasons = Counter(row["status"] for row in listed)
    rows += [value_row(f"propose.status.{status}", count, len(listed)) for status, count in sorted(reasons.items())]
    gates = Counter(row["gate"] for row in listed if row["gate"])
    rows += [value_row(f"propose.gate.{gate}", count, len(listed)) for gate, count in sorted(gates.items())]
    rows.append(value_row("propose.probe_overlap", sum(row["probe_overlap"] for row in listed), len(listed)))
    return rows


def _program_rows(tasks: pa.Table, groups: Mapping[str, str]) -> list[Row]:
    """Return the complexity of the valid programs that could be measured, as written and stripped."""
    measured = tasks.filter(pc.is_valid(tasks["depth"])).select(["task_id", "teacher_id", "kind", *COUNTS, *STRIPPED])
    listed = [row | {"group": groups.get(row["task_id"])} for row in measured.to_pylist()]
    return [
        _mean(f"program.{name}", chosen, itemgetter(name), "group", scope)
        for scope, chosen in _slices(listed, "teacher_id", "teacher")
        for name in (*COUNTS, *STRIPPED)
    ]


def _answer_rows(tasks: pa.Table, grades: pa.Table) -> list[Row]:
    teachers = dict(zip(tasks["task_id"].to_pylist(), tasks["teacher_id"].to_pylist(), strict=True))
    listed = grades.select(["task_id", "student_id", "kind", "status", "correct"]).to_pylist()
    rows = []
    for scope, chosen in _slices(listed, "student_id", "student"):
        rows.append(_mean("solve.rate", chosen, lambda row: row["correct"], "task_id", scope))
        rows.append(_mean("solve.format_share", chosen, lambda row: row["status"] != "format", "task_id", scope))
    pairs = defaultdict(list)
    for row in listed:
        for kind in (None, row["kind"]):
            pairs[row["student_id"], teachers[row["task_id"]], kind].append(row)
    for student, teacher, kind in sorted(pairs, key=lambda key: (key[0], key[1], key[2] or "")):
        scope = {"member_id": student, "role": "student", "kind": kind, "opponent_id": teacher}
        rows.append(_mean("pair.solve_rate", pairs[student, teacher, kind], lambda row: row["correct"], "task_id", scope))
    return rows


def _completion_rows(found: pa.Table) -> list[Row]:
    """Return entropy, length and truncation by role, member and kind, and the total number of generated tokens."""
    rows = []
    for role, stage in STAGE_OF.items():
        listed = found.filter(pc.equal(found["role"], role)).to_pylist()
        for scope, chosen in _slices(listed, "member_id", role):
            rows.append(_mean(f"{stage}.completion_tokens", chosen, lambda row: row["tokens"], "group_id", scope))
            rows.append(_mean(f"{stage}.entropy", chosen, lambda row: row["surprise"], "group_id", scope))
            rows.append(_mean(f"{stage}.truncated_share", chosen, lambda row: row["truncated"], "group_id", scope))
    for member, own in _by(found.to_pylist(), "member_id"):
        rows.append(value_row("cost.generated_tokens", sum(row["tokens"] for row in own), len(own), member_id=member))
    rows.append(value_row("cost.generated_tokens", sum(found["tokens"].to_pylist()), found.num_rows))
    return rows


def _sample_rows(samples: pa.Table) -> list[Row]:
    listed = samples.select(["member_id", "role", "cluster", "reward"]).to_pylist()
    groups = still_groups(samples, ("role", "member_id", "group_id")).to_pylist()
    rows = []
    for role, of_role in _by(listed, "role"):
        for member, own in [(None, of_role), *_by(of_role, "member_id")]:
            still = [group["still"] for group in groups if group["role"] == role and member in (None, group["member_id"])]
            rows.append(_mean("reward.mean", own, lambda row: row["reward"], "cluster", {"member_id": member, "role": role}))
            rows.append(mean_row("reward.zero_variance_share", still, None, member, role))
    return rows


def replayed(tasks: pa.Table, grades: pa.Table) -> pa.Table:
    """Return METRICS of stored tasks posed again, for short batches or as easy ones: number, share of all, solve rate."""
    own = set(tasks["task_id"].to_pylist())
    listed = grades.select(["task_id", "match_id", "student_id", "kind", "correct"]).to_pylist()
    listed = [row | {"posed": (row["match_id"], row["task_id"])} for row in listed]
    rows = []
    for scope, chosen in _slices(listed, "student_id", "student"):
        again = [row for row in chosen if row["task_id"] not in own]
        count, posed = (len({row["posed"] for row in some}) for some in (again, chosen))
        rows.append(value_row("solve.replayed", count, posed, **scope))
        rows.append(_mean("solve.replayed_rate", again, lambda row: row["correct"], "posed", scope))
    return tables.table(rows, tables.METRICS)


def costs(samples: pa.Table, stepped: Mapping[str, bool]) -> pa.Table:
    """Return METRICS of the update's cost: response tokens of adapters that stepped on these samples, optimizer steps."""
    lengths = pc.list_value_length(samples["completion_ids"]).to_pylist()
    members = samples["member_id"].to_pylist()
    trained = [length for member, length in zip(members, lengths, strict=True) if stepped.get(member)]
    rows = [value_row("cost.trained_tokens", sum(trained), len(trained))]
    rows.append(value_row("cost.optimizer_steps", sum(stepped.values()), len(stepped)))
    return tables.table(rows, tables.METRICS)


def explore(proposals: pa.Table, tasks: pa.Table, earlier: SeenTasks) -> pa.Table:
    """Return METRICS of coverage: cells of the problem space (`judging.shapes`) and novelty by compression against all the past.

    `coverage.cells` and `coverage.programs` count the distinct ones so far, including this generation; `.new_cells` counts those
    first seen in this generation. `coverage.novelty` is independent of both: it compares texts. `pair.program_distance`
    measures how much two teachers' programs of this generation differ.
    """
    own, prompts = _valid(tasks), clusters(proposals.select(CLUSTER).to_pylist())
    total = earlier.valid + len(own)
    found = [place for row in own if (place := cell(row)) is not None]
    fresh_cells = set(found) - earlier.cells
    fresh_programs = {row["program_key"] for row in own} - earlier.programs
    rows = [
        value_row("coverage.cells", len(earlier.cells) + len(fresh_cells), total),
        value_row("coverage.cells_of_generation", len(set(found)), len(own)),
        value_row("coverage.new_cells", len(fresh_cells), len(own)),
        value_row("coverage.programs", len(earlier.programs) + len(fresh_programs), total),
        value_row("coverage.novelty", novelty([row["program"] for row in own], earlier.texts), len(own)),
    ]
    for teacher, chosen in _by(own, "teacher_id"):
        placed = [(row["task_id"], place) for row in chosen if (place := cell(row)) is not None]
        fresh, written = [place not in earlier.cells for _, place in placed], [prompts.get(name, name) for name, _ in placed]
        rows.append(mean_row("coverage.new_share", fresh, written, teacher, "teacher"))
    for (first, ours), (second, theirs) in combinations(_by(own, "teacher_id"), 2):
        apart = distance([row["program"] for row in ours], [row["program"] for row in theirs])
        scope = {"member_id": first, "role": "teacher", "opponent_id": second}
        rows.append(value_row("pair.program_distance", apart, len(ours) + len(theirs), **scope))
    return tables.table(rows, tables.METRICS)


@dataclass(frozen=True)
class OffspringRecord:
    """A member created during the run: its parents, the operator, and the parents' reward in the generation of the event."""

    parents: tuple[str, ...]
    operator: str
    parents_reward: float
    parents_stderr: float | None = None  # of `parents_reward`; None where a parent's reward has none


def relate(
    members: Sequence[Member],
    matches: pa.Table,
    grades: pa.Table,
    samples: pa.Table,
    weights: Mapping[str, Weights],
    births: Mapping[str, OffspringRecord],
    scale: float,
    generation: int,
) -> pa.Table:
    """Return METRICS of the members that played: ratings and their calibration, adapter distances, performance of offspring.

    `samples` are those `with_clusters`, `weights` those that played, by adapter id, and `scale` is alpha / r. `child.gain` is a
    child's mean reward minus the parents' reward in the generation before its birth; `child.lead` is its mean reward minus the
    role's current mean. Their errors are those of differences.
    """
    rows = [value_row("rating.mu", one.rating.mu, None, member_id=one.member_id, role=one.role) for one in members]
    rows += [value_row("rating.sigma", one.rating.sigma, None, member_id=one.member_id, role=one.role) for one in members]
    rows += _calibration(matches, grades) + _distance_rows(members, weights, scale)
    return tables.table(rows + _child_rows(members, samples, births, generation), tables.METRICS)


def _calibration(matches: pa.Table, grades: pa.Table) -> list[Row]:
    """Compare the students' expected chances with their solve rates, over the matches that posed a task."""
    outcomes = defaultdict(list)
    for match, correct in zip(grades["match_id"].to_pylist(), grades["correct"].to_pylist(), strict=True):
        outcomes[match].append(correct)
    expected = dict(zip(matches["match_id"].to_pylist(), matches["expected"].to_pylist(), strict=True))
    errors = [sum(outcomes[match]) / len(outcomes[match]) - chance for match, chance in expected.items() if outcomes[match]]
    return [
        mean_row("calibration.expected", [chance for match, chance in expected.items() if outcomes[match]]),
        mean_row("calibration.error", errors),
        mean_row("calibration.squared_error", [error**2 for error in errors]),
    ]


def _distance_rows(members: Sequence[Member], weights: Mapping[str, Weights], scale: float) -> list[Row]:
    """Return the norm of each adapter's delta W, and the distance and cosine of each pair of one role."""
    if not members:
        return []
    norms, apart, cosines = distances(inner_products([weights[member.adapter_id] for member in members]))
    rows = [
        value_row("adapter.norm", scale * norm, None, member_id=member.member_id, role=member.role)
        for member, norm in zip(members, norms.tolist(), strict=True)
    ]
    for a, b in combinations(range(len(members)), 2):
        if members[a].role == members[b].role:
            scope = {"member_id": members[a].member_id, "role": members[a].role, "opponent_id": members[b].member_id}
            rows.append(value_row("pair.adapter_distance", scale * float(apart[a, b]), None, **scope))
            if norms[a] and norms[b]:
                rows.append(value_row("pair.adapter_cosine", float(cosines[a, b]), None, **scope))
    return rows


def _child_rows(
    members: Sequence[Member], samples: pa.Table, births: Mapping[str, OffspringRecord], generation: int
) -> list[Row]:
    earned: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    columns = (samples[name].to_pylist() for name in ("role", "member_id", "cluster", "reward"))
    for role, member_id, cluster, reward in zip(*columns, strict=True):
        earned[role, member_id].append((cluster, reward))
    rows = []
    for member in members:
        own = earned.get((member.role, member.member_id))
        if member.member_id not in births or not own:
            continue
        birth, (reward, stderr, n) = births[member.member_id], _mean_reward([own])
        rest = [found for (role, name), found in earned.items() if role == member.role and name != member.member_id]
        others, others_stderr, apart = _mean_reward(rest)
        scope: dict[str, str | None] = {"member_id": member.member_id, "role": member.role}
        rows.append(value_row("child.age", generation - member.born, None, **scope))
        gain = value_row("child.gain", reward - birth.parents_reward, n, **scope)
        rows.append(gain | {"stderr": _of_difference(stderr, birth.parents_stderr)})
        share = apart / (n + apart)  # of the others in the role's mean, of which the child is a part
        lead = value_row("child.lead", share * (reward - others) if apart else 0.0, n, **scope)
        error = _of_difference(stderr, others_stderr)
        rows.append(lead | {"stderr": None if error is None else share * error})
    return rows


def _mean_reward(earned: Sequence[Sequence[tuple[str, float]]]) -> tuple[float, float | None, int]:
    """Return (mean, standard error, clusters) of what members earned: pairs of a cluster and a reward of each."""
    listed = [(reward, (place, cluster)) for place, own in enumerate(earned) for cluster, reward in own]
    return clustered([reward for reward, _ in listed], [cluster for _, cluster in listed])


def _of_difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else math.hypot(first, second)


def _valid(tasks: pa.Table) -> list[dict[str, Any]]:
    names = ["task_id", "teacher_id", "program", "program_key", "syntax", "value_types", "executed_lines"]
    rows: list[dict[str, Any]] = tasks.filter(pc.equal(tasks["status"], "valid")).select(names).to_pylist()
    return rows


def _mean(name: str, rows: list[dict], value: Callable[[dict], float], cluster: str, scope: Mapping[str, str | None]) -> Row:
    return mean_row(name, [value(row) for row in rows], [row[cluster] for row in rows], **scope)


def _slices(rows: list[dict], member: str, role: str) -> Iterator[tuple[dict[str, str | None], list[dict]]]:
    """Yield (scope, rows) for all rows, each kind and each member."""
    yield {}, rows
    for kind, chosen in _by(rows, "kind"):
        yield {"kind": kind}, chosen
    for name, chosen in _by(rows, member):
        yield {"member_id": name, "role": role}, chosen


def _by(rows: Iterable[dict], key: str) -> list[tuple[str, list[dict]]]:
    """Return rows grouped by the value of a column, values sorted."""
    found = defaultdict(list)
    for row in rows:
        found[row[key]].append(row)
    return sorted(found.items())
