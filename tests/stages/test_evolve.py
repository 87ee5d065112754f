"""Who is replaced, by whose child, and a long run whose tables must agree with an independent reading of the rules."""

import hashlib
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.lora.delta import A_SUFFIX, B_SUFFIX, compare
from stages.core.lora.operators import operators
from stages.core.lora.paper import PAPER_OPERATORS
from stages.core.method.rating import Rating
from stages.core.population import Member
from stages.evolve import EvolutionPolicy, births, culled, due, evolve, needed

SHAPES = ((7, 5), (5, 9))


def adapter(seed: int, rank: int = 3) -> Adapter:
    rng = np.random.default_rng(seed)
    weights = {}
    for index, (outputs, inputs) in enumerate(SHAPES):
        weights[f"layer{index}{A_SUFFIX}"] = rng.standard_normal((rank, inputs), dtype=np.float32)
        weights[f"layer{index}{B_SUFFIX}"] = rng.standard_normal((outputs, rank), dtype=np.float32)
    return Adapter(weights, {f"exp_avg.{name}": values for name, values in weights.items()}, 7)


def digest(child: Adapter) -> str:
    return hashlib.sha256(b"".join(child.weights[name].tobytes() for name in sorted(child.weights))).hexdigest()


def member(name: str, mu: float = 25.0, sigma: float = 2.0, born: int = 0) -> Member:
    return Member(name, "teacher" if name[0] == "t" else "student", f"{name}-g0009", f"sha-{name}", Rating(mu, sigma), born)


def role(letter: str, *mus: float) -> list[Member]:
    return [member(f"{letter}{slot}", mu) for slot, mu in enumerate(mus)]


def adapters(population: list[Member]) -> dict[str, Adapter]:
    return {one.adapter_id: adapter(index) for index, one in enumerate(population)}


def event(
    population: list[Member], policy: EvolutionPolicy, generation: int = 9, seed: int = 0, known: Any = None
) -> tuple[list[dict], dict]:
    table, children = evolve(population, adapters(population), generation, seed, policy, known or operators(), digest)
    assert table.schema == tables.OFFSPRING
    return table.to_pylist(), children


def test_the_weakest_of_each_role_is_replaced():
    population = role("t", 25, 19, 24, 26) + role("s", 20, 21, 22, 12)
    rows, children = event(population, EvolutionPolicy())
    assert [(row["member_id"], row["role"], row["replaces"], row["adapter_id"]) for row in rows] == [
        ("t4", "teacher", "t1", "t4-start"),
        ("s4", "student", "s3", "s4-start"),
    ]
    assert sorted(children) == ["s4-start", "t4-start"]
    for row in rows:
        child = children[row["adapter_id"]]
        assert (child.moments, child.step) == ({}, 0)
        assert row["adapter_sha256"] == digest(child)
        assert len(row["parents"]) == {"mutation": 1, "crossover": 2}[row["operator_kind"]]
        assert (
            row["operator"] in {"mutation": ("M1", "M2", "M3", "M4"), "crossover": ("X1", "X2", "X3", "X4")}[row["operator_kind"]]
        )
        assert row["replaces"] not in row["parents"]
        assert {name[0] for name in row["parents"]} == {row["member_id"][0]}
        assert row["parent_adapter_ids"] == [f"{name}-g0009" for name in row["parents"]]


def test_a_row_is_enough_to_make_the_child_again():
    population = role("t", 25, 19, 24, 26) + role("s", 20, 21, 22, 12)
    weights = adapters(population)
    for seed in range(6):
        rows, children = event(population, EvolutionPolicy(), seed=seed)
        for row in rows:
            parents = [weights[name].weights for name in row["parent_adapter_ids"]]
            again, parameters = operators()[row["operator"]](parents, np.random.default_rng(int(row["seed"])))
            assert digest(Adapter(again, {}, 0)) == row["adapter_sha256"]
            assert json.loads(row["parameters"]) == {"space": "delta"} | parameters
            change = compare(children[row["adapter_id"]].weights, parents[0])
            assert (row["relative_change"], row["cosine"]) == (change.relative, change.cosine)


def test_fitness_takes_kappa_sigma_off():
    population = [member("t0", 25.0, 1.0), member("t1", 27.0, 3.0), member("t2", 24.0, 1.0), member("t3", 26.0, 1.0)]
    assert [one.member_id for one in culled(population, 9, EvolutionPolicy(kappa=3.0))] == ["t1"]
    assert [one.member_id for one in culled(population, 9, EvolutionPolicy(kappa=0.0))] == ["t2"]


