"""Who is scored inside a run, and when: the start, members every N generations, offspring at birth and at chosen ages.

A benchmark in parts: each scores a share of the contestants, and the parts' answers are joined in the panels' order. Propose and
solve are cut by completions, see stages.core.shards. The number of shards is part of the run's identity: parts are the same
wherever they run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flows.config import RunConfig
from flows.run.planned import born_at, regular_at
from flows.run.stage_io import StageIO
from stages.core import tables
from stages.core.population import Member
from stages.core.statistics.disagreement import disagreement
from stages.core.suites.scores import Contestant, probe_scores


@dataclass(frozen=True)
class Panel:
    """Adapters that are scored together, and the folder of their scores. No member is in it twice."""

    folder: str
    contestants: list[Contestant]


def shared(panels: Sequence[Panel], shards: int, part: str | None) -> list[Panel]:
    """Return the panels with the contestants of a part; all of them if the stage is not sharded."""
    if part is None:
        return list(panels)
    count = min(shards, max(len(panel.contestants) for panel in panels))
    return [Panel(panel.folder, own_contestants(panel.contestants, count, part)) for panel in panels]


def own_contestants(contestants: list[Contestant], shards: int, part: str) -> list[Contestant]:
    """Return the contestants of a panel that belong to one of `shards` parts; empty if the panel has fewer than that."""
    number = int(part)
    return contestants[len(contestants) * number // shards : len(contestants) * (number + 1) // shards]


def split_answers(parts: list[pa.Table], panels: list[list[Contestant]], rows_each: int) -> Iterator[pa.Table]:
    """Yield the ANSWERS of each panel; a part has `rows_each` rows per contestant of its share, one panel after the other."""
    begins = [0] * len(parts)
    for contestants in panels:
        found = []
        for number, table in enumerate(parts):
            length = rows_each * len(own_contestants(contestants, len(parts), f"{number:02d}"))
            found.append(table.slice(begins[number], length))
            begins[number] += length
        answers = tables.join(found, tables.ANSWERS)
        yield _ordered(answers, {"greedy": [True, False], "member_id": [one.member_id for one in contestants]})


def write_panels(io: StageIO, panels: Sequence[Panel], answers: Sequence[pa.Table]) -> None:
    """Write the answers and scores of every panel, each in its folder."""
    for panel, table in zip(panels, answers, strict=True):
        io.write_at(f"{panel.folder}/answers.parquet", table, tables.ANSWERS)
        io.write_at(f"{panel.folder}/scores.parquet", probe_scores(table, panel.contestants), tables.SCORES)
        io.write_at(f"{panel.folder}/disagreement.parquet", disagreement(table), tables.METRICS)


def members_at(io: StageIO, config: RunConfig) -> list[Contestant]:
    """Return the members that public suites score in this generation, as trained; none outside the regular benchmarks."""
    if not (config.benchmark.suites and regular_at(config, io.generation)):
        return []
    return [_contestant(member) for member in io.trained_population() if _chosen(config, member)]


def panels(io: StageIO, config: RunConfig) -> Iterator[Panel]:
    """Yield the panels that this generation's benchmark scores; none if offspring were due and none were born.

    `births` contains newborns with the weights that evolution gave them, and their parents unless these were scored as trained
    a generation ago; `children` those that reach an age, as trained. Regular scores include all members, so ages need none then.
    `start` contains one student before its first update: a new adapter changes nothing, so it stands for all.
    """
    rule, generation = config.benchmark, io.generation
    folder = f"benchmarks/{rule.suite}/generation={generation:04d}"
    if rule.start and generation == 0:
        student = next(one for one in io.population() if one.role != "teacher")  # comparisons leave teachers out
        yield Panel(start_folder(rule.suite), [_contestant(student)])
    if regular_at(config, generation):
        yield Panel(folder, [_contestant(member) for member in io.trained_population() if _chosen(config, member)])
    ages = rule.children_at
    if 0 in ages and born_at(config, generation, 0):
        population = io.population()
        newborn = [member for member in population if member.born == generation and _chosen(config, member)]
        wanted = {member.member_id for member in newborn}
        if not regular_at(config, generation - 1):
            offspring = io.table("offspring", generation - 1).to_pylist()
            wanted |= {parent for row in offspring if row["member_id"] in wanted for parent in row["parents"]}
        if newborn:
            yield Panel(f"{folder}/births", [_contestant(member) for member in population if member.member_id in wanted])
    grown = [generation + 1 - age for age in ages if age and born_at(config, generation, age)]
    if grown and not regular_at(config, generation):
        found = [member for member in io.trained_population() if member.born in grown and _chosen(config, member)]
        if found:
            yield Panel(f"{folder}/children", [_contestant(member) for member in found])


def start_folder(suite: str) -> str:
    """Return the folder of the start's scores."""
    return f"benchmarks/{suite}/start"


def _chosen(config: RunConfig, member: Member) -> bool:
    return config.benchmark.members == "all" or member.role != "teacher"


def _contestant(member: Member) -> Contestant:
    return Contestant(member.member_id, member.role, member.adapter_id, member.adapter_sha256)


def _ordered(table: pa.Table, orders: dict[str, list]) -> pa.Table:
    """Return rows in the order in which the columns' values are listed, first column first; equal rows keep their order."""
    keys = []
    for column, order in orders.items():
        place = {value: number for number, value in enumerate(order)}
        keys.append([place[value] for value in table[column].to_pylist()])
    rows = sorted(range(table.num_rows), key=lambda row: [key[row] for key in keys])
    return table.take(pa.array(rows, pa.int64()))
