"""Results from grades, and ratings from results."""

import numpy as np
import pyarrow as pa
import pytest

from stages.core import tables
from stages.core.method.rating import Rating, Scale, play
from stages.core.population import Member
from stages.match import match
from stages.rate import observed_rates, rate

SCALE = Scale()


def member(name: str, mu: float = 25.0, sigma: float = 4.0) -> Member:
    role = {"t": "teacher", "s": "student", "a": "both"}[name[0]]
    return Member(name, role, f"{name}-g0003", f"sha-{name}", Rating(mu, sigma), 2)


def met(*pairs: tuple[Member, Member]) -> pa.Table:
    population = [one for pair in pairs for one in pair]
    return match(population, np.random.default_rng(0), 4, SCALE.beta, lambda *_: list(pairs))


def tasks(*rows: tuple[str, str, str, str | None]) -> pa.Table:
    """(task id, match id, status, gate)."""
    blank = {"teacher_id": "t0", "kind": "code_o", "program": "", "inputs": [], "outputs": [], "values": [], "message": ""}
    blank |= {"detail": "", "duplicate": False, "probe_overlap": False, "program_key": None}
    return tables.table(
        [
            blank | {"task_id": task, "match_id": match_id, "status": status, "gate": gate}
            for task, match_id, status, gate in rows
        ],
        tables.TASKS,
    )


def grades(**outcomes: str) -> pa.Table:
    """Task id = one letter an attempt, r for right."""
    blank = {"match_id": "", "student_id": "s0", "kind": "code_o", "status": "", "detail": ""}
    rows = [
        blank | {"rollout_id": f"{task}-r{attempt}", "task_id": task, "correct": letter == "r"}
        for task, letters in outcomes.items()
        for attempt, letter in enumerate(letters)
    ]
    return tables.table(rows, tables.GRADES)


def rated(population, matches, posed, graded, next_adapters=None) -> list[dict]:
    return rate(population, matches, posed, graded, next_adapters or {}, SCALE, 0.02, 3.0).to_pylist()


def test_the_rate_is_over_all_attempts_of_all_posed_tasks():
    matches = met((member("t0"), member("s0")), (member("t1"), member("s1")))
    posed = tasks(
        ("a", "g0004-m00", "valid", None),
        ("b", "g0004-m00", "valid", None),
        ("c", "g0004-m00", "timeout", None),
        ("d", "g0004-m01", "unparsed", None),
        ("e", "g0004-m01", "valid", "identity"),
    )
    assert observed_rates(matches, posed, grades(a="rwww", b="rrrr")) == [0.625, None]


@pytest.mark.parametrize(
    ("letters", "result"),
    [("r" * 30 + "w" * 20, "win"), ("r" * 25 + "w" * 24, "draw"), ("r" * 24 + "w" * 25, "draw"), ("rww", "loss")],
)
def test_result_and_rating(letters, result):
    teacher, student = member("t0"), member("s0")
    rows = rated([teacher, student], met((teacher, student)), tasks(("a", "g0004-m00", "valid", None)), grades(a=letters))
    by_id = {row["member_id"]: row for row in rows}
    after_student, after_teacher = play(student.rating, teacher.rating, result, SCALE)
    assert by_id["s0"]["result"] == result
    assert by_id["t0"]["result"] == {"win": "loss", "loss": "win", "draw": "draw"}[result]
    assert (by_id["s0"]["mu"], by_id["s0"]["sigma"]) == (after_student.mu, after_student.sigma)
    assert (by_id["t0"]["mu"], by_id["t0"]["sigma"]) == (after_teacher.mu, after_teacher.sigma)
    assert by_id["t0"]["observed"] == by_id["s0"]["observed"] == letters.count("r") / len(letters)
    assert by_id["t0"]["expected"] == by_id["s0"]["expected"] == 0.5


