"""Sixty generations with evolution every ten: the tables, recomputed by other means, tell the same story.

Ratings by the `trueskill` package from matches and grades, culls by sorting, the tree from the offspring rows alone.
"""

from collections import defaultdict
from typing import Any

import pytest
import trueskill

from flows.audit.fsck import fsck
from flows.run.run import Run
from tests.support.small_run import small_run

GENERATIONS, EVERY = 60, 10
SETTINGS = (f"generations={GENERATIONS}", f"evolution.every={EVERY}", "population.teachers=4", "population.students=4")
KAPPA, MARGIN = 3.0, 0.02
TABLES = ("matches", "tasks", "grades", "ratings", "offspring")

Game = trueskill.TrueSkill(mu=25.0, sigma=25 / 3, beta=25 / 6, tau=25 / 300, draw_probability=0.1, backend="scipy")
Beliefs = dict[str, trueskill.Rating]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tmp_path_factory.mktemp("long"), "chaos", SETTINGS)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(4 * 3600)
def test_tree_culls_and_ratings_follow_from_the_tables(run: Run) -> None:
    assert list(fsck(run)) == []
    consistent(run, GENERATIONS, EVERY)


def consistent(run: Run, generations: int, every: int) -> None:
    """Replays the whole history; raises AssertionError at the first row that does not follow."""
    start = run.read_table(None, "population").to_pylist()
    beliefs: Beliefs = {row["member_id"]: trueskill.Rating(row["mu"], row["sigma"]) for row in start}
    parents: dict[str, list[str]] = {row["member_id"]: [] for row in start}
    for generation in range(generations):
        read = {
            name: run.read_table(generation, name).to_pylist() for name in ("matches", "tasks", "grades", "ratings", "offspring")
        }
        _replay_matches(beliefs, read)
        ratings = {row["member_id"]: row for row in read["ratings"]}
        assert set(ratings) == set(beliefs), generation
        for name, belief in beliefs.items():
            assert ratings[name]["mu"] == pytest.approx(belief.mu, abs=1e-6), (generation, name)
            assert ratings[name]["sigma"] == pytest.approx(belief.sigma, abs=1e-6), (generation, name)
            assert ratings[name]["fitness"] == pytest.approx(belief.mu - KAPPA * belief.sigma, abs=1e-5)
        due = (generation + 1) % every == 0 and generation + 1 < generations
        assert bool(read["offspring"]) == due, generation
        _replay_births(beliefs, parents, read["offspring"], generation)
    assert all(_roots(parents, name) <= {row["member_id"] for row in start} for name in beliefs)


def _replay_matches(beliefs: Beliefs, read: dict[str, list[dict[str, Any]]]) -> None:
    match_of = {row["task_id"]: row["match_id"] for row in read["tasks"]}
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for row in read["grades"]:
        outcomes[match_of[row["task_id"]]].append(row["correct"])
    for row in read["matches"]:
        teacher, student = row["teacher_id"], row["student_id"]
        marks = outcomes[row["match_id"]]
        lead = sum(marks) / len(marks) - row["expected"] if marks else 1.0
        first, second = (student, teacher) if lead > 0 else (teacher, student)
        drawn = bool(marks) and abs(lead) <= MARGIN
        beliefs[first], beliefs[second] = Game.rate_1vs1(beliefs[first], beliefs[second], drawn=drawn)


def _replay_births(beliefs: Beliefs, parents: dict[str, list[str]], offspring: list[dict[str, Any]], generation: int) -> None:
    by_role: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in offspring:
        by_role[row["role"]].append(row)
    for role, rows in by_role.items():
        members = [name for name in beliefs if name[0] == role[0]]
        weakest = sorted(members, key=lambda name: beliefs[name].mu - KAPPA * beliefs[name].sigma)[: len(members) // 4]
        assert [row["replaces"] for row in rows] == weakest, (generation, role)
        for row in rows:
            assert row["member_id"] not in parents and not set(row["parents"]) & set(weakest)
            assert len(set(row["parents"])) == (2 if row["operator_kind"] == "crossover" else 1)
            assert row["operator"][0] == {"crossover": "X", "mutation": "M"}[row["operator_kind"]]
            old = [beliefs[name] for name in row["parents"]]
            assert row["mu"] == pytest.approx(sum(one.mu for one in old) / len(old), abs=1e-6)
            assert row["sigma"] == pytest.approx(max(one.sigma for one in old), abs=1e-6)
    for row in offspring:
        parents[row["member_id"]] = row["parents"]
        beliefs[row["member_id"]] = trueskill.Rating(row["mu"], row["sigma"])
        del beliefs[row["replaces"]]


def _roots(parents: dict[str, list[str]], name: str) -> set[str]:
    return {name} if not parents[name] else {root for parent in parents[name] for root in _roots(parents, parent)}
