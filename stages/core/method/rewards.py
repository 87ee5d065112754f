"""Rewards of proposals and answers. A rule is one function of an `Event`; a run may name its own rule.

PopuLoRA (arXiv 2605.16727) keeps Absolute Zero Reasoner's ladder. With s the share of the matched student's attempts on a task
that are correct, a teacher earns 1 - s for s > 0, 0 for s = 0 and -1 for an invalid task. A student earns 1 for a correct answer,
-0.5 for a wrong one and -1 for one without the required format.
"""

from dataclasses import dataclass
from typing import Protocol

from stages.core.prompts.styles import Kind


@dataclass(frozen=True)
class Event:
    """One proposal or answer to reward.

    Teachers: `status` is `valid`, `gated`, or why the task is not valid; `solve_rate` is s (None unless valid). Students:
    `status` is `correct`, `format`, or anything else for wrong; `solve_rate` is None.
    """

    role: str
    kind: Kind
    status: str
    solve_rate: float | None


class Rule(Protocol):
    """A reward rule, from an event to its reward."""

    def __call__(self, event: Event) -> float:
        """Return the reward of one event."""
        ...


def populora(event: Event) -> float:
    """Return the paper's reward. A gated task earns 0: the program ran, but it was not worth posing."""
    if event.role == "student":
        return {"correct": 1.0, "format": -1.0}.get(event.status, -0.5)
    if event.status == "gated":
        return 0.0
    if event.solve_rate is None:
        return -1.0
    return 1.0 - event.solve_rate if event.solve_rate > 0 else 0.0


def azr(event: Event) -> float:
    """Return the reward of AZR's public code, not of its paper: a valid task with s = 0 or s = 1 earns -0.5."""
    if event.role == "teacher" and event.solve_rate in (0.0, 1.0):
        return -0.5
    return populora(event)


def learnable(event: Event) -> float:
    """Return 4 s (1 - s) for a valid task of solve rate s: most where half of the attempts succeed. All else as in the paper.

    A deviation: a teacher is paid for what its student can learn from. The paper pays 1 - s, most for what is almost never
    solved.
    """
    if event.role == "teacher" and event.solve_rate is not None and event.status == "valid":
        return 4 * event.solve_rate * (1 - event.solve_rate)
    return populora(event)


def form(event: Event) -> float:
    """Return a placebo's reward: 1 for what can be read, whatever its verdict, and -1 for what cannot, as an unreadable answer.

    A student can learn to stop and to keep the form from it, and nothing else: what a run gains beyond it is skill. The same rule
    pays a teacher.
    """
    return -1.0 if event.status in ("format", "unparsed") else 1.0


RULES: dict[str, Rule] = {"populora": populora, "azr": azr, "learnable": learnable, "form": form}
