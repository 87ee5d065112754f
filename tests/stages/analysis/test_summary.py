import math

from stages.analysis.summary import generation_line
from stages.core import tables


def metric(name, value, member=None, role=None, kind=None):
    return {"name": name, "value": value, "member_id": member, "role": role, "kind": kind}


def rating(member, role, mu, sigma=1.0, match="m0"):
    weights = {"adapter_id": "a", "adapter_sha256": "0", "next_adapter_id": "b", "next_adapter_sha256": "1"}
    before = {"mu_before": 25.0, "sigma_before": 8.0}
    own = {"member_id": member, "role": role, "born": 0, "result": "win", "mu": mu, "sigma": sigma, "fitness": mu - 3 * sigma}
    return own | before | weights | {"match_id": match, "opponent_id": "x", "expected": 0.5, "observed": 0.6}


def child(member, parents, replaces, operator, kind):
    return {
        "member_id": member, "role": "teacher", "replaces": replaces, "parents": parents, "parent_adapter_ids": parents,
        "operator": operator, "operator_kind": kind, "seed": "1", "parameters": "{}", "adapter_id": f"{member}-start",
        "adapter_sha256": "2", "mu": 25.0, "sigma": 1.0, "relative_change": 0.1, "cosine": 0.9, "note": "",
    }  # fmt: skip


METRICS = [
    metric("propose.valid_share", 0.7083),
    metric("propose.valid_share", 0.1, "t0", "teacher"),
    metric("solve.rate", 0.42),
    metric("solve.rate", 0.51, kind="deduction"),
    metric("solve.rate", 0.44, kind="abduction"),
    metric("solve.rate", 0.30, kind="induction"),
    metric("reward.mean", 0.21, role="teacher"),
    metric("reward.mean", -0.13, role="student"),
]
RATINGS = [
    rating("t0", "teacher", 22.2),
    rating("t1", "teacher", 28.0),
    rating("s0", "student", 20.0),
    rating("s0", "student", 25.0),
]


def test_one_line_says_it_all():
    seconds = {"match": 0.01, "propose": 2.14, "verify": 1.0, "solve": 4.0, "update": 5.2}
    line = generation_line(
        tables.table(METRICS, tables.METRICS), tables.table(RATINGS, tables.RATINGS), tables.OFFSPRING.empty_table(), seconds, 3
    )
    assert line == (
        "g0003  valid 71 %  solved 42 % (deduction 51, abduction 44, induction 30)  reward teachers +0.21 students -0.13  "
        "rating teachers 25.1 students 25.0  best t1 28.0 s0 25.0  propose 2.1 s solve 4.0 s update 5.2 s  total 12 s"
    )


def test_births_are_named_and_long_stages_are_in_minutes():
    born = tables.table(
        [child("t3", ["t1"], "t0", "M2", "mutation"), child("t4", ["t1", "t2"], "t5", "X1", "crossover")], tables.OFFSPRING
    )
    line = generation_line(tables.METRICS.empty_table(), tables.RATINGS.empty_table(), born, {"solve": 600.0})
    assert line == "replaced t0 by t3 (mutation M2 of t1), t5 by t4 (crossover X1 of t1 and t2)  solve 10.0 min  total 10.0 min"


def test_what_is_not_known_is_left_out():
    nothing = tables.table([metric("solve.rate", math.nan), metric("propose.valid_share", 0.0)], tables.METRICS)
    single = tables.table([rating("a0", "both", 25.0)], tables.RATINGS)
    assert generation_line(nothing, single, None, {}, 12) == "g0012  valid 0 %"
