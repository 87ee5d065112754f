"""Groups of the update: who trains in which pass."""

import pytest

from stages.core import tables
from stages.core.method.rating import Rating
from stages.core.population import Member
from stages.update import groups

NAMES = ("t0", "t1", "s0", "s1")
ROLES = {"t": "teacher", "s": "student"}
POPULATION = [Member(name, ROLES[name[0]], f"{name}-start", "", Rating(), 0) for name in NAMES]


def samples(**lengths: int):
    """One sample an adapter: one prompt token and `length` - 1 completion tokens."""
    rows = [
        {
            "sample_id": f"{name}-0",
            "adapter_id": f"{name}-start",
            "adapter_sha256": "",
            "group_id": name,
            "member_id": name,
            "role": ROLES[name[0]],
            "kind": "deduction",
            "prompt_ids": [1],
            "completion_ids": [2] * (length - 1),
            "logprobs": [0.0] * (length - 1),
            "reward": 0.0,
            "baseline": 0.0,
            "centred": 0.0,
            "advantage": 0.0,
        }
        for name, length in lengths.items()
    ]
    return tables.table(rows, tables.SAMPLES)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, {"00": ["t0", "t1", "s0", "s1"]}),
        (2, {"00": ["t0", "s1"], "01": ["t1", "s0"]}),
        (1, {"00": ["t0"], "01": ["t1"], "02": ["s0"], "03": ["s1"]}),
        (3, {"00": ["t0"], "01": ["t1", "s0", "s1"]}),
    ],
)
def test_groups_are_balanced_by_tokens_and_listed_in_the_order_of_the_population(size, expected):
    found = groups(samples(t0=90, t1=40, s0=30, s1=20), POPULATION, size)
    parts: dict[str, list[str]] = {}
    for row in found.to_pylist():
        parts.setdefault(row["part"], []).append(row["member_id"])
    assert parts == expected
    assert [row["tokens"] for row in sorted(found.to_pylist(), key=lambda row: -row["tokens"])] == [90, 40, 30, 20]


def test_an_adapter_without_samples_is_in_no_group():
    assert groups(samples(t0=5, s1=4), POPULATION, 0)["member_id"].to_pylist() == ["t0", "s1"]
    assert groups(samples(), POPULATION, 2).num_rows == 0