@pytest.mark.parametrize(
    ("members", "gamma", "count"), [(4, 0.25, 1), (8, 0.25, 2), (3, 0.25, 1), (2, 0.9, 1), (4, 1.0, 3), (1, 0.5, 0), (4, 0.0, 0)]
)
def test_how_many_are_culled(members, gamma, count):
    assert len(culled(role("t", *range(20, 20 + members)), 9, EvolutionPolicy(gamma=gamma))) == count


def test_alone_in_its_role_a_member_stays():
    assert event(role("t", 25.0) + role("s", 20.0), EvolutionPolicy())[0] == []
    agent = Member("a0", "both", "a0-g0009", "sha", Rating(), 0)
    assert event([agent], EvolutionPolicy())[0] == []


def test_with_one_survivor_a_crossover_becomes_a_mutation_and_says_so():
    rows, _ = event(role("t", 25, 19) + role("s", 25, 19), EvolutionPolicy(crossover_share=1.0))
    assert [row["operator_kind"] for row in rows] == ["mutation", "mutation"]
    assert {row["note"] for row in rows} == {"crossover needs two survivors, the role has 1: mutation instead"}
    with pytest.raises(ValueError, match="two survivors, the role has 1, and no mutation"):
        event(role("t", 25, 19), EvolutionPolicy(mutations=()))


def test_children_of_one_event_have_numbers_of_their_own():
    rows, _ = event(role("t", *range(20, 28)), EvolutionPolicy())
    assert [(row["member_id"], row["replaces"]) for row in rows] == [("t8", "t0"), ("t9", "t1")]


def test_inherited_and_fresh_ratings():
    population = [member("t0", 25.0, 1.0), member("t1", 10.0, 1.0), member("t2", 27.0, 1.5)]
    (crossed,), _ = event(population, EvolutionPolicy(mutations=()))
    assert (crossed["mu"], crossed["sigma"]) == (26.0, 1.5)
    assert crossed["parents"] == ["t2", "t0"]  # fitness 22 and 22.5 with kappa 3: the better one first
    (mutated,), _ = event(population, EvolutionPolicy(crossovers=()))
    parent = next(one for one in population if one.member_id == mutated["parents"][0])
    assert (mutated["mu"], mutated["sigma"]) == (parent.rating.mu, parent.rating.sigma)
    (fresh,), _ = event(population, EvolutionPolicy(child_rating="fresh", fresh=Rating(30.0, 9.0)))
    assert (fresh["mu"], fresh["sigma"]) == (30.0, 9.0)


def test_newborns_are_protected_for_as_many_events_as_the_policy_says():
    population = [member("t0", 25.0), member("t1", 24.0), member("t4", 5.0, born=10), member("t3", 26.0)]
    assert [one.member_id for one in culled(population, 19, EvolutionPolicy())] == ["t4"]
    assert [one.member_id for one in culled(population, 19, EvolutionPolicy(min_age=1))] == ["t1"]
    assert [one.member_id for one in culled(population, 29, EvolutionPolicy(min_age=1))] == ["t4"]
    first = [member("t0", 25.0), member("t1", 24.0)]
    assert [one.member_id for one in culled(first, 9, EvolutionPolicy(min_age=3))] == ["t1"]  # the first members are no newborns
    assert [one.member_id for one in culled(population, 19, EvolutionPolicy(every=20))] == ["t4"]  # every 10 until a fork
    young = [member("t4", 5.0, born=10), member("t5", 6.0, born=10)]
    assert culled(young, 19, EvolutionPolicy(min_age=1)) == []


def test_when_evolution_is_due():
    assert [generation for generation in range(31) if due(generation, 31, EvolutionPolicy())] == [9, 19, 29]
    assert [generation for generation in range(30) if due(generation, 30, EvolutionPolicy())] == [9, 19]  # never in the last one
    assert not any(due(generation, 30, EvolutionPolicy(every=0)) for generation in range(30))


def test_taking_turns_gives_both_kinds_in_two_events():
    population = role("t", 25, 19, 24) + role("s", 20, 21, 12)
    policy = EvolutionPolicy(every=2, mix="alternate")
    kinds = [row["operator_kind"] for generation in (1, 3) for row in event(population, policy, generation)[0]]
    assert kinds == ["mutation", "crossover", "crossover", "mutation"]


