"""Rate: update the ratings of each match's two members from its result.

Each match has one result (arXiv 2605.16727). s is the share of the student's graded attempts that are correct, over all tasks
posed in the match, and p is the student's chance to win by rating. The student wins if s - p > margin, the teacher if
p - s > margin; otherwise they draw. A teacher that posed no task loses. TrueSkill then updates the ratings.

Deviations: the margin is 0.02; the published rule draws only on exact equality, which almost never happens. A member that plays
twice is updated in match order; an idle member keeps its rating. A single agent's rating is constant. Replayed tasks are not
rated: `stages.core.method.top_up.fresh` removes their grades beforehand, and passing one here is an error.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from stages.core import tables
from stages.core.method.rating import Rating, Result, Scale, play
from stages.core.population import Member

_REVERSED: dict[Result, Result] = {"win": "loss", "draw": "draw", "loss": "win"}


def rate(
    population: Sequence[Member],
    matches: pa.Table,
    tasks: pa.Table,
    grades: pa.Table,
    next_adapters: Mapping[str, tuple[str, str]],
    scale: Scale,
    draw_margin: float,
    kappa: float,
) -> pa.Table:
    """Return RATINGS: members in slot order, one row per match of a member in match order, or one row `idle`.

    `expected` and `observed` are the student's in both rows of a match; `result` is that of the row's own member.
    `next_adapters` maps a member to (adapter id, sha256) of its weights after the update; a member without an entry keeps
    the weights that played.
    """
    ratings = {member.member_id: member.rating for member in population}
    games: dict[str, list[dict[str, Any]]] = {member.member_id: [] for member in population}
    for row, observed in zip(matches.to_pylist(), observed_rates(matches, tasks, grades), strict=True):
        teacher, student = row["teacher_id"], row["student_id"]
        result = _student_result(observed, row["expected"], draw_margin) if teacher != student else "draw"
        before = {
            teacher: ratings.get(teacher, Rating(row["teacher_mu"], row["teacher_sigma"])),
            student: ratings.get(student, Rating(row["student_mu"], row["student_sigma"])),
        }
        after = dict(before)
        if teacher != student:
            after[student], after[teacher] = play(before[student], before[teacher], result, scale)
        own = {student: (result, teacher), teacher: (_REVERSED[result], student)}
        for name, (outcome, opponent) in own.items():
            if name not in ratings:
                continue  # a frozen past member and the generator play, but are not rated
            ratings[name] = after[name]
            match = {"match_id": row["match_id"], "opponent_id": opponent, "expected": row["expected"], "observed": observed}
            games[name].append(match | _change(outcome, before[name], after[name]))
    idle = {"match_id": None, "opponent_id": None, "expected": None, "observed": None}
    rows = []
    for member in population:
        after_update = next_adapters.get(member.member_id, (member.adapter_id, member.adapter_sha256))
        for game in games[member.member_id] or [idle | _change("idle", member.rating, member.rating)]:
            rows.append(_identity(member, after_update) | game | {"fitness": Rating(game["mu"], game["sigma"]).fitness(kappa)})
    return tables.table(rows, tables.RATINGS)


def observed_rates(matches: pa.Table, tasks: pa.Table, grades: pa.Table) -> list[float | None]:
    """Return for each match the share of correct attempts over all its posed tasks; None if no task was posed."""
    gates = tasks["gate"].to_pylist()
    posed = {
        task_id: match_id
        for task_id, match_id, status, gate in zip(
            tasks["task_id"].to_pylist(), tasks["match_id"].to_pylist(), tasks["status"].to_pylist(), gates, strict=True
        )
        if status == "valid" and gate is None
    }
    attempts, correct = Counter[str](), Counter[str]()
    for task_id, right in zip(grades["task_id"].to_pylist(), grades["correct"].to_pylist(), strict=True):
        if task_id not in posed:
            raise ValueError(f"a grade names task {task_id}, which was not posed")
        attempts[posed[task_id]] += 1
        correct[posed[task_id]] += right
    matched = matches["match_id"].to_pylist()
    for match_id in matched:
        if match_id in posed.values() and not attempts[match_id]:
            raise ValueError(f"match {match_id} posed tasks, but none of its attempts is graded")
    return [correct[match_id] / attempts[match_id] if attempts[match_id] else None for match_id in matched]


def _student_result(observed: float | None, expected: float, draw_margin: float) -> Result:
    if observed is None or observed - expected > draw_margin:
        return "win"
    return "loss" if expected - observed > draw_margin else "draw"


def _change(result: str, before: Rating, after: Rating) -> dict[str, Any]:
    return {"result": result, "mu_before": before.mu, "sigma_before": before.sigma, "mu": after.mu, "sigma": after.sigma}


def _identity(member: Member, after_update: tuple[str, str]) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "role": member.role,
        "born": member.born,
        "adapter_id": member.adapter_id,
        "adapter_sha256": member.adapter_sha256,
        "next_adapter_id": after_update[0],
        "next_adapter_sha256": after_update[1],
    }
