"""The content of a task's page: its author and prompt, the answers and their rewards, and which weights it updated."""

from collections.abc import Iterable, Iterator
from typing import Any

from flows.pages.bad_request import BadRequest
from flows.pages.library import Library
from flows.pages.pedigree import Node, Pedigree
from flows.pages.prompt_text import prompt_text
from flows.run.addresses import SEARCHED
from flows.run.lineage import generation_of_row, replays_tasks
from flows.run.manifest import Json, folder_of
from flows.run.rewarding import Rewarding, rewarding_config
from flows.run.run import Run
from flows.storage import NotStored
from stages.core.method.top_up import task_of
from stages.core.prompts.styles import Kind

ANCESTORS = 6  # adapters of the teacher's ancestry that the page lists
_PROPOSAL = ("proposal_id", "group_id", "kind", "teacher_id", "status", "detail", "adapter_id", "adapter_sha256", "reference_ids")
_SAMPLE = ("sample_id", "member_id", "group_id", "reward", "baseline", "centred", "advantage", "adapter_id")
_ROLLOUT = ("rollout_id", "task_id", "student_id", "kind", "attempt", "adapter_id", "adapter_sha256", "seed", "text", "truncated")
_ANSWER = ("answer", "answer_tokens", "completion_ids")
ASKED = {
    Kind.DEDUCTION: "Asked: what the program returns.",
    Kind.ABDUCTION: "Asked: an input that gives the output.",
    Kind.INDUCTION: "Asked: the program, from the first half of the pairs.",
}


def task_page(library: Library, run_id: str, task_id: str, later: int = 1) -> Json:
    """Return a task (or the task of an attempt). `later` is the page of later generations. Raises NotStored or BadRequest."""
    run = library.run(run_id)
    task_id = task_of(task_id)
    generation = generation_of_row(task_id)
    page: Json = {"run": run_id, "task_id": task_id, "generation": generation, "asked": ASKED}
    if generation is None:
        return page | _seed(library, run, task_id) | _later(library, run, task_id, -1, later)
    where = _Generation(library, run, generation)
    proposal = where.one("proposals", proposal_id=task_id)
    if proposal is None:
        raise NotStored(f"Run {run_id} has no task {task_id}.")
    samples = where.samples(task_id)
    attempts = where.attempts(task_id, samples)
    pedigree = library.pedigree(run)
    return (
        page
        | {
            "proposal": proposal,
            "task": where.one("tasks", task_id=task_id),
            "match": where.one("matches", match_id=proposal["match_id"]),
            "teacher_prompt": where.prompt(proposal["prompt_ids"]),
            "solver_prompt": where.solver_prompt(task_id),
            "teacher_sample": samples.get(task_id),
            "group": where.group(proposal),
            "attempts": attempts,
            "line": _line(pedigree, proposal["adapter_id"]),
            "moved": where.moved(samples.values()),
        }
        | _later(library, run, task_id, generation, later)
    )


def _line(pedigree: Pedigree, adapter_id: str) -> tuple[list[Node], int]:
    """Return the teacher's weights and their ancestors, at births and at the start, and how many are omitted."""
    line = list(pedigree.lineage(adapter_id))
    shown = [node for place, node in enumerate(line) if place < 2 or node.made_by != "update"][:ANCESTORS]
    return shown, len(line) - len(shown)


def _seed(library: Library, run: Run, task_id: str) -> Json:
    found = library.rows(run, "start/seeds.parquet", task_id=task_id)
    if not found:
        raise NotStored(f"Run {run.run_id} has no task {task_id}.")
    return {"task": found[0], "proposal": None, "attempts": []}