def test_drawn_kinds_follow_the_share():
    population = role("t", *range(20, 24))
    kinds = Counter(births(population, 9, seed, EvolutionPolicy(crossover_share=0.3))[0].kind for seed in range(600))
    assert kinds["crossover"] / 600 == pytest.approx(0.3, abs=0.07)
    names = Counter(births(population, 9, seed, EvolutionPolicy())[0].operator for seed in range(600))
    assert set(names) == {"M1", "M2", "M3", "M4", "X1", "X2", "X3", "X4"}
    assert max(names.values()) < 2 * min(names.values())


def test_only_the_parents_weights_are_read():
    population = role("t", 25, 19, 24, 26) + role("s", 20, 21, 22, 12)
    names = needed(population, 9, 0, EvolutionPolicy())
    everything = adapters(population)
    table, _ = evolve(population, {name: everything[name] for name in names}, 9, 0, EvolutionPolicy(), operators(), digest)
    assert [name for row in table.to_pylist() for name in row["parent_adapter_ids"]] == names


def test_same_seed_same_offspring():
    population = role("t", 25, 19, 24, 26)
    assert event(population, EvolutionPolicy(), seed=3)[0] == event(population, EvolutionPolicy(), seed=3)[0]
    assert event(population, EvolutionPolicy(), seed=3)[0] != event(population, EvolutionPolicy(), seed=4)[0]


def test_an_operator_of_the_users_own_and_the_other_space():
    def halved(parents, rng):
        return {name: values / 2 for name, values in parents[0].items()}, {"by": 2}

    policy = EvolutionPolicy(mutations=("mine.py:halved",), crossovers=())
    (row,), _ = event(role("t", 25, 19, 24), policy, known={"mine.py:halved": halved})
    assert (row["operator"], json.loads(row["parameters"])) == ("mine.py:halved", {"by": 2, "space": "delta"})
    assert row["relative_change"] == pytest.approx(0.75)
    (row,), _ = event(role("t", 25, 19, 24), EvolutionPolicy(space="paper"), known=operators(known=PAPER_OPERATORS))
    assert json.loads(row["parameters"])["space"] == "paper"


def test_bad_input_names_both_sides():
    population = role("t", 25, 19, 24)
    with pytest.raises(ValueError, match="unknown operator 'M9': known are C1, C2, M1"):
        event(population, EvolutionPolicy(mutations=("M9",), crossovers=()))
    weights = adapters(population) | {"t2-g0009": adapter(3, rank=2)}
    with pytest.raises(ValueError, match="adapters t0-g0009 and t2-g0009 differ in rank"):
        evolve(population, weights, 9, 0, EvolutionPolicy(mutations=()), operators(), digest)

    def cut(parents, rng):
        return {name: values[:1] for name, values in parents[0].items()}, {}

    with pytest.raises(ValueError, match="t3 made by cut differ in rank or size"):
        event(population, EvolutionPolicy(mutations=("cut",), crossovers=()), known={"cut": cut})


# ---- sixty generations --------------------------------------------------------------------------------------------------------


def test_an_event_with_copies_differs_from_the_event_in_the_childrens_weights_only():
    population = role("t", *range(20, 28)) + role("s", *range(28, 20, -1))
    usual = EvolutionPolicy(child_rating="inherit")
    rows, children = event(population, usual)
    again, copies = event(population, EvolutionPolicy(child_rating="inherit", copies_at=(9,)))
    varying = {"operator", "parameters", "adapter_sha256", "relative_change", "cosine", "note"}
    kept = [{key: value for key, value in row.items() if key not in varying} for row in rows]
    assert [{key: value for key, value in row.items() if key not in varying} for row in again] == kept
    parents = adapters(population)
    for row, made in zip(rows, again, strict=True):
        assert (made["operator"], made["note"]) == ("C1", f"copy instead of {row['operator']}")
        assert made["relative_change"] == 0.0
        parent = parents[made["parent_adapter_ids"][0]].weights
        assert all(np.array_equal(copies[made["adapter_id"]].weights[name], parent[name]) for name in parent)
    assert {row["operator_kind"] for row in rows} == {"mutation", "crossover"}
    other, _ = event(population, EvolutionPolicy(child_rating="inherit", copies_at=(19,)))
    assert other == rows and children.keys() == copies.keys()
