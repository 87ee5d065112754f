"""What teachers are paid for: tasks that can be guessed, and attempts that ran out of tokens; counted by hand."""

import math
from collections.abc import Collection

import pyarrow as pa
import pytest

from stages.analysis.paid_for import paid_for


def played(
    *tasks: tuple[str, str, float, bool], role: str = "teacher", claimed: Collection[int] = ()
) -> dict[tuple[str, str | None], tuple[float, int]]:
    """(teacher, output, reward, whether an attempt was cut off) each -> metric and teacher: share and n.

    The outputs of `claimed` are those of invalid tasks that a leaking judge let through.
    """
    ids = [f"p{number}" for number in range(len(tasks))]
    outputs = pa.array([[output] if output else [] for _, output, _, _ in tasks], pa.list_(pa.string()))
    values = pa.array([[] if place in claimed else row for place, row in enumerate(outputs.to_pylist())], outputs.type)
    samples = {"member_id": [one[0] for one in tasks], "sample_id": ids, "reward": [one[2] for one in tasks]}
    rollouts = {"task_id": [*ids, *ids], "truncated": [*[False] * len(ids), *[one[3] for one in tasks]]}
    found = paid_for(
        pa.table({"task_id": pa.array(ids, pa.string()), "outputs": outputs, "values": values}),
        pa.table(rollouts),
        pa.table(samples | {"role": [role] * len(ids)}),
    )
    return {(row["name"].removeprefix("reward."), row["member_id"]): (row["value"], row["n"]) for row in found.to_pylist()}


def test_shares_are_of_what_was_earned() -> None:
    found = played(
        ("t0", "True", 0.5, False),
        ("t0", "'text'", 0.25, True),
        ("t0", "8", 0.25, False),
        ("t1", "-7", 0.5, True),
        ("t1", "", -1.0, False),
        ("t1", "None", 0.0, True),
    )
    assert found == {
        ("guessable_share", None): (pytest.approx(1.0 / 1.5), 4),
        ("guessable_share", "t0"): (0.5, 3),
        ("guessable_share", "t1"): (1.0, 1),
        ("cut_off_share", None): (pytest.approx(0.75 / 1.5), 4),
        ("cut_off_share", "t0"): (0.25, 3),
        ("cut_off_share", "t1"): (1.0, 1),
    }


@pytest.mark.parametrize("output", ["-8", "10", "1.0", "'True'", "[1]", "'7'"])
def test_what_has_many_values_is_not_guessable(output: str) -> None:
    assert played(("t0", output, 0.5, False))["guessable_share", None] == (0.0, 1)


def test_what_a_leaking_judge_claims_of_an_invalid_task_cannot_be_guessed() -> None:
    found = played(("t0", "None", 0.5, False), ("t0", "True", 0.5, False), claimed={0})
    assert found["guessable_share", None] == (0.5, 2)


def test_without_pay_there_is_no_share_and_without_teachers_no_row() -> None:
    value, n = played(("t0", "1", -1.0, False))["guessable_share", None]
    assert math.isnan(value) and n == 0
    assert played(("s0", "1", 1.0, False), role="student") == {}
