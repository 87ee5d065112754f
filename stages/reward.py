"""Reward: turn every proposal and every trained attempt into a sample with its reward and advantage.

Only the matched student judges a teacher's task. A replayed task trains the student that attempts it like any other task, but
rewards no teacher, because it has no proposal here; nor does a task that the generator drew, because no adapter wrote it.
Advantages are computed for one adapter and role at a time, so that neither another adapter nor, in single-agent runs, the other
role leaks its scale into them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from stages.core import tables
from stages.core.method.advantages import (
    Advantages,
    dr_grpo,
    grpo,
    positive_only,
    reinforce_plus_plus_baseline,
    trr_plus_plus,
)
from stages.core.method.pass_at_k import pass_at_k
from stages.core.method.rewards import Event, Rule
from stages.core.prompts.styles import Kind

_SAMPLED = ("completion_ids", "logprobs")
Estimator = Callable[[np.ndarray, Sequence[str], Sequence[str], Sequence[str], np.ndarray], Advantages]
"""(rewards_S, group ids, kinds, roles, response lengths_S) of one adapter in one role -> advantages."""

ESTIMATORS: dict[str, Estimator] = {
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "trr_plus_plus": trr_plus_plus,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "positive_only": positive_only,
    "pass_at_k": partial(pass_at_k, k=4),  # a run gives learning.pass_at
}


def reward(
    proposals: pa.Table,
    tasks: pa.Table,
    rollouts: pa.Table,
    grades: pa.Table,
    rule: Rule,
    estimator: Estimator,
    teacher_baseline: str,
    trained_attempts: int,
    added: Mapping[str, float] = MappingProxyType({}),
) -> pa.Table:
    """Return SAMPLES: all proposals that an adapter wrote, then the first `trained_attempts` attempts of each task (0: all).

    `centred` is the reward minus its group's baseline; `advantage` is what the estimator computes from it. A group holds the
    proposals of one prompt (or, by `teacher_baseline`, of one kind, or each alone), or the attempts at one task. `added` maps
    samples to what is added to the rule's reward.
    """
    rows = _teacher_rows(proposals, tasks, grades, rule, teacher_baseline, added)
    rows += _student_rows(rollouts, grades, rule, trained_attempts, added)
    by_policy = defaultdict(list)
    for row in rows:
        by_policy[row["adapter_id"], row["role"]].append(row)
    for members in by_policy.values():
        _add_advantages(members, estimator)
    return tables.table(rows, tables.SAMPLES)


def solve_rates(grades: pa.Table) -> dict[str, float]:
    """Return the share of correct attempts by task id."""
    outcomes = defaultdict(list)
    for task_id, correct in zip(grades["task_id"].to_pylist(), grades["correct"].to_pylist(), strict=True):
        outcomes[task_id].append(correct)
    return {task_id: sum(correct) / len(correct) for task_id, correct in outcomes.items()}


def _teacher_rows(
    proposals: pa.Table, tasks: pa.Table, grades: pa.Table, rule: Rule, baseline: str, added: Mapping[str, float]
) -> list[dict]:
    rates = solve_rates(grades)
    rows = []
    for proposal, task in zip(proposals.to_pylist(), tasks.to_pylist(), strict=True):
        assert proposal["proposal_id"] == task["task_id"], (proposal["proposal_id"], task["task_id"])
        if not proposal["adapter_id"]:
            continue
        gated = task["status"] == "valid" and task["gate"] is not None
        posed = task["status"] == "valid" and not gated
        event = Event(
            role="teacher",
            kind=Kind(proposal["kind"]),
            status="gated" if gated else task["status"],
            solve_rate=rates[task["task_id"]] if posed else None,
        )
        group = {"group": proposal["group_id"], "kind": f"{proposal['match_id']}-{proposal['kind']}"}.get(
            baseline, proposal["proposal_id"]
        )
        proposal_id, value = proposal["proposal_id"], rule(event)
        if proposal_id in added:
            value += added[proposal_id]
        rows.append(_row(proposal, proposal_id, proposal["teacher_id"], "teacher", group, value))
    return rows


def _student_rows(
    rollouts: pa.Table, grades: pa.Table, rule: Rule, trained_attempts: int, added: Mapping[str, float]
) -> list[dict]:
    rows = []
    for rollout, grade in zip(rollouts.to_pylist(), grades.to_pylist(), strict=True):
        assert rollout["rollout_id"] == grade["rollout_id"], (rollout["rollout_id"], grade["rollout_id"])
        if trained_attempts and rollout["attempt"] >= trained_attempts:
            continue
        event = Event(role="student", kind=Kind(rollout["kind"]), status=grade["status"], solve_rate=None)
        rollout_id, value = rollout["rollout_id"], rule(event)
        if rollout_id in added:
            value += added[rollout_id]
        rows.append(_row(rollout, rollout_id, rollout["student_id"], "student", rollout["task_id"], value))
    return rows


def _row(completion: dict, sample_id: str, member_id: str, role: str, group_id: str, value: float) -> dict:
    copied = ("kind", "adapter_id", "adapter_sha256", "prompt_ids")
    own = {"sample_id": sample_id, "member_id": member_id, "role": role, "group_id": group_id, "reward": value}
    # Behind an answer only the decision to write on is trained: what comes after it cannot change the reward, so its gradient
    # would be noise.
    trained = slice(completion.get("answer_tokens"))
    return own | {name: completion[name] for name in copied} | {name: completion[name][trained] for name in _SAMPLED}


def _add_advantages(rows: list[dict], estimator: Estimator) -> None:
    """Add baseline, centred reward and advantage, in place, to the rows of one adapter in one role."""
    result = estimator(
        np.array([row["reward"] for row in rows]),
        [row["group_id"] for row in rows],
        [row["kind"] for row in rows],
        [row["role"] for row in rows],
        np.array([len(row["completion_ids"]) for row in rows]),
    )
    for index, row in enumerate(rows):
        row["baseline"] = float(result.baseline_S[index])
        row["centred"] = float(result.centred_S[index])
        row["advantage"] = float(result.advantage_S[index])
