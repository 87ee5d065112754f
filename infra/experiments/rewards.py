"""Rewards that experiments compare with the paper's."""

from stages.core.method.rewards import Event, populora


def learnable(event: Event) -> float:
    """Return 4 s (1 - s) for a valid task of solve rate s: most where half of the attempts succeed. All else as in the paper.

    A teacher is paid for what its student can learn from. The paper pays 1 - s, most for what is almost never solved.
    """
    if event.role == "teacher" and event.solve_rate is not None and event.status == "valid":
        return 4 * event.solve_rate * (1 - event.solve_rate)
    return populora(event)
