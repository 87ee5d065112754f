"""The population: its members, and how one generation's members follow from the tables of the previous one.

A member (`t0`, `s3`; `a0` in single-agent runs) has a lineage, a rating and an age. Its weights change with every update, and
each state of the weights has its own adapter id: `t0-start`, then `t0-g0007` after generation 7. An offspring is a new member
with the next free number of its role. The children of one event are alive at the next event, so one more than the highest number
in the population is always unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from stages.core.method.rating import Rating

Role = Literal["teacher", "student", "both"]
PREFIX: dict[Role, str] = {"teacher": "t", "student": "s", "both": "a"}
GENERATOR = "generator"
"""Who poses the tasks of a run without teachers: no member, without weights, with a rating that never moves."""


@dataclass(frozen=True)
class Member:
    """One member's state before a generation; `born` is the first generation in which it plays."""

    member_id: str
    role: Role
    adapter_id: str
    adapter_sha256: str
    rating: Rating
    born: int


def start_adapter_id(member_id: str) -> str:
    """Return the id of a member's starting weights, for founding members and offspring alike."""
    return f"{member_id}-start"


def member_ids(teachers: int, students: int, mode: str) -> list[tuple[str, Role]]:
    """Return ids and roles of the first members in slot order: teachers, then students; one `a0` if `mode` is `single`."""
    if mode == "single":
        return [("a0", "both")]
    return [(f"t{slot}", "teacher") for slot in range(teachers)] + [(f"s{slot}", "student") for slot in range(students)]


def initial_members(teachers: int, students: int, mode: str, sha256: dict[str, str], rating: Rating) -> list[Member]:
    """Return the population of generation 0; `sha256` maps adapter ids (`t0-start`, ...) to digests of the starting weights."""
    return [
        Member(member_id, role, start_adapter_id(member_id), sha256[start_adapter_id(member_id)], rating, 0)
        for member_id, role in member_ids(teachers, students, mode)
    ]


def task_generator(rating: Rating) -> Member:
    """Return the generator in the form of a teacher that students meet."""
    return Member(GENERATOR, "teacher", "", "", rating, 0)


def population_after(ratings: pa.Table, offspring: pa.Table, generation: int) -> list[Member]:
    """Return the population of generation + 1, from RATINGS and OFFSPRING of `generation`.

    RATINGS holds the members in slot order; the last row of each states its rating and its weights after the update. An
    offspring takes the slot of the member that it replaces.
    """
    latest = {row["member_id"]: row for row in ratings.to_pylist()}
    members = {name: _after(row) for name, row in latest.items()}
    for row in offspring.to_pylist():
        if row["replaces"] not in members:
            raise ValueError(f"offspring {row['member_id']} replaces {row['replaces']}, which is not among {list(members)}")
        rating = Rating(row["mu"], row["sigma"])
        members[row["replaces"]] = Member(
            row["member_id"], row["role"], row["adapter_id"], row["adapter_sha256"], rating, generation + 1
        )
    return list(members.values())


def _after(row: dict[str, Any]) -> Member:
    rating = Rating(row["mu"], row["sigma"])
    return Member(row["member_id"], row["role"], row["next_adapter_id"], row["next_adapter_sha256"], rating, row["born"])


def of_role(population: Sequence[Member], role: Role) -> list[Member]:
    """Return the members that can play `role`, in slot order; a single agent plays both roles."""
    return [member for member in population if member.role in (role, "both")]


def next_number(population: Sequence[Member], role: Role) -> int:
    """Return the lowest number above all that members of `role` ever had (see the module's docstring)."""
    return 1 + max(int(member.member_id.removeprefix(PREFIX[role])) for member in population if member.role == role)