def _later(library: Library, run: Run, task_id: str, generation: int, later: int) -> Json:
    """Return later prompts that showed this task to a teacher, and later batches that it filled, in SEARCHED generations."""
    begun = [number for number in run.history.generations() if number > generation]
    pages = max(1, -(-len(begun) // SEARCHED))
    if later > pages:
        raise BadRequest(f"There is no page {later} of later generations: they fill {pages}.")
    searched = begun[(later - 1) * SEARCHED : later * SEARCHED]
    shown = []
    for number in searched:
        columns = ("proposal_id", "teacher_id", "adapter_id", "status")
        place, wanted = f"{folder_of(number)}/proposals.parquet", {"reference_ids": task_id}
        shown += [row | {"generation": number} for row in library.each(run, place, columns, wanted)]
    replays = list(_replays(library, run, task_id, searched)) if replays_tasks(run) else []
    return {"shown": shown, "replays": replays, "searched": searched, "later": later, "pages": pages}


def _replays(library: Library, run: Run, task_id: str, generations: Iterable[int]) -> Iterator[Json]:
    for number in generations:
        where = _Generation(library, run, number)
        samples = where.samples(task_id)
        attempts = where.attempts(task_id, samples)
        if attempts:
            yield {"generation": number, "attempts": attempts, "moved": where.moved(samples.values())}


class _Generation:
    """Return the tables of a generation in which a task was posed."""

    def __init__(self, library: Library, run: Run, generation: int) -> None:
        self._library, self._run, self._generation, self._folder = library, run, generation, folder_of(generation)
        self._model = str((run.history.description() or {}).get("config", {}).get("model", {}).get("name", ""))

    def one(self, name: str, **equal: Any) -> Json | None:
        """Return the row with these values."""
        found = self._rows(name, None, **equal)
        return found[0] if found else None

    def samples(self, task_id: str) -> dict[str, Json]:
        """Return the samples about a task, the teacher's and the students', by id."""
        rows = self._library.each(self._run, f"{self._folder}/samples.parquet", _SAMPLE, {"sample_id": task_id})
        return {row["sample_id"]: row for row in rows if task_of(row["sample_id"]) == task_id}

    def attempts(self, task_id: str, samples: dict[str, Json]) -> list[Json]:
        """Return the rollouts with their verdicts and samples, what of them was trained, and what their traces added."""
        grades = {row["rollout_id"]: row for row in self._rows("grades", None, task_id=task_id)}
        traces = {row["task_id"]: row for row in self._rows("traces", None, task_id=task_id)}
        rewarding = Rewarding(rewarding_config(self._run, self._generation), self._generation, traces)
        found = []
        for row in self._rows("rollouts", (*_ROLLOUT, *_ANSWER), task_id=task_id):
            grade, sample = grades.get(row["rollout_id"]), samples.get(row["rollout_id"])
            row |= {"tokens": len(row["completion_ids"]), "grade": grade, "sample": sample}
            found.append(row | rewarding.of(row, grade or {}, sample))
        return found

    def prompt(self, ids: list[int]) -> Json:
        """Return a prompt as text, or why it is not available."""
        text = prompt_text(self._model, ids)
        return {"text": text, "tokens": len(ids), "model": self._model}

    def solver_prompt(self, task_id: str) -> Json | None:
        """Return the students' prompt: the same for every attempt."""
        found = self._rows("rollouts", ("prompt_ids",), task_id=task_id)
        return self.prompt(found[0]["prompt_ids"]) if found else None

    def group(self, proposal: Json) -> list[Json]:
        """Return the proposals that share the prompt, and therefore the baseline, with each one's reward."""
        rows = self._rows("proposals", _PROPOSAL, group_id=proposal["group_id"])
        ids = [row["proposal_id"] for row in rows]
        samples = {row["sample_id"]: row for row in self._rows("samples", _SAMPLE, sample_id=ids)}
        tasks = {row["task_id"]: row for row in self._rows("tasks", ("task_id", "status"), task_id=ids)}
        return [
            row | {"sample": samples.get(row["proposal_id"]), "status": tasks.get(row["proposal_id"], row)["status"]}
            for row in rows
        ]

    def moved(self, samples: Iterable[Json]) -> list[Json]:
        """Return the updates that these samples took part in: from which weights to which."""
        playing = {row["member_id"]: row["adapter_id"] for row in samples if row["advantage"]}
        trained = self._generation + self._run.history.off_policy_steps()
        rows = self._library.rows(self._run, f"{folder_of(trained)}/ratings.parquet", None)
        rated = {row["member_id"]: row for row in rows}
        return [
            {
                "member_id": member,
                "from": rated.get(member, {}).get("adapter_id", before),
                "to": rated.get(member, {}).get("next_adapter_id"),
                "replaced": bool(rated) and member not in rated,
                "later": trained > self._generation,
            }
            for member, before in sorted(playing.items())
        ]

    def _rows(self, name: str, columns: Any, **equal: Any) -> list[Json]:
        return self._library.rows(self._run, f"{self._folder}/{name}.parquet", columns, **equal)
