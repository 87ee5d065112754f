"""Evolve: replace the weakest members of each role with offspring made from the weights of the others.

Fitness = mu - kappa * sigma (TrueSkill's lower confidence bound). Selection = truncation: the bottom max(1, floor(gamma N)) of a
role, at most N - 1, are culled. Each is replaced by a child of survivors of its role, drawn uniformly: one parent for a mutation,
two distinct ones for a crossover, which has probability `crossover_share` (arXiv 2605.16727). A role's only member is kept.

Deviations:
1. A child inherits its parent's rating (crossover: mean mu, larger sigma). With `fresh` ratings, as published, its wide sigma
   makes it the first to be culled at the next event; `min_age` protects a newborn for that many events.
2. Parents of a crossover are ordered by fitness, the better one first: operators that extrapolate need this order.
3. With fewer than two survivors a crossover falls back to a mutation, and the row's note states it.
4. `mix="alternate"` alternates between mutation and crossover over events, roles and children instead of drawing, so that a
   short run contains both.
5. In generations of `copies_at` every child is a copy of its first parent. Replaced members, parents, ratings and all draws are
   those of the event without copies, so that two runs which part there differ in the children's weights only.

A child starts as `{member}-start` with the rank and alpha of its parents, no optimizer moments and step 0.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from stages.core import tables
from stages.core.lora.adapter import Adapter, Weights
from stages.core.lora.delta import AdapterChange, check_alike, compare
from stages.core.method.culling import replaced_members
from stages.core.method.rating import Rating
from stages.core.population import PREFIX, Member, Role, next_number, start_adapter_id
from stages.core.progress import Progress, counted, silent
from stages.core.randomness import completion_seed, generator

Operator = Callable[[Sequence[Weights], np.random.Generator], tuple[Weights, dict[str, Any]]]
"""(parents' weights: one, or the better and the worse; generator) -> the child's weights and the parameters drawn or used."""

EVOLVING: tuple[Role, ...] = ("teacher", "student")
COPY = "C1"
"""The operator of events in `copies_at`: the first parent, unchanged."""


@dataclass(frozen=True)
class EvolutionPolicy:
    """When and how the weakest members are replaced; `every` = 0 or `gamma` = 0 disables evolution."""

    every: int = 10
    gamma: float = 0.25
    kappa: float = 3.0
    crossover_share: float = 0.5
    mix: Literal["draw", "alternate"] = "draw"
    mutations: tuple[str, ...] = ("M1", "M2", "M3", "M4")
    crossovers: tuple[str, ...] = ("X1", "X2", "X3", "X4")
    space: Literal["delta", "paper"] = "delta"
    child_rating: Literal["inherit", "fresh"] = "inherit"
    fresh: Rating = field(default_factory=Rating)
    min_age: int = 0
    copies_at: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlannedOffspring:
    """Everything that is decided about a child before its weights are made."""

    member_id: str
    replaces: Member
    parents: tuple[Member, ...]  # the better one first
    kind: Literal["mutation", "crossover"]
    operator: str
    rating: Rating
    seed: int
    note: str


def due(generation: int, generations: int, policy: EvolutionPolicy) -> bool:
    """Return whether `generation` ends with evolution: every `every` generations, but never after the last one."""
    return bool(policy.every) and (generation + 1) % policy.every == 0 and generation + 1 < generations


def evolve(
    population: Sequence[Member],
    adapters: Mapping[str, Adapter],
    generation: int,
    seed: int,
    policy: EvolutionPolicy,
    operators: Mapping[str, Operator],
    digest: Callable[[Adapter], str],
    measure: Callable[[Weights, Weights], AdapterChange] = compare,
    progress: Progress = silent,
) -> tuple[pa.Table, dict[str, Adapter]]:
    """Return OFFSPRING of one evolution event and the new adapters by id.

    `population` is updated and rated. `adapters` holds at least the parents' weights (see `needed`) by adapter id.
    `operators` are those of the policy's space, by name. `digest` returns the sha256 of a stored adapter, and `measure` the
    change from a parent to its child.
    """
    rows, children = [], {}
    planned = births(population, generation, seed, policy)
    for birth in counted(planned, "offspring", len(planned), progress):
        named = {parent.adapter_id: adapters[parent.adapter_id].weights for parent in birth.parents}
        check_alike(named)
        parents = [named[parent.adapter_id] for parent in birth.parents]
        weights, parameters = _operator(operators, birth.operator)(parents, np.random.default_rng(birth.seed))
        check_alike({birth.parents[0].adapter_id: parents[0], f"{birth.member_id} made by {birth.operator}": weights})
        child = Adapter(weights, {}, 0)
        children[start_adapter_id(birth.member_id)] = child
        rows.append(_row(birth, measure(weights, parents[0]), {"space": policy.space} | parameters, digest(child)))
    return tables.table(rows, tables.OFFSPRING), children


def needed(population: Sequence[Member], generation: int, seed: int, policy: EvolutionPolicy) -> list[str]:
    """Return the ids of the adapters that this event reads, so that a caller loads no others."""
    parents = [parent.adapter_id for birth in births(population, generation, seed, policy) for parent in birth.parents]
    return list(dict.fromkeys(parents))


def births(population: Sequence[Member], generation: int, seed: int, policy: EvolutionPolicy) -> list[PlannedOffspring]:
    """Return which members are replaced, by whose child and how: everything about the event except the weights."""
    planned = []
    for turn, role in enumerate(EVOLVING):
        members = [member for member in population if member.role == role]
        losers = culled(members, generation, policy)
        survivors = [member for member in members if member not in losers]
        rng = generator(seed, generation, "evolve", role)
        for index, loser in enumerate(losers):
            member_id = f"{PREFIX[role]}{next_number(members, role) + index}"
            kind, note = _kind(rng, generation, turn + index, len(survivors), policy)
            parents = _parents(survivors, 2 if kind == "crossover" else 1, rng, policy.kappa)
            operator = str(rng.choice(policy.crossovers if kind == "crossover" else policy.mutations))
            if generation in policy.copies_at:
                operator, note = COPY, f"copy instead of {operator}" + (f"; {note}" if note else "")
            draw = completion_seed(seed, generation, "evolve", member_id)
            planned.append(PlannedOffspring(member_id, loser, parents, kind, operator, _rating(parents, policy), draw, note))
    return planned


def culled(members: Sequence[Member], generation: int, policy: EvolutionPolicy) -> list[Member]:
    """Return the members of one role that are removed at the end of `generation`, weakest first; slots break ties."""
    if not policy.every:
        return []
    open_to_culling = [member for member in members if not _protected(member, generation, policy)]
    ranked = sorted(open_to_culling, key=lambda member: member.rating.fitness(policy.kappa))
    return ranked[: replaced_members(len(members), policy.gamma)]


def _protected(member: Member, generation: int, policy: EvolutionPolicy) -> bool:
    """Return whether the member may not be culled: a child during its first `min_age` events, never a founding member."""
    events_met = (generation + 1) // policy.every - member.born // policy.every  # as if `every` had always been so
    return member.born > 0 and events_met <= policy.min_age


def _kind(
    rng: np.random.Generator, generation: int, turn: int, survivors: int, policy: EvolutionPolicy
) -> tuple[Literal["mutation", "crossover"], str]:
    """Return the kind of operator and the row's note."""
    event = (generation + 1) // policy.every
    drawn = rng.random() < policy.crossover_share
    crossover = drawn if policy.mix == "draw" else (event + turn) % 2 == 0
    crossover = (crossover and bool(policy.crossovers)) or not policy.mutations
    if crossover and survivors < 2:
        if not policy.mutations:
            raise ValueError(f"crossover needs two survivors, the role has {survivors}, and no mutation is configured")
        return "mutation", f"crossover needs two survivors, the role has {survivors}: mutation instead"
    return ("crossover" if crossover else "mutation"), ""


def _parents(survivors: Sequence[Member], count: int, rng: np.random.Generator, kappa: float) -> tuple[Member, ...]:
    drawn = [survivors[index] for index in sorted(rng.choice(len(survivors), size=count, replace=False))]
    return tuple(sorted(drawn, key=lambda member: -member.rating.fitness(kappa)))


def _rating(parents: Sequence[Member], policy: EvolutionPolicy) -> Rating:
    if policy.child_rating == "fresh":
        return policy.fresh
    return Rating(sum(parent.rating.mu for parent in parents) / len(parents), max(parent.rating.sigma for parent in parents))


def _operator(operators: Mapping[str, Operator], name: str) -> Operator:
    if name not in operators:
        raise ValueError(f"unknown operator {name!r}: known are {', '.join(sorted(operators))}")
    return operators[name]


def _row(birth: PlannedOffspring, change: AdapterChange, parameters: Mapping[str, Any], sha256: str) -> dict[str, Any]:
    return {
        "member_id": birth.member_id,
        "role": birth.replaces.role,
        "replaces": birth.replaces.member_id,
        "parents": [member.member_id for member in birth.parents],
        "parent_adapter_ids": [member.adapter_id for member in birth.parents],
        "operator": birth.operator,
        "operator_kind": birth.kind,
        "seed": str(birth.seed),
        "parameters": json.dumps(parameters, sort_keys=True),
        "adapter_id": start_adapter_id(birth.member_id),
        "adapter_sha256": sha256,
        **asdict(birth.rating),
        "relative_change": change.relative,
        "cosine": change.cosine,
        "note": birth.note,
    }
