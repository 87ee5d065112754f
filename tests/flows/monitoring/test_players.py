"""Who plays, in words."""

from flows.monitoring.players import players


def test_who_plays_is_said_of_every_kind_of_run() -> None:
    assert players({"mode": "single", "population": {"teachers": 1, "students": 1}}) == "a single agent in both roles"
    assert players({"population": {"teachers": 1, "students": 4}}) == "1 teacher and 4 students"
    alone = {"population": {"teachers": 0, "students": 1}, "propose": {"curriculum": "uniform"}}
    assert players(alone) == "1 student, tasks from the generator"
    assert players({}) == "? teachers and ? students"
