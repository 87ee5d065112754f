"""`populora simulate`: simulate what an evolution policy does to a population, before spending a GPU hour on it.

Runs the configuration's matchmaking, ratings and replacement on members that have a hidden skill and no weights. A match is one
coin flip: the student wins with chance Phi((skill_s - skill_t) / (sqrt(2) beta)). Children have their parents' mean skill, and
nothing learns. The table shows the configuration's policy and its neighbours:

- newborn culled next: how often a child is the one culled at the next event, with equal skills; fair is 1 / N. With fresh
  ratings, gamma = 0.25 and kappa = 3 the newborn's wide sigma makes it the rule: one slot churns, older members are never tested.
- weakest culled first: how often the first cull hits the least skilled, where founders differ by one beta; by chance 1 / N.
- gain: by how much the mean skill of a role has risen at the end, in beta: what selection alone is worth. It is the mean over the
  roles that evolve, those with at least two members; its standard error is over runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.choices import choose
from flows.config import RunConfig
from stages.core.method.rating import Rating, Result, Scale, play, win_chance
from stages.core.population import Member, initial_members, member_ids, of_role, start_adapter_id
from stages.evolve import EvolutionPolicy, PlannedOffspring, births, due
from stages.match import MATCHMAKERS, Matchmaker


@dataclass(frozen=True)
class World:
    """The parts of a configuration that ratings and replacement depend on."""

    teachers: int
    students: int
    generations: int
    matchmaker: Matchmaker
    scale: Scale
    start: Rating
    policy: EvolutionPolicy


@dataclass
class Tally:
    """Counts of events in simulated runs."""

    again: int = 0  # newborns culled at the next event
    newborns: int = 0  # newborns that met a next event
    weakest: int = 0  # first culls that hit the least skilled
    first_culls: int = 0
    gains: tuple[float, ...] = ()  # one per run, in the unit of skill

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.again + other.again,
            self.newborns + other.newborns,
            self.weakest + other.weakest,
            self.first_culls + other.first_culls,
            self.gains + other.gains,
        )


def simulate(config: RunConfig, runs: int = 300) -> str:
    """Return a Markdown table: the configuration's policy and its neighbours, with standard errors."""
    world = world_of(config)
    lines = [
        f"{world.teachers} teachers, {world.students} students, {world.generations} generations, {runs} runs, "
        f"evolution every {world.policy.every}",
        "",
        "| policy | newborn culled next | weakest culled first | gain in beta |",
        "|---|---|---|---|",
    ]
    for name, policy in {"this configuration": world.policy, **neighbours(world.policy)}.items():
        own = replace(world, policy=policy)
        equal = _sum(history(own, seed, 0.0) for seed in range(runs))
        unequal = _sum(history(own, seed, world.scale.beta) for seed in range(runs))
        gain = _mean([gain / world.scale.beta for gain in unequal.gains])
        lines.append(
            f"| {name} | {_share(equal.again, equal.newborns)} | {_share(unequal.weakest, unequal.first_culls)} | {gain} |"
        )
    return "\n".join(lines)


def world_of(config: RunConfig) -> World:
    """Return the part of a configuration that is simulated."""
    rule, evolution = config.rating, config.evolution
    start = Rating(rule.mu, rule.sigma)
    return World(
        config.population.teachers,
        config.population.students,
        config.generations,
        choose("population.matchmaker", config.population.matchmaker, MATCHMAKERS),
        Scale(rule.beta, rule.tau, rule.draw_probability),
        start,
        EvolutionPolicy(**evolution.model_dump(), fresh=start),
    )


def neighbours(policy: EvolutionPolicy) -> dict[str, EvolutionPolicy]:
    """Return policies to compare with: the published ratings of children, and one change to them at a time."""
    published = replace(policy, child_rating="fresh", kappa=3.0, min_age=0)
    return {
        "fresh child ratings, kappa = 3 (as published)": published,
        "the same, kappa = 1": replace(published, kappa=1.0),
        "the same, kappa = 0": replace(published, kappa=0.0),
        f"the same, every {2 * policy.every} generations": replace(published, every=2 * policy.every),
        "the same, newborns protected for one event": replace(published, min_age=1),
        "inherited child ratings, kappa = 3": replace(published, child_rating="inherit"),
    }


def history(world: World, seed: int, spread: float) -> Tally:
    """Simulate one run; founders' skills are normal with standard deviation `spread`."""
    rng = np.random.default_rng(seed)
    ids = member_ids(world.teachers, world.students, "population")
    population = initial_members(
        world.teachers, world.students, "population", {start_adapter_id(name): "" for name, _ in ids}, world.start
    )
    skill = {name: float(rng.normal(0.0, spread)) if spread else 0.0 for name, _ in ids}
    before = _mean_skill(population, skill)
    tally, newest = Tally(), set[str]()
    for generation in range(world.generations):
        population = _rated(population, world, generation, skill, rng)
        if not due(generation, world.generations, world.policy):
            continue
        planned = births(population, generation, seed, world.policy)
        _count(tally, planned, newest, population, skill)
        newest = {birth.member_id for birth in planned}
        skill |= {birth.member_id: float(np.mean([skill[parent.member_id] for parent in birth.parents])) for birth in planned}
        population = _replaced(population, planned, generation)
    if before is not None:
        after = _mean_skill(population, skill)
        assert after is not None, "replacement keeps the size of a role"
        tally.gains = (after - before,)
    return tally


def _rated(
    population: list[Member], world: World, generation: int, skill: dict[str, float], rng: np.random.Generator
) -> list[Member]:
    ratings = {member.member_id: member.rating for member in population}
    teachers, students = of_role(population, "teacher"), of_role(population, "student")
    for teacher, student in world.matchmaker(teachers, students, rng, generation, world.scale.beta):
        one, other = student.member_id, teacher.member_id
        chance = win_chance(Rating(skill[one], 0.0), Rating(skill[other], 0.0), world.scale.beta)
        result: Result = "win" if rng.random() < chance else "loss"
        ratings[one], ratings[other] = play(ratings[one], ratings[other], result, world.scale)
    return [replace(member, rating=ratings[member.member_id]) for member in population]


def _count(
    tally: Tally, planned: Sequence[PlannedOffspring], newest: set[str], population: Sequence[Member], skill: dict[str, float]
) -> None:
    gone = {birth.replaces.member_id for birth in planned}
    tally.again += len(gone & newest)
    tally.newborns += len(newest)
    if not newest and not tally.first_culls:
        for role in {birth.replaces.role for birth in planned}:
            weakest = min((member.member_id for member in population if member.role == role), key=lambda name: skill[name])
            tally.weakest += weakest in gone
            tally.first_culls += 1


def _replaced(population: Sequence[Member], planned: Sequence[PlannedOffspring], generation: int) -> list[Member]:
    children = {
        birth.replaces.member_id: replace(birth.replaces, member_id=birth.member_id, rating=birth.rating, born=generation + 1)
        for birth in planned
    }
    return [children.get(member.member_id, member) for member in population]


def _mean_skill(population: Sequence[Member], skill: dict[str, float]) -> float | None:
    """Return the mean skill of the roles that evolve, each counted alike; None if there is none. One member is never replaced."""
    roles = [members for role in ("teacher", "student") if len(members := of_role(population, role)) > 1]
    means = [float(np.mean([skill[member.member_id] for member in members])) for members in roles]
    return float(np.mean(means)) if means else None


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{error}"


def _share(hits: int, count: int) -> str:
    if not count:
        return "–"
    share = hits / count
    return f"{share:.3f} ± {np.sqrt(share * (1 - share) / count):.3f}"


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total = total + tally
    return total
