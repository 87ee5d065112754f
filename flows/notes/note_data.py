"""The data of a generation's note: its small tables, a few columns of its large ones, and curves over the run so far."""

import base64
import io
import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.form_links import FormLinks
from flows.monitoring.cost import generation_cost
from flows.monitoring.cost_text import cost_line
from flows.monitoring.run_tables import RunTables
from flows.notes.note_text import SPARKS, NoteData, Row, Sample
from flows.run.addresses import Addresses
from flows.run.manifest import folder_of
from flows.run.run import Run
from flows.run.table_reader import rows
from stages.core.statistics.condensed import CLUSTER, clusters

PICTURE_DPI, PICTURE_COLOURS = 90, 32
_TASK = ("task_id", "match_id", "teacher_id", "kind", "program", "inputs", "outputs", "status")
_GRADE = ("rollout_id", "task_id", "match_id", "kind", "status", "correct")
_POINTS = {
    "grades": pa.schema([("generation", pa.int64()), ("task_id", pa.string()), ("kind", pa.string()), ("correct", pa.bool_())]),
    "tasks": pa.schema(
        [
            ("generation", pa.int64()),
            ("teacher_id", pa.string()),
            ("group_id", pa.string()),
            ("kind", pa.string()),
            ("status", pa.string()),
        ]
    ),
}


class NoteBuilder:
    """Collects the data of each generation's notes. Keeps what the curves need from earlier generations."""

    def __init__(self, run: Run, planned: int, base: str = "", forms: FormLinks | None = None) -> None:
        self.run, self.planned, self.forms = run, planned, forms or FormLinks()
        self.at = Addresses(base) if base else None
        self.watch = RunTables(run)
        self._points: dict[str, dict[int, pa.Table]] = {name: {} for name in _POINTS}

    def told(self, generation: int) -> NoteData:
        """Return everything about one generation that is stored."""
        watch = self.watch.look()
        tasks, grades = self.tasks(generation), self.grades(generation)
        so_far = [number for number in watch.generations if number <= generation]
        for earlier in so_far:
            self._keep(earlier)
        return NoteData(
            run_id=self.run.run_id,
            generation=generation,
            planned=self.planned,
            values=watch.numbers(generation),
            ratings=watch.of(generation, "ratings").to_pylist(),
            offspring=watch.of(generation, "offspring").to_pylist(),
            seconds=watch.times(generation),
            alarms=[alarm for alarm in watch.alarms() if alarm.generation == generation],
            samples=[self._sample(generation, heading, task, own) for heading, task, own in choose(tasks, grades)],
            earlier=[_shares(watch.numbers(number)) for number in so_far[-SPARKS:]],
            pictures=self._pictures(generation),
            at=self.at,
            cost=cost_line(generation_cost(watch, generation).total),
            forms=self.forms,
        )

    def tasks(self, generation: int) -> list[Row]:
        """Return the tasks of a generation."""
        return rows(self.run, f"{folder_of(generation)}/tasks.parquet", _TASK)

    def grades(self, generation: int) -> list[Row]:
        """Return the verdicts of a generation on its own valid tasks: not on those that a leak let through."""
        own = _valid(rows(self.run, f"{folder_of(generation)}/tasks.parquet", ("task_id", "status")))
        graded = rows(self.run, f"{folder_of(generation)}/grades.parquet", _GRADE)
        return [row for row in graded if row["task_id"] in own]

    def matches(self, generation: int) -> list[Row]:
        """Return the matches of a generation."""
        return rows(self.run, f"{folder_of(generation)}/matches.parquet")

    def _sample(self, generation: int, heading: str, task: Row, grades: list[Row]) -> Sample:
        uri = f"{folder_of(generation)}/rollouts.parquet"
        said = rows(self.run, uri, ("rollout_id", "answer", "text"), task_id=task["task_id"])
        answers = {row["rollout_id"]: row["text"] if row["answer"] is None else row["answer"] for row in said}
        counted = Counter((answers.get(row["rollout_id"], ""), row["status"]) for row in grades)
        listed = [(answer, status, count) for (answer, status), count in counted.most_common()]
        return Sample(heading, task, sum(row["correct"] for row in grades), len(grades), listed)

    def _keep(self, generation: int) -> None:
        """Return the columns that the curves are drawn from. Read once, when the generation is graded."""
        folder = folder_of(generation)
        if generation in self._points["grades"]:
            return
        found = rows(self.run, f"{folder}/grades.parquet", ("task_id", "kind", "correct"))
        if not found:
            return
        groups = clusters(rows(self.run, f"{folder}/proposals.parquet", CLUSTER))
        tasks = rows(self.run, f"{folder}/tasks.parquet", ("task_id", "teacher_id", "kind", "status"))
        own = _valid(tasks)
        found = [row for row in found if row["task_id"] in own]
        posed = [row | {"group_id": groups.get(row["task_id"], row["task_id"])} for row in tasks]
        for name, values in (("grades", found), ("tasks", posed)):
            numbered = [row | {"generation": generation} for row in values]
            self._points[name][generation] = pa.Table.from_pylist(numbered, _POINTS[name])

    def _pictures(self, generation: int) -> dict[str, str]:
        """Return the curves up to this generation as small pictures in the note itself, so they need no artifact browser."""
        from stages.figures import figures
        from stages.figures import population as population_figures
        from stages.figures import tasks as task_figures

        grades, tasks = (
            pa.concat_tables([_POINTS[name].empty_table(), *(kept for number, kept in points if number <= generation)])
            for name, points in ((name, self._points[name].items()) for name in ("grades", "tasks"))
        )
        ratings = self.watch.table("ratings")
        ratings = ratings.filter(pc.less_equal(ratings["generation"], generation))
        plates = (
            figures.solve_rate(grades.combine_chunks()),
            task_figures.valid_share(tasks.combine_chunks()),
            population_figures.rating_curves(ratings),
        )
        return {plate.question: _small(plate.figure) for plate in plates if plate.figure is not None}