def test_a_teacher_that_posed_nothing_loses():
    teacher, student = member("t0"), member("s0")
    rows = rated([teacher, student], met((teacher, student)), tasks(("a", "g0004-m00", "error", None)), grades())
    assert [(row["result"], row["observed"]) for row in rows] == [("loss", None), ("win", None)]


def test_a_whole_row():
    teacher, student = member("t0", 25.0, 4.0), member("s0", 25.0, 4.0)
    rows = rated(
        [teacher, student],
        met((teacher, student)),
        tasks(("a", "g0004-m00", "valid", None)),
        grades(a="rr"),
        {"s0": ("s0-g0004", "fresh")},
    )
    after, _ = play(student.rating, teacher.rating, "win", SCALE)
    assert rows[1] == {
        "member_id": "s0",
        "role": "student",
        "born": 2,
        "adapter_id": "s0-g0003",
        "adapter_sha256": "sha-s0",
        "result": "win",
        "mu_before": 25.0,
        "sigma_before": 4.0,
        "mu": after.mu,
        "sigma": after.sigma,
        "fitness": after.mu - 3 * after.sigma,
        "next_adapter_id": "s0-g0004",
        "next_adapter_sha256": "fresh",
        "match_id": "g0004-m00",
        "opponent_id": "t0",
        "expected": 0.5,
        "observed": 1.0,
    }
    assert (rows[0]["next_adapter_id"], rows[0]["next_adapter_sha256"]) == ("t0-g0003", "sha-t0")


def test_two_matches_are_rated_one_after_the_other_and_the_idle_keep_their_rating():
    one, two, student, idle = member("t0"), member("t1"), member("s0"), member("s1", 30.0)
    matches = met((one, student), (two, student))
    posed = tasks(("a", "g0004-m00", "valid", None), ("b", "g0004-m01", "valid", None))
    rows = rated([one, two, student, idle], matches, posed, grades(a="r", b="w"))
    assert [(row["member_id"], row["result"]) for row in rows] == [
        ("t0", "loss"),
        ("t1", "win"),
        ("s0", "win"),
        ("s0", "loss"),
        ("s1", "idle"),
    ]
    between, _ = play(student.rating, one.rating, "win", SCALE)
    assert (rows[3]["mu_before"], rows[3]["sigma_before"]) == (rows[2]["mu"], rows[2]["sigma"]) == (between.mu, between.sigma)
    assert rows[3]["mu"] == play(between, two.rating, "loss", SCALE)[0].mu
    assert (rows[4]["mu"], rows[4]["mu_before"], rows[4]["match_id"], rows[4]["observed"]) == (30.0, 30.0, None, None)


def test_a_single_agent_keeps_its_rating():
    agent = member("a0")
    (row,) = rated(
        [agent], match([agent], np.random.default_rng(0), 4, SCALE.beta), tasks(("a", "g0004-m00", "valid", None)), grades(a="rw")
    )
    assert (row["result"], row["opponent_id"], row["observed"], row["mu"], row["sigma"]) == ("draw", "a0", 0.5, 25.0, 4.0)


def test_a_frozen_opponent_is_played_but_not_rated():
    teacher, student, past = member("t0"), member("s0"), member("s9", 20.0)
    rows = rated([teacher, student], met((teacher, past)), tasks(("a", "g0004-m00", "valid", None)), grades(a="w"))
    assert [(row["member_id"], row["result"], row["opponent_id"]) for row in rows] == [("t0", "win", "s9"), ("s0", "idle", None)]
    assert rows[0]["mu"] == play(teacher.rating, past.rating, "win", SCALE)[0].mu


def test_posed_tasks_without_grades_are_our_fault_not_a_result():
    teacher, student = member("t0"), member("s0")
    with pytest.raises(ValueError, match="g0004-m00 posed tasks, but none"):
        rated([teacher, student], met((teacher, student)), tasks(("a", "g0004-m00", "valid", None)), grades())
    with pytest.raises(ValueError, match="task a, which was not posed"):
        rated([teacher, student], met((teacher, student)), tasks(("a", "g0004-m00", "error", None)), grades(a="r"))
