"""The family tree of a run: where each member and each birth stands in it, whoever draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

QUESTION = "How are members related?"
OF_FAMILY = ("member_id", "replaces", "parents", "operator", "operator_kind")
"""Columns of OFFSPRING that a tree is made from."""
CROWD = 20  # births; with more, the tree names only long-lived members and no operators (they are in the table of offspring)


@dataclass(frozen=True)
class Life:
    """A member in its row: the generations that it played in. `named`: there is room for its name."""

    member: str
    role: str
    slot: int
    first: int
    last: int
    named: bool


@dataclass(frozen=True)
class Birth:
    """A birth between two generations, in the row `slot`, with its parents' rows. `text`: its operator, if there is room."""

    x: float
    slot: int
    parents: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Family:
    """A family tree. `shift`: the width of an arrow, in generations. `listing`: the same as a table with its heading."""

    lives: tuple[Life, ...]
    births: tuple[Birth, ...]
    rows: int
    shift: float
    caption: str
    listing: tuple[tuple[str, ...], ...]


def family_of(ratings: pa.Table, offspring: pa.Table) -> Family | None:
    """The tree from RATINGS and OFFSPRING with `generation` as first column; None before a generation is rated."""
    if not ratings.num_rows:
        return None
    births = offspring.to_pylist()
    slots = _slots(ratings, births)
    members = [ratings[name].to_pylist() for name in ("member_id", "generation", "role")]
    spans: dict[str, tuple[int, int]] = {}
    roles: dict[str, str] = {}
    for member, generation, role in zip(*members, strict=True):
        first, last = spans.get(member, (generation, generation))
        spans[member], roles[member] = (min(first, generation), max(last, generation)), role
    width = 1 + max(last for _, last in spans.values()) - min(first for first, _ in spans.values())
    crowded = len(births) > CROWD
    lives = [
        Life(member, roles[member], slots[member], first, last, not crowded or last - first + 1 > 0.05 * width)
        for member, (first, last) in spans.items()
    ]
    crossovers = sum(birth["operator_kind"] == "crossover" for birth in births)
    caption = (
        "Each row is a slot of the population, teachers (orange) above students (blue). A child takes the slot of the member "
        "that it replaces; arrows come from its parents"
        f"{'' if crowded else ' and carry the operator (M mutation, X crossover)'}. "
        f"n = {len(lives)} members, mutations: {len(births) - crossovers}, crossovers: {crossovers}. Nothing is sampled here."
    )
    drawn = [_birth(birth, slots, not crowded) for birth in births]
    return Family(tuple(lives), tuple(drawn), max(slots.values()) + 1, 0.022 * width, caption, _listing(lives, births))


def _birth(birth: Mapping[str, Any], slots: Mapping[str, int], named: bool) -> Birth:
    parents = tuple(slots[parent] for parent in birth["parents"] if parent in slots)
    return Birth(birth["generation"] + 0.5, slots[birth["member_id"]], parents, _operator(birth)[:12] if named else "")


def _listing(lives: Sequence[Life], births: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """The family as a table: each member with the generations that it played in, its parents and the operator."""
    born = {birth["member_id"]: birth for birth in births}
    rows = [("member", "role", "first generation", "last generation", "parents", "operator")]
    for life in lives:
        birth = born.get(life.member)
        descent = ("–", "start") if birth is None else (", ".join(birth["parents"]), _operator(birth))
        rows.append((life.member, life.role, str(life.first), str(life.last), *descent))
    return tuple(rows)


def _operator(birth: Mapping[str, Any]) -> str:
    """The name of the operator; of a user's own, `path/to/file.py:function`, without the folders."""
    return str(birth["operator"]).rpartition("/")[2]


def _slots(ratings: pa.Table, births: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The row of each member: its place in the first generation, or that of the member it replaced."""
    first = ratings.filter(pc.equal(ratings["generation"], pc.min(ratings["generation"])))
    slots = {member: place for place, member in enumerate(dict.fromkeys(first["member_id"].to_pylist()))}
    for birth in births:
        slots.setdefault(birth["member_id"], slots.get(birth["replaces"], len(slots)))
    for member in dict.fromkeys(ratings["member_id"].to_pylist()):
        slots.setdefault(member, max(slots.values()) + 1)
    return slots
