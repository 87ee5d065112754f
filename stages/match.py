"""Match: assign each teacher one student of similar strength.

Prioritised fictitious self-play (arXiv 2605.16727): with p the student's chance to win by rating, a teacher draws its student
with weight p(1 - p). Teachers choose in an order that is drawn each generation. A chosen student leaves the pool, and an empty
pool is refilled. Every student plays if there are at least as many teachers as students; otherwise some stay idle.

Deviations: `random` and `round_robin` are ablations. In a population without teachers, every student meets the generator.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from stages.core import tables
from stages.core.method.rating import Rating, win_chance
from stages.core.population import Member, of_role, task_generator

USUAL = Rating()
Pair = tuple[Member, Member]
Matchmaker = Callable[[Sequence[Member], Sequence[Member], np.random.Generator, int, float], list[Pair]]
"""(teachers, students, generator, generation, beta) -> one (teacher, student) pair per teacher."""


def match(
    population: Sequence[Member],
    rng: np.random.Generator,
    generation: int,
    beta: float,
    matchmaker: str | Matchmaker = "pfsp",
    generator_rating: Rating = USUAL,
) -> pa.Table:
    """Return MATCHES of one generation, one row per teacher; a single agent meets itself.

    Without teachers there is one row per student, in slot order; `generator_rating` is that of the generator that they meet.
    """
    teachers, students = of_role(population, "teacher"), of_role(population, "student")
    if len(population) == 1 and population[0].role == "both":
        pairs = [(population[0], population[0])]
    elif not teachers:
        pairs = [(task_generator(generator_rating), student) for student in students]
    else:
        maker = matchmaker if callable(matchmaker) else _named(matchmaker)
        pairs = maker(teachers, students, rng, generation, beta)
    rows = [
        {
            "match_id": f"g{generation:04d}-m{index:02d}",
            "teacher_id": teacher.member_id,
            "student_id": student.member_id,
            "teacher_adapter_id": teacher.adapter_id,
            "student_adapter_id": student.adapter_id,
            "teacher_mu": teacher.rating.mu,
            "teacher_sigma": teacher.rating.sigma,
            "student_mu": student.rating.mu,
            "student_sigma": student.rating.sigma,
            "expected": 0.5 if student is teacher else win_chance(student.rating, teacher.rating, beta),
        }
        for index, (teacher, student) in enumerate(pairs)
    ]
    return tables.table(rows, tables.MATCHES)


def pfsp(
    teachers: Sequence[Member], students: Sequence[Member], rng: np.random.Generator, generation: int, beta: float
) -> list[Pair]:
    """Draw students with weight p(1 - p)."""

    def weights(teacher: Member, pool: Sequence[Member]) -> np.ndarray:
        chances = np.array([win_chance(student.rating, teacher.rating, beta) for student in pool])
        return chances * (1.0 - chances)

    return _drawn(teachers, students, rng, weights)


def random(
    teachers: Sequence[Member], students: Sequence[Member], rng: np.random.Generator, generation: int, beta: float
) -> list[Pair]:
    """Draw students uniformly, regardless of their ratings."""
    return _drawn(teachers, students, rng, lambda teacher, pool: np.ones(len(pool)))


def round_robin(
    teachers: Sequence[Member], students: Sequence[Member], rng: np.random.Generator, generation: int, beta: float
) -> list[Pair]:
    """Match teacher i with student i + generation, modulo the number of students, without any draw."""
    return [(teacher, students[(slot + generation) % len(students)]) for slot, teacher in enumerate(teachers)]


MATCHMAKERS: dict[str, Matchmaker] = {"pfsp": pfsp, "random": random, "round_robin": round_robin}


def _named(name: str) -> Matchmaker:
    if name not in MATCHMAKERS:
        raise ValueError(f"unknown matchmaker {name!r}: known are {', '.join(sorted(MATCHMAKERS))}")
    return MATCHMAKERS[name]


def _drawn(
    teachers: Sequence[Member],
    students: Sequence[Member],
    rng: np.random.Generator,
    weights: Callable[[Member, Sequence[Member]], np.ndarray],
) -> list[Pair]:
    pairs, pool = [], list(students)
    for index in rng.permutation(len(teachers)):
        teacher = teachers[index]
        weight = weights(teacher, pool)
        total = weight.sum()
        # if ratings are so far apart that every p(1 - p) underflows, draw uniformly
        choice = rng.choice(len(pool), p=weight / total if total > 0 else None)
        pairs.append((teacher, pool.pop(choice)))
        pool = pool or list(students)
    return pairs
