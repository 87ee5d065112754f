"""What a proposal or an answer earns. A rule is one function of an `Event`; a run may name its own.

PopuLoRA (arXiv 2605.16727) keeps Absolute Zero Reasoner's ladder: with s the share of the matched student's attempts on a task
that are correct, a teacher earns 1 - s for s > 0, 0 for s = 0 and -1 for an invalid task; a student earns 1 when correct, -0.5
when wrong and -1 when the answer has not the asked form.
"""

from dataclasses import dataclass
from typing import Protocol

from stages.core.prompts.styles import Kind


@dataclass(frozen=True)
class Event:
    """One thing to reward.

    Teachers: `status` is `valid`, `gated`, or why the task is not valid; `solve_rate` is s (None unless valid). Students:
    `status` is `correct`, `format`, or anything else for wrong; `solve_rate` is None.
    """

    role: str
    kind: Kind
    status: str
    solve_rate: float | None


class Rule(Protocol):
    """A reward rule: the event in, its reward out."""

    def __call__(self, event: Event) -> float:
        """The reward of one event."""
        ...


def populora(event: Event) -> float:
    """The paper's ladder. A gated task pays 0: the program ran, but it was not worth posing."""
    if event.role == "student":
        return {"correct": 1.0, "format": -1.0}.get(event.status, -0.5)
    if event.status == "gated":
        return 0.0
    if event.solve_rate is None:
        return -1.0
    return 1.0 - event.solve_rate if event.solve_rate > 0 else 0.0


def azr(event: Event) -> float:
    """As Absolute Zero Reasoner's public code pays, not its text: a valid task that nobody or everybody solves earns -0.5."""
    if event.role == "teacher" and event.solve_rate in (0.0, 1.0):
        return -0.5
    return populora(event)


RULES: dict[str, Rule] = {"populora": populora, "azr": azr}
