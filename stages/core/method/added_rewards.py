"""What is added to the rule's reward: for the right beginning of a trace, against text behind an answer, against tasks alike."""

from dataclasses import dataclass

import pyarrow as pa

from stages.core.method.likeness import likeness
from stages.core.method.rewards import Event, Rule
from stages.core.method.trace_reward import trace_shares
from stages.core.method.trailing_text import written_past
from stages.core.prompts.styles import Kind

SHARES = 16  # solve rates at which a rule is asked what a valid task earns


@dataclass(frozen=True)
class AddedRewards:
    """Weights; 0 turns each off.

    `trace` is paid for a whole right trace of a wrong deduction, `trailing_text` is deducted for text behind an answer, and
    `likeness` for a task that is like all others of its teacher.
    """

    trace: float
    trailing_text: float
    likeness: float = 0.0

    def check(self, rule: Rule) -> None:
        """Raise ValueError if a wrong answer could earn as much as a right one, or less than an unreadable one; so for tasks."""
        right, wrong, unread = (rule(Event("student", Kind.DEDUCTION, status, None)) for status in ("correct", "wrong", "format"))
        if self.trace + self.trailing_text >= right - wrong and (self.trace or self.trailing_text):
            raise ValueError(f"must be less than {right - wrong:g}, by which a right answer earns more than a wrong one")
        if self.trailing_text > wrong - unread:
            raise ValueError(f"must be at most {wrong - unread:g}, by which a wrong answer earns more than an unreadable one")
        invalid = rule(Event("teacher", Kind.DEDUCTION, "error", None))
        lowest = min(rule(Event("teacher", Kind.DEDUCTION, "valid", share / SHARES)) for share in range(SHARES + 1))
        if self.likeness > lowest - invalid:
            raise ValueError(f"must be at most {lowest - invalid:g}, by which any valid task earns more than an invalid one")

    def of(self, tasks: pa.Table, rollouts: pa.Table, paid: pa.Table, traces: pa.Table | None) -> dict[str, float]:
        """Return sample id -> what is added. `paid` are GRADES as paid; `traces` are needed if traces are rewarded."""
        added: dict[str, float] = {}
        if self.likeness:
            added = {task_id: -self.likeness * share for task_id, share in likeness(tasks).items()}
        if self.trace:
            assert traces is not None
            added |= {rollout_id: self.trace * share for rollout_id, share in trace_shares(rollouts, paid, traces).items()}
        if self.trailing_text:
            for rollout_id in written_past(rollouts):
                added[rollout_id] = added.get(rollout_id, 0.0) - self.trailing_text
        return added