def choose(tasks: list[Row], grades: list[Row]) -> list[tuple[str, Row, list[Row]]]:
    """Return three tasks with their verdicts: one that most attempts solved, one that about half did, one that none did."""
    attempts: dict[str, list[Row]] = {}
    for row in grades:
        attempts.setdefault(row["task_id"], []).append(row)
    rated = [
        (task, sum(row["correct"] for row in attempts[task["task_id"]]) / len(attempts[task["task_id"]]))
        for task in tasks
        if task["task_id"] in attempts
    ]
    wanted = [
        ("Solved by most", [one for one in rated if one[1] > 0], lambda rate: -rate),
        ("In between", [one for one in rated if 0 < one[1] < 1], lambda rate: abs(rate - 0.5)),
        ("Solved by no one", [one for one in rated if one[1] == 0], lambda rate: rate),
    ]
    chosen: list[tuple[str, Row, list[Row]]] = []
    for heading, fitting, rank in wanted:
        free = [one for one in fitting if one[0] not in [task for _, task, _ in chosen]]
        if free:
            task = min(free, key=lambda one: rank(one[1]))[0]
            chosen.append((heading, task, attempts[task["task_id"]]))
    return chosen


def _valid(tasks: list[Row]) -> set[str]:
    return {row["task_id"] for row in tasks if row["status"] == "valid"}


def _shares(values: Any) -> tuple[float | None, float | None]:
    found = (values.get((name, None, None, None)) for name in ("propose.valid_share", "solve.rate"))
    valid, solved = (None if one is None or math.isnan(one) else float(one) for one in found)
    return valid, solved


def _small(figure: Any) -> str:
    """Return the figure as a data URI: a PNG of a few colours and kilobytes."""
    from PIL import Image

    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=PICTURE_DPI, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(PICTURE_COLOURS).save(out, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
