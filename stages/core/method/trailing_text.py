"""A deduction where a student wrote more behind its answer, so that it learns to stop there.

    reward = rule(verdict) - weight    if text stands behind the answer on its line

Only the answer counts for the verdict (docs/method.md), so without a deduction nothing speaks against writing on. Which rollouts
did is in ROLLOUTS: their `answer_tokens` are not null. That is a matter of the style: `document` alone reads answers that more
text may follow.
"""

import pyarrow as pa


def written_past(rollouts: pa.Table) -> list[str]:
    """Return the ids of the rollouts whose answer is followed by more text; none in tables that do not say."""
    if "answer_tokens" not in rollouts.column_names:
        return []
    pairs = zip(rollouts["rollout_id"].to_pylist(), rollouts["answer_tokens"].to_pylist(), strict=True)
    return [rollout_id for rollout_id, answer_tokens in pairs if answer_tokens is not None]
