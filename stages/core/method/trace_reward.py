"""The reward for a trace that is right as far as it goes: something to learn from where every answer to a task is wrong.

    reward = rule(wrong) + weight * agreeing / steps

`agreeing` is the number of leading lines of the answer's trace that agree with what the program assigns, `steps` how often it
assigns. Deductions only, and only wrong values: an answer without the required format, or that is no value, earns what the rule
says. What a student could try gains nothing: lines count in the order of the program up to the first that does not agree, so
repeating, guessing and reordering lines end the prefix; the denominator is the true trace's, not the answer's; and `weight` is
less than a right answer earns more than a wrong one (`AddedRewards.check`), so that a wrong answer never earns as much.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stages.core.judging.traces import agreeing
from stages.core.prompts.styles import Kind
from stages.core.prompts.trace import trace_lines


@dataclass(frozen=True)
class RightSteps:
    """How far a written trace is right: its leading lines that agree with the true ones, and the steps that there are."""

    right: int
    steps: int

    @property
    def share(self) -> float:
        """Share of the steps that are right."""
        return self.right / self.steps


def may_earn(kind: str, status: str) -> bool:
    """Return whether an answer with this verdict may earn something for its trace."""
    return status == "wrong" and kind == Kind.DEDUCTION


def right_steps(true: Mapping[str, Any], text: str) -> RightSteps | None:
    """Return how far the trace in a completion is right by its task's row of TRACES; None where that could not be recorded."""
    return RightSteps(agreeing(true["lines"], trace_lines(text)), true["steps"]) if true["steps"] else None


def trace_shares(rollouts: pa.Table, grades: pa.Table, traces: pa.Table) -> dict[str, float]:
    """Return rollout id -> share of the true steps that the trace gets right, for every wrong deduction of a recorded task."""
    return dict(_shares(rollouts, grades, traces))


def _shares(rollouts: pa.Table, grades: pa.Table, traces: pa.Table) -> Iterator[tuple[str, float]]:
    true = {row["task_id"]: row for row in traces.to_pylist()}
    for rollout_id, task_id, kind, text, status in zip(
        *(rollouts[name].to_pylist() for name in ("rollout_id", "task_id", "kind", "text")),
        grades["status"].to_pylist(),
        strict=True,
    ):
        if may_earn(kind, status) and (found := right_steps(true[task_id], text)):
            yield rollout_id, found.share
