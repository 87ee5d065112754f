"""Sixty generations of matching, rating and evolving with made-up results: history, culls and tree hold together."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trueskill

from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.lora.operators import operators
from stages.core.method.rating import Rating, Scale
from stages.core.population import initial_members, member_ids, population_after, start_adapter_id
from stages.evolve import EvolutionPolicy, due, evolve
from stages.match import match
from stages.rate import rate
from tests.stages.test_evolve import adapter, digest


def played(matches: pa.Table, generation: int, skill: dict[str, float]) -> tuple[pa.Table, pa.Table]:
    """Tasks and grades of simulated matches: four tasks with two attempts each, by the difference of hidden skills."""
    rng = np.random.default_rng([7, generation])
    task = {
        "teacher_id": "",
        "kind": "code_o",
        "program": "",
        "inputs": [],
        "outputs": [],
        "values": [],
        "message": "",
        "detail": "",
    }
    task |= {"status": "valid", "duplicate": False, "probe_overlap": False, "program_key": None, "gate": None}
    grade = {"student_id": "", "kind": "code_o", "status": "", "detail": ""}
    posed, graded = [], []
    for row in matches.to_pylist():
        chance = 1 / (1 + np.exp(skill[row["teacher_id"]] - skill[row["student_id"]]))
        for number in range(4):
            name = f"{row['match_id']}-p{number}"
            posed.append(task | {"task_id": name, "match_id": row["match_id"]})
            for attempt in range(2):
                ids = {"rollout_id": f"{name}-r{attempt}", "task_id": name, "match_id": row["match_id"]}
                graded.append(grade | ids | {"correct": bool(rng.random() < chance)})
    return tables.table(posed, tables.TASKS), tables.table(graded, tables.GRADES)


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    """60 generations of 4 + 4 members, evolution every 10, weights that drift: only the tables are kept."""
    ids, policy, scale = member_ids(4, 4, "population"), EvolutionPolicy(), Scale()
    weights = {start_adapter_id(name): adapter(index) for index, (name, _) in enumerate(ids)}
    population = initial_members(4, 4, "population", {name: digest(one) for name, one in weights.items()}, Rating())
    skill = {name: float(index % 4) / 4 for index, (name, _) in enumerate(ids)}
    kept: dict[str, Any] = {"start": population, "matches": [], "ratings": [], "offspring": [], "grades": [], "weights": weights}
    for generation in range(60):
        matches = match(population, np.random.default_rng([0, generation]), generation, scale.beta)
        tasks, grades = played(matches, generation, skill)
        trained = {}
        for one in population:
            moved = {name: values * np.float32(1.01) for name, values in weights[one.adapter_id].weights.items()}
            trained[one.member_id] = f"{one.member_id}-g{generation:04d}"
            weights[trained[one.member_id]] = Adapter(moved, {}, 1)
        after = {name: (adapter_id, digest(weights[adapter_id])) for name, adapter_id in trained.items()}
        ratings = rate(population, matches, tasks, grades, after, scale, 0.02, policy.kappa)
        offspring = tables.OFFSPRING.empty_table()
        if due(generation, 60, policy):
            survivors = population_after(ratings, offspring, generation)
            offspring, children = evolve(survivors, weights, generation, 0, policy, operators(), digest)
            assert not set(children) & set(weights)
            weights |= children
            skill |= {row["member_id"]: skill[row["parents"][0]] for row in offspring.to_pylist()}
        for name, table in (("matches", matches), ("grades", grades), ("ratings", ratings), ("offspring", offspring)):
            kept[name].append(table.to_pylist())
        population = population_after(ratings, offspring, generation)
    return kept


def test_ratings_of_the_long_run_equal_those_of_the_reference(run):
    environment = trueskill.TrueSkill(draw_probability=0.1, backend="scipy")
    known = {member.member_id: environment.create_rating() for member in run["start"]}
    for matches, grades, ratings, offspring in zip(run["matches"], run["grades"], run["ratings"], run["offspring"], strict=True):
        for row in matches:
            teacher, student = known[row["teacher_id"]], known[row["student_id"]]
            right = [grade["correct"] for grade in grades if grade["match_id"] == row["match_id"]]
            gap = sum(right) / len(right) - row["expected"]
            if gap < -0.02:
                teacher, student = environment.rate_1vs1(teacher, student)
            else:
                student, teacher = environment.rate_1vs1(student, teacher, drawn=gap <= 0.02)
            known[row["teacher_id"]], known[row["student_id"]] = teacher, student
        for row in ratings:
            assert (row["mu"], row["sigma"]) == pytest.approx(
                (known[row["member_id"]].mu, known[row["member_id"]].sigma), abs=1e-6
            )
            assert row["fitness"] == pytest.approx(row["mu"] - 3 * row["sigma"])
        for row in offspring:
            parents = [known[name] for name in row["parents"]]
            expected = (np.mean([parent.mu for parent in parents]), max(parent.sigma for parent in parents))
            assert (row["mu"], row["sigma"]) == pytest.approx(expected, abs=1e-6)
            known[row["member_id"]] = environment.create_rating(row["mu"], row["sigma"])


def test_culls_of_the_long_run_are_the_lowest_of_their_role(run):
    assert [generation for generation, rows in enumerate(run["offspring"]) if rows] == [9, 19, 29, 39, 49]
    for ratings, offspring in zip(run["ratings"], run["offspring"], strict=True):
        for row in offspring:
            peers = [one for one in ratings if one["role"] == row["role"]]
            lowest = min(peers, key=lambda one: one["mu"] - 3 * one["sigma"])
            assert row["replaces"] == lowest["member_id"]
            assert set(row["parents"]) <= {one["member_id"] for one in peers} - {row["replaces"]}


def test_the_tree_of_the_long_run_holds_together(run):
    numbers = {"t": 4, "s": 4}
    alive = {member.member_id for member in run["start"]}
    born = {member.member_id: 0 for member in run["start"]}
    for generation, (ratings, offspring) in enumerate(zip(run["ratings"], run["offspring"], strict=True)):
        assert {row["member_id"] for row in ratings} == alive
        assert all(row["born"] == born[row["member_id"]] for row in ratings)
        last = {row["member_id"]: row for row in ratings}
        for row in offspring:
            letter = row["member_id"][0]
            assert row["member_id"] == f"{letter}{numbers[letter]}"
            numbers[letter] += 1
            assert row["parent_adapter_ids"] == [last[name]["next_adapter_id"] for name in row["parents"]]
            assert digest(run["weights"][row["adapter_id"]]) == row["adapter_sha256"]
            alive = alive - {row["replaces"]} | {row["member_id"]}
            born[row["member_id"]] = generation + 1
    assert numbers == {"t": 9, "s": 9}
    slots = [row["member_id"][0] for row in run["ratings"][-1]]
    assert slots == ["t"] * 4 + ["s"] * 4


def test_every_row_of_the_long_run_names_the_weights_that_played(run):
    playing = {member.member_id: member.adapter_id for member in run["start"]}
    for ratings, offspring in zip(run["ratings"], run["offspring"], strict=True):
        for row in ratings:
            assert row["adapter_id"] == playing[row["member_id"]]
            assert row["adapter_sha256"] == digest(run["weights"][row["adapter_id"]])
            playing[row["member_id"]] = row["next_adapter_id"]
        playing |= {row["member_id"]: row["adapter_id"] for row in offspring}
