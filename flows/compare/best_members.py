"""The best member of each role of a run, and how it came to be: operators and parents back to the start."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flows.monitoring.run_tables import RunTables
from stages.core.places import for_others

DESCENT = ("member_id", "operator", "parents", "replaces")


@dataclass(frozen=True)
class Ancestor:
    """A member in a line of descent. `born` is the generation after which evolution made it; None for a founder."""

    member_id: str
    born: int | None
    operator: str = ""
    parents: tuple[str, ...] = ()
    replaces: str = ""


@dataclass(frozen=True)
class BestMember:
    """The member of a role with the highest fitness in the newest rated generation.

    Of several with that fitness it is the first by name, and `equals` has the others. `adapter_id` names its weights after that
    generation. `line` is the member itself, its first parent, and so on to a founder.
    """

    role: str
    member_id: str
    adapter_id: str
    generation: int
    mu: float
    sigma: float
    fitness: float
    rivals: int
    line: tuple[Ancestor, ...]
    equals: tuple[str, ...] = ()


def best_members(watch: RunTables) -> tuple[BestMember, ...]:
    """Return the best member of each role, by its rating: none before the first generation is rated, and never a single agent."""
    rated = next((number for number in reversed(watch.generations) if watch.of(number, "ratings").num_rows), None)
    if rated is None:
        return ()
    ratings = {row["member_id"]: row for row in watch.of(rated, "ratings").to_pylist()}
    births = {row["member_id"]: row for row in watch.columns("offspring", DESCENT).to_pylist()}
    found = []
    for role in dict.fromkeys(row["role"] for row in ratings.values() if row["role"] != "both"):
        members = [row for row in ratings.values() if row["role"] == role]
        top = max(row["fitness"] for row in members)
        best, *equal = sorted((row for row in members if row["fitness"] == top), key=lambda row: str(row["member_id"]))
        line = tuple(_line(best["member_id"], births))
        known = (role, best["member_id"], best["next_adapter_id"], rated, best["mu"], best["sigma"], best["fitness"])
        found.append(BestMember(*known, len(members), line, tuple(row["member_id"] for row in equal)))
    return tuple(sorted(found, key=lambda one: one.role, reverse=True))  # teacher first


def _line(member_id: str, births: Mapping[str, Mapping[str, Any]]) -> Iterator[Ancestor]:
    seen: set[str] = set()
    while member_id not in seen:
        seen.add(member_id)
        row = births.get(member_id)
        if row is None:
            yield Ancestor(member_id, None)
            return
        parents = tuple(row["parents"])
        yield Ancestor(member_id, int(row["generation"]), row["operator"], parents, row["replaces"])
        if not parents:
            return
        member_id = parents[0]


def rank_text(best: BestMember) -> str:
    """Return where a member stands: `best of 3 in generation 5`, or with which others it shares that place."""
    where = f"of {best.rivals} in generation {best.generation}"
    return f"level with {', '.join(best.equals)} as the best {where}" if best.equals else f"best {where}"


def descent(best: BestMember) -> str:
    """Return a line of descent, the member first: `s7 = M1(s2), born after generation 9 for s4; s2, a founder`."""
    return "; ".join(f"{one.member_id}, a founder" if one.born is None else _birth(one) for one in best.line)


def _birth(one: Ancestor) -> str:
    made_by = f"{for_others(one.operator)}({', '.join(one.parents)})"
    return f"{one.member_id} = {made_by}, born after generation {one.born} for {one.replaces}"
