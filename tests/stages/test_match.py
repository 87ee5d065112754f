"""Matching teachers with students, and the members of a population."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from stages.core import tables
from stages.core.method.rating import Rating, win_chance
from stages.core.population import Member, initial_members, member_ids, next_number, of_role, population_after, start_adapter_id
from stages.match import match

BETA = 25 / 6


def member(name: str, mu: float = 25.0, sigma: float = 2.0) -> Member:
    role = {"t": "teacher", "s": "student", "a": "both"}[name[0]]
    return Member(name, role, f"{name}-start", f"sha-{name}", Rating(mu, sigma), 0)


def pairs(table: pa.Table) -> list[tuple[str, str]]:
    return list(zip(table["teacher_id"].to_pylist(), table["student_id"].to_pylist(), strict=True))


def test_every_teacher_meets_a_student_of_its_own():
    population = [member(name) for name in ("t0", "t1", "t2", "s0", "s1", "s2")]
    table = match(population, np.random.default_rng(0), 7, BETA)
    assert table.schema == tables.MATCHES
    assert sorted(table["teacher_id"].to_pylist()) == ["t0", "t1", "t2"]
    assert sorted(table["student_id"].to_pylist()) == ["s0", "s1", "s2"]
    assert table["match_id"].to_pylist() == ["g0007-m00", "g0007-m01", "g0007-m02"]


def test_a_row_holds_the_ratings_and_the_chance():
    teacher, student = member("t0", 27.0, 1.5), member("s0", 24.0, 2.5)
    (row,) = match([teacher, student], np.random.default_rng(0), 0, BETA).to_pylist()
    assert row == {
        "match_id": "g0000-m00",
        "teacher_id": "t0",
        "student_id": "s0",
        "teacher_adapter_id": "t0-start",
        "student_adapter_id": "s0-start",
        "teacher_mu": 27.0,
        "teacher_sigma": 1.5,
        "student_mu": 24.0,
        "student_sigma": 2.5,
        "expected": win_chance(student.rating, teacher.rating, BETA),
    }


def test_the_draw_follows_p_times_one_minus_p():
    population = [member("t0"), member("s0", 25.0), member("s1", 32.0), member("s2", 10.0)]
    rng = np.random.default_rng(3)
    met = Counter(match(population, rng, 0, BETA)["student_id"][0].as_py() for _ in range(4000))
    chances = np.array([win_chance(student.rating, population[0].rating, BETA) for student in population[1:]])
    weights = chances * (1 - chances) / (chances * (1 - chances)).sum()
    found = np.array([met[f"s{slot}"] for slot in range(3)]) / 4000
    assert np.abs(found - weights).max() < 4 * np.sqrt(0.25 / 4000)


def test_the_pool_refills_and_fewer_teachers_leave_students_idle():
    many = [member(name) for name in ("t0", "t1", "t2", "t3", "t4", "s0", "s1")]
    met = Counter(match(many, np.random.default_rng(0), 0, BETA)["student_id"].to_pylist())
    assert sorted(met.values()) == [2, 3]
    few = [member(name) for name in ("t0", "s0", "s1", "s2")]
    assert match(few, np.random.default_rng(0), 0, BETA).num_rows == 1


def test_teacher_order_is_shuffled_and_repeats_with_the_seed():
    population = [member(name) for name in ("t0", "t1", "t2", "t3", "s0", "s1", "s2", "s3")]
    first = [tuple(match(population, np.random.default_rng(seed), 0, BETA)["teacher_id"].to_pylist()) for seed in range(8)]
    again = [tuple(match(population, np.random.default_rng(seed), 0, BETA)["teacher_id"].to_pylist()) for seed in range(8)]
    assert first == again
    assert len(set(first)) > 4


def test_ratings_worlds_apart_still_match():
    population = [member("t0", 0.0, 0.1), member("s0", 5000.0, 0.1), member("s1", 9000.0, 0.1)]
    assert match(population, np.random.default_rng(0), 0, BETA).num_rows == 1


def test_round_robin_walks_over_the_students():
    population = [member(name) for name in ("t0", "t1", "s0", "s1", "s2")]
    rng = np.random.default_rng(0)
    assert pairs(match(population, rng, 0, BETA, "round_robin")) == [("t0", "s0"), ("t1", "s1")]
    assert pairs(match(population, rng, 2, BETA, "round_robin")) == [("t0", "s2"), ("t1", "s0")]


def test_random_ignores_ratings():
    population = [member("t0"), member("s0", 25.0), member("s1", 60.0)]
    rng = np.random.default_rng(5)
    met = Counter(match(population, rng, 0, BETA, "random")["student_id"][0].as_py() for _ in range(2000))
    assert abs(met["s1"] / 2000 - 0.5) < 0.05


def test_a_matchmaker_of_the_users_own():
    population = [member(name) for name in ("t0", "t1", "s0", "s1")]
    table = match(population, np.random.default_rng(0), 0, BETA, lambda ts, ss, rng, generation, beta: [(t, ss[-1]) for t in ts])
    assert pairs(table) == [("t0", "s1"), ("t1", "s1")]


def test_an_unknown_matchmaker_is_named():
    with pytest.raises(ValueError, match="'elo': known are pfsp, random, round_robin"):
        match([member("t0"), member("s0")], np.random.default_rng(0), 0, BETA, "elo")


def test_a_single_agent_meets_itself_at_even_odds():
    (row,) = match([member("a0", 25.0, 1.0)], np.random.default_rng(0), 3, BETA).to_pylist()
    assert (row["teacher_id"], row["student_id"], row["expected"]) == ("a0", "a0", 0.5)


def test_first_members_in_slot_order():
    assert [name for name, _ in member_ids(2, 3, "population")] == ["t0", "t1", "s0", "s1", "s2"]
    assert member_ids(1, 1, "single") == [("a0", "both")]
    digests = {start_adapter_id(name): name.upper() for name, _ in member_ids(1, 1, "population")}
    assert initial_members(1, 1, "population", digests, Rating()) == [
        Member("t0", "teacher", "t0-start", "T0", Rating(), 0),
        Member("s0", "student", "s0-start", "S0", Rating(), 0),
    ]


def test_a_single_agent_plays_both_roles():
    agent = [member("a0")]
    assert of_role(agent, "teacher") == of_role(agent, "student") == agent


def test_numbers_go_on_and_never_repeat():
    population = [member("t0"), member("t7"), member("t3"), member("s9")]
    assert next_number(population, "teacher") == 8
    assert next_number(population, "student") == 10


def rating_row(name: str, mu: float, next_adapter: str) -> dict:
    blank = {"match_id": None, "opponent_id": None, "expected": None, "observed": None, "result": "idle"}
    return blank | {
        "member_id": name,
        "role": "teacher" if name[0] == "t" else "student",
        "born": 0,
        "adapter_id": f"{name}-start",
        "adapter_sha256": "old",
        "mu_before": 25.0,
        "sigma_before": 8.0,
        "mu": mu,
        "sigma": 7.0,
        "fitness": mu - 21.0,
        "next_adapter_id": next_adapter,
        "next_adapter_sha256": "new",
    }


def child_row(name: str, replaces: str) -> dict:
    return {
        "member_id": name,
        "role": "teacher",
        "replaces": replaces,
        "parents": ["t1"],
        "parent_adapter_ids": ["t1-g0004"],
        "operator": "M1",
        "operator_kind": "mutation",
        "seed": "1",
        "parameters": "{}",
        "adapter_id": f"{name}-start",
        "adapter_sha256": "born",
        "mu": 26.0,
        "sigma": 6.5,
        "relative_change": 0.1,
        "cosine": 0.9,
        "note": "",
    }


def test_the_next_population_keeps_slots_and_takes_the_last_row_of_each():
    rows = [rating_row("t0", 20.0, "t0-g0004"), rating_row("t1", 26.0, "t1-g0004")]
    rows += [rating_row("s0", 24.0, "s0-g0004"), rating_row("s0", 23.0, "s0-g0004")]
    ratings = tables.table(rows, tables.RATINGS)
    assert population_after(ratings, tables.table([child_row("t2", "t0")], tables.OFFSPRING), 4) == [
        Member("t2", "teacher", "t2-start", "born", Rating(26.0, 6.5), 5),
        Member("t1", "teacher", "t1-g0004", "new", Rating(26.0, 7.0), 0),
        Member("s0", "student", "s0-g0004", "new", Rating(23.0, 7.0), 0),
    ]


def test_offspring_of_nobody_here_is_refused():
    ratings = tables.table([rating_row("t0", 20.0, "t0-g0004")], tables.RATINGS)
    with pytest.raises(ValueError, match="t2 replaces t9, which is not among"):
        population_after(ratings, tables.table([child_row("t2", "t9")], tables.OFFSPRING), 4)
