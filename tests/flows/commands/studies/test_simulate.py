"""Cull statistics of evolution policies, against the figures known for them."""

from dataclasses import replace

import numpy as np
import pytest

from flows.bench import evolve
from flows.bench.evolve import bench
from flows.commands.studies.evolution_simulation import World, history, neighbours, simulate, world_of
from flows.config import ConfigError, apply, dump, load


def again(world: World, **changes: object) -> float:
    """Share of newborns that are culled at the next event, equal skills."""
    own = replace(world, policy=replace(world.policy, **changes))
    tallies = [history(own, seed, 0.0) for seed in range(25)]
    return sum(tally.again for tally in tallies) / sum(tally.newborns for tally in tallies)


@pytest.fixture(scope="module")
def paper() -> World:
    return world_of(load("paper"))


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"child_rating": "fresh"}, 0.87),
        ({"child_rating": "fresh", "kappa": 1.0}, 0.61),
        ({"child_rating": "fresh", "kappa": 0.0}, 0.45),
        ({"child_rating": "fresh", "every": 20}, 0.77),
        ({"child_rating": "fresh", "min_age": 1}, 0.0),
        ({}, 0.22),
    ],
)
def test_the_churn_trap(paper, changes, share):
    """300 runs of an independent simulation gave these shares; here 25 runs, about 900 newborns (k = 20: 450)."""
    assert (paper.teachers, paper.students, paper.generations) == (4, 4, 200)
    assert again(paper, **changes) == pytest.approx(share, abs=0.06)


def test_selection_finds_the_weak(paper):
    short = replace(paper, generations=60)
    tallies = [history(short, seed, paper.scale.beta) for seed in range(40)]
    first, hits = sum(tally.first_culls for tally in tallies), sum(tally.weakest for tally in tallies)
    assert first == 80
    assert hits / first > 0.5
    gains = [gain for tally in tallies for gain in tally.gains]
    assert sum(gains) / len(gains) > 0.3 * paper.scale.beta
    assert all(history(replace(short, policy=replace(short.policy, every=0)), seed, 1.0).gains == (0.0,) for seed in range(3))


def test_a_role_of_one_member_has_no_part_in_the_gain(paper):
    """A lone teacher is never replaced: its gain of 0 would halve that of the students."""
    short = replace(paper, generations=60)
    alone, even = (replace(short, teachers=number) for number in (1, 2))
    skills = {seed: history(alone, seed, paper.scale.beta).gains for seed in range(20)}
    assert all(len(gains) == 1 for gains in skills.values()), "one value per run: its roles meet the same opponents"
    assert np.mean(list(skills.values())) > 0.3 * paper.scale.beta
    assert len(history(even, 0, paper.scale.beta).gains) == 1
    assert history(replace(alone, students=1), 0, paper.scale.beta).gains == ()


def test_the_error_of_the_gain_is_over_runs():
    config = apply(dump(load("smoke")), ["population.teachers=1", "population.students=3", "generations=12"])
    world = world_of(config)
    gains = np.array([history(world, seed, world.scale.beta).gains[0] for seed in range(5)]) / world.scale.beta
    row = next(line for line in simulate(config, runs=5).splitlines() if line.startswith("| this configuration |"))
    assert row.endswith(f"| {gains.mean():.2f} ± {gains.std(ddof=1) / np.sqrt(5):.2f} |") and gains.std() > 0


def test_the_table_holds_a_row_for_every_policy():
    config = load("smoke")
    lines = simulate(config, runs=2).splitlines()
    assert lines[0].startswith(f"{config.population.teachers} teachers, {config.population.students} students")
    assert len(lines) == 4 + 1 + len(neighbours(world_of(config).policy))
    assert simulate(config, runs=2).splitlines() == lines


@pytest.mark.timeout(300)  # imports of PEFT; seconds of work, more where the machine is busy
def test_bench_evolve_measures_every_operator_and_its_rivals():
    """One layer, a sixteenth as wide, without the package: every operator in both spaces, rivals, files."""
    lines = list(bench("cpu", threads=1, layers=1, repeats=1, rival_python=None, shrink=16))
    names = {line["name"] for line in lines}
    operators = {f"offspring.{name}" for name in ("M1", "M2", "M3", "M4", "M5", "X1", "X2", "X3", "X4", "C1", "C2")}
    assert operators | {name.replace("offspring.", "offspring.paper.") for name in operators} <= names
    assert {"io.read_adapter", "io.write_adapter", "io.digest", "check.parents", "measure.change", "rival.dense_svd"} <= names
    assert [line["against"] for line in lines if "against" in line] == ["peft-linear", "peft-dare_linear", "peft-svd"]
    assert all(line["value"] >= 0 and line["unit"] in ("s", "MiB") for line in lines)


OPERATORS = """
def halve(parents, rng):
    (parent,) = parents
    return {name: values / 2 for name, values in parent.items()}, {}


def midpoint(parents, rng):
    better, worse = parents
    return {name: (values + worse[name]) / 2 for name, values in better.items()}, {}
"""


@pytest.mark.timeout(300)
def test_bench_evolve_times_operators_of_the_user(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OPERATORS)
    quick = ["--layers", "1", "--shrink", "64", "--repeats", "1", "--threads", "1"]
    lines = list(evolve.main([*quick, "--mutation", f"{file}:halve", "--crossover", f"{file}:midpoint"]))
    assert [line["name"] for line in lines[-2:]] == [f"offspring.{file}:halve", f"offspring.{file}:midpoint"]
    assert all(set(line) == {"name", "value", "unit", "cpu_s"} and line["value"] >= 0 for line in lines[-2:])
    with pytest.raises(ConfigError, match=r"--mutation: .*mine.py has no function gone"):
        next(evolve.main(["--mutation", f"{file}:gone"]))
