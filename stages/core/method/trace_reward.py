"""The reward for a trace that is right as far as it goes: something to learn from where every answer to a task is wrong.

    reward = rule(wrong) + weight * agreeing / steps

`agreeing` is the number of leading lines of the answer's trace that agree with what the program assigns, `steps` how often it
assigns. Deductions only, and only wrong values: an answer without the required format, or that is no value, earns what the rule
says. What a student could try gains nothing: lines count in the order of the program up to the first that does not agree, so
repeating, guessing and reordering lines end the prefix; the denominator is the true trace's, not the answer's; and `weight` is
less than what the rule pays a right answer more than a wrong one (`AddedRewards.check`): a wrong answer never earns as much.
"""

from collections.abc import Iterator

import pyarrow as pa

from stages.core.judging.traces import agreeing
from stages.core.prompts.styles import Kind
from stages.core.prompts.trace import trace_lines


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
        if status == "wrong" and kind == Kind.DEDUCTION and true[task_id]["steps"]:
            yield rollout_id, agreeing(true[task_id]["lines"], trace_lines(text)) / true[task_id]["steps"]
