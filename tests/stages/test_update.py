"""Parts of the update: who trains in which pass, and which rows are in which share."""

import pytest

from stages.core import tables
from stages.core.method.rating import Rating
from stages.core.population import Member
from stages.core.shards import Shard
from stages.update import as_lag, carried_over, groups, share_of, shares

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


def test_samples_carried_over_are_of_the_members_weights_now_and_those_of_members_that_are_gone_are_left_out():
    written = samples(t0=3, s0=4, s1=5)
    now = [Member(name, ROLES[name[0]], f"{name}-g0004", f"digest of {name}", Rating(), 0) for name in ("t0", "t1", "s1")]
    found = carried_over(written, now)
    assert found.schema.equals(tables.SAMPLES, check_metadata=True)
    names = ["adapter_id", "adapter_sha256"]
    assert found.drop_columns(names) == written.take([0, 2]).drop_columns(names)
    assert found["adapter_id"].to_pylist() == ["t0-g0004", "s1-g0004"]
    assert found["adapter_sha256"].to_pylist() == ["digest of t0", "digest of s1"]
    assert carried_over(samples(), now).num_rows == 0


def test_lag_is_the_drift_of_members_that_have_moved():
    measured = [("update.drift_mean", "s0"), ("update.drift_max", "s0"), ("update.loss", "s0"), ("update.drift_mean", "s1")]
    rows = [{"name": name, "value": 1.0, "member_id": member, "role": "student", "kind": None} for name, member in measured]
    found = as_lag(tables.table(rows, tables.METRICS), {"s0"})
    assert [(row["name"], row["member_id"]) for row in found.to_pylist()] == [
        ("update.lag_mean", "s0"),
        ("update.lag_max", "s0"),
        ("update.loss", "s0"),
        ("update.drift_mean", "s1"),
    ]
    assert as_lag(found, ()).equals(found)


def test_an_adapter_without_samples_is_in_no_group():
    assert groups(samples(t0=5, s1=4), POPULATION, 0)["member_id"].to_pylist() == ["t0", "s1"]
    assert groups(samples(), POPULATION, 2).num_rows == 0


def attempts(**prompts: list[tuple[int, int]]):
    """Samples by adapter: for each (prompt, completion tokens) one, with rewards that vary unless all prompts are 0."""
    rows = []
    for name, wanted in prompts.items():
        [row] = samples(**{name: 2}).to_pylist()
        for number, (prompt, length) in enumerate(wanted):
            ids = {"prompt_ids": [prompt] * 3, "completion_ids": [2] * length, "logprobs": [0.0] * length}
            rows.append(row | ids | {"sample_id": f"{name}-{number}", "centred": float(number if prompt else 0)})
    return tables.table(rows, tables.SAMPLES)


MANY = attempts(
    t0=[(1, 10), (2, 10), (1, 10), (2, 10)],  # 23 and 23 tokens: each prompt is computed once
    t1=[(0, 50), (0, 50)],  # nothing to learn
    s0=[(3, 20), (3, 20), (4, 1)],  # 43 and 4
    s1=[(3, 7), (5, 7)],  # 10 and 10
)


ALONE = [[("t0", 23)], [("t0", 23)], [("s0", 43)], [("s0", 4)], [("s1", 20)]]


def parts_of(found):
    listed: dict[str, list[tuple[str, int]]] = {}
    for row in found.to_pylist():
        listed.setdefault(row["part"], []).append((row["member_id"], row["tokens"]))
    return listed


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, {"00of01": [("t0", 46), ("s0", 47), ("s1", 20)]}),
        (2, {"00of02": [("t0", 46)], "01of02": [("s0", 47), ("s1", 20)]}),
        (3, {"00of03": [("t0", 46)], "01of03": [("s0", 43)], "02of03": [("s0", 4), ("s1", 20)]}),
        (99, dict(zip(("00of06", "01of06", "03of06", "04of06", "05of06"), ALONE, strict=True))),
    ],
)
def test_shares_are_balanced_by_tokens_and_keep_the_rows_of_a_prompt_together(most, expected):
    """Units of 23, 23, 43, 4, 10 and 10 tokens; of six shares one is empty and has no part."""
    assert parts_of(shares(MANY, POPULATION, most)) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_each_row_of_an_adapter_that_learns_is_in_one_share_in_the_order_of_the_table(count):
    found = [share_of(MANY, Shard(number, count)).to_pylist() for number in range(count)]
    rows = [row for row in MANY.to_pylist() if row["member_id"] != "t1"]
    assert sorted((row for share in found for row in share), key=rows.index) == rows
    assert all(sorted(share, key=rows.index) == share for share in found)
    prompts = [{(row["adapter_id"], tuple(row["prompt_ids"])) for row in share} for share in found]
    assert sum(map(len, prompts)) == len(set().union(*prompts)), "a prompt is in two shares"


def test_an_adapter_whose_answers_were_all_accepted_without_a_baseline_is_in_the_shares():
    """With and without the groups that are skipped, which leave only equal rows of `s1`."""
    accepted = {"centred": 1.0, "advantage": 1.0}
    rows = [row | accepted for row in attempts(s0=[(1, 3), (2, 3)], s1=[(1, 3), (2, 3)]).to_pylist()]
    rows[3] |= {"centred": 0.0, "advantage": 0.0, "group_id": "refused"}
    found = tables.table(rows, tables.SAMPLES)
    for skips, ids in ((False, ["s0-0", "s0-1", "s1-0", "s1-1"]), (True, ["s0-0", "s0-1", "s1-0"])):
        assert [row["adapter_id"] for row in shares(found, POPULATION, 1, skips).to_pylist()] == ["s0-start", "s1-start"]
        assert share_of(found, Shard(0, 1), skips)["sample_id"].to_pylist() == ids


def test_without_rewards_that_vary_there_are_no_shares():
    assert shares(attempts(t0=[(0, 3), (0, 3)]), POPULATION, 2).num_rows == 0
    assert shares(samples(), POPULATION, 2).num_rows == 0
