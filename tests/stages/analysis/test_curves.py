"""Curves of a run: what did not occur counts as 0."""

from stages.analysis.comparison import changes
from stages.analysis.curves import absent_counts

TIMEOUT, VALID, GATE = "propose.status.timeout", "propose.status.valid", "propose.gate.constant"


def row(trained: int, name: str, value: float, n: int | None = 8) -> dict:
    return {"trained": trained, "name": name, "value": value, "n": n, "stderr": None}


def test_a_verdict_that_did_not_occur_counts_as_0_wherever_something_was_proposed() -> None:
    first = [row(1, "propose.valid_share", 0.75), row(1, VALID, 6.0), row(1, TIMEOUT, 2.0)]
    curves = [*first, row(2, "propose.valid_share", 1.0), row(2, VALID, 8.0), row(3, "solve.rate", 0.5)]
    names = {one["name"] for one in curves} | {GATE}  # the gate stopped a task of another run
    assert list(absent_counts(curves, names)) == [row(1, GATE, 0.0), row(2, GATE, 0.0), row(2, TIMEOUT, 0.0)]
    assert list(absent_counts([row(3, "solve.rate", 0.5)], names)) == []  # nothing was proposed
    assert list(absent_counts([], names)) == []


def test_counts_of_a_run_add_up_to_its_proposals() -> None:
    curves = [row(at, VALID, 8.0 - 4 * (at == 2)) for at in range(1, 7)] + [row(2, TIMEOUT, 4.0)]
    whole = [*curves, *absent_counts(curves, {VALID, TIMEOUT})]
    moved = changes([one | {"arm": "a", "seed": 0} for one in whole], 0.05).to_pylist()
    assert [(one["measure"], one["early"], one["late"]) for one in moved] == [(TIMEOUT, 2.0, 0.0), (VALID, 6.0, 8.0)]
