"""Where a row or an adapter comes from and what was derived from it: plain values read from a run's verified tables.

Backwards: this weight change ← samples ← rollouts ← tasks ← proposals ← teacher adapter ← its parents. Forwards: a task's
rollouts, grades, samples, the updates that they moved, the later prompts that showed it and the later generations that posed it
again.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.compute as pc

from flows.near_names import LISTED, hint, near_or_all
from flows.run.history import question_of
from flows.run.rewarding import Rewarding, rewarding_config
from flows.run.run import Manifest, Run
from flows.settings import REPLAYS
from flows.storage import NotStored, StoreRefused
from stages.core.lora.adapter_files import WEIGHTS_FILE
from stages.core.method.leak import admitted
from stages.core.method.top_up import task_of

Json = dict[str, Any]
_LONG = ("prompt_ids", "completion_ids", "logprobs")
_SHOWN = ("text", "adapter_id", "adapter_sha256", "seed", "truncated", "status", "detail")
_GAME = ("match_id", "opponent_id", "result", "expected", "observed", "mu", "sigma", "next_adapter_id")
_CHILD = ("member_id", "replaces", "operator", "adapter_id", "relative_change", "cosine")


class Lineage:
    """Lineage of one run. Each table is read at most once, without token lists."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._rows: dict[tuple[int | None, str], list[Json]] = {}
        self._makers: dict[str, Manifest] = {}

    def rows(self, generation: int | None, name: str) -> list[Json]:
        """Return the rows of a table without token ids and log-probabilities; empty if its stage has not run."""
        key = generation, name
        if key not in self._rows:
            try:
                table = self.run.read_table(generation, name)
            except NotStored:
                self._rows[key] = []
            else:
                tokens = (
                    pc.list_value_length(table["completion_ids"]).to_pylist() if "completion_ids" in table.schema.names else None
                )
                rows = table.drop_columns([column for column in _LONG if column in table.schema.names]).to_pylist()
                self._rows[key] = rows if tokens is None else [row | {"tokens": n} for row, n in zip(rows, tokens, strict=True)]
        return self._rows[key]

    def row(self, generation: int | None, name: str, key: str, value: str) -> Json | None:
        """Return the row with that value in column `key`, or None."""
        return next((row for row in self.rows(generation, name) if row[key] == value), None)

    def generations(self) -> list[int]:
        """Return the numbers of the generations begun."""
        return self.run.history.generations()

    # tasks --------------------------------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> Json:
        """Return a task (or a rollout's) with its origin and what was derived from it. Raises StoreRefused if there is none."""
        task_id = task_of(task_id)
        generation = generation_of_row(task_id)
        if generation is None:
            return self._seed(task_id)
        task = self.row(generation, "tasks", "task_id", task_id)
        proposal = self.row(generation, "proposals", "proposal_id", task_id)
        if proposal is None:
            raise no_task(self.run, task_id, [row["proposal_id"] for row in self.rows(generation, "proposals")])
        match = self.row(generation, "matches", "match_id", proposal["match_id"])
        found: Json = {
            "task_id": task_id,
            "generation": generation,
            "task": task,
            "backwards": {
                "proposal": {key: proposal[key] for key in ("proposal_id", "group_id", "reference_ids", *_SHOWN)},
                "match": match,
                "teacher_weights": self.ancestry(proposal["adapter_id"]) if proposal["adapter_id"] else [],
            },
            "forwards": {
                "rollouts": self._rollouts(generation, task_id),
                "teacher_sample": self._sample(generation, task_id),
                "weights_moved": self._moved(generation, task_id),
                "shown_in": list(self._shown_in(task_id, generation)),
            },
        }
        found["forwards"] |= self._replays(task_id, generation)
        if task and any(admitted(self.run.read_table(generation, "tasks").filter(pc.field("task_id") == task_id))):
            found["leak"] = "invalid, but it passed and was posed: its outputs are claims (experiment.leak)"
        return found

    def _seed(self, task_id: str) -> Json:
        seed = self.row(None, "seeds", "task_id", task_id)
        if seed is None:
            raise no_task(self.run, task_id, [row["task_id"] for row in self.rows(None, "seeds")])
        forwards = {"shown_in": list(self._shown_in(task_id, -1))} | self._replays(task_id, -1)
        return {"task_id": task_id, "generation": None, "task": seed, "forwards": forwards}

    def _replays(self, task_id: str, after: int) -> Json:
        """Return the later generations in which the task was posed again; empty in a run without replays."""
        if not replays_tasks(self.run):
            return {}
        later = [generation for generation in self.generations() if generation > after]
        found = [(generation, self._rollouts(generation, task_id), self._moved(generation, task_id)) for generation in later]
        return {"replays": [{"generation": at, "rollouts": own, "weights_moved": moved} for at, own, moved in found if own]}

    def _rollouts(self, generation: int, task_id: str) -> list[Json]:
        found = []
        rewarding = self._rewarding(generation)
        for rollout in self.rows(generation, "rollouts"):
            if rollout["task_id"] == task_id:
                grade = self.row(generation, "grades", "rollout_id", rollout["rollout_id"]) or {}
                shown = {key: rollout[key] for key in ("rollout_id", "student_id", "answer", *_SHOWN, "tokens") if key in rollout}
                judged = {key: grade.get(key) for key in ("status", "correct", "detail")}
                if rewarding.leaked(rollout["rollout_id"], grade):
                    judged["paid"] = "correct, by a leak (experiment.leak)"
                sample = self._sample(generation, rollout["rollout_id"])
                found.append(shown | judged | rewarding.of(rollout, grade, sample) | {"sample": sample})
        return found

    def _rewarding(self, generation: int) -> Rewarding:
        traces = {row["task_id"]: row for row in self.rows(generation, "traces")}
        return Rewarding(rewarding_config(self.run, generation), generation, traces)

    def _sample(self, generation: int, sample_id: str) -> Json | None:
        sample = self.row(generation, "samples", "sample_id", sample_id)
        return sample and {key: sample[key] for key in ("group_id", "reward", "baseline", "centred", "advantage", "tokens")}

    def _moved(self, generation: int, task_id: str) -> list[Json]:
        """Return the updates that this task's samples took part in."""
        samples = [row for row in self.rows(generation, "samples") if task_of(row["sample_id"]) == task_id]
        found = []
        for member_id in sorted({row["member_id"] for row in samples if row["advantage"]}):
            rating = self.row(generation + self.run.history.off_policy_steps(), "ratings", "member_id", member_id)
            if rating and rating["next_adapter_id"] != rating["adapter_id"]:
                found.append({"member_id": member_id, "from": rating["adapter_id"], "to": rating["next_adapter_id"]})
        return found

    def _shown_in(self, task_id: str, after: int) -> Iterator[Json]:
        for generation in self.generations():
            for row in self.rows(generation, "proposals") if generation > after else []:
                if task_id in row["reference_ids"]:
                    yield {"proposal_id": row["proposal_id"], "teacher_id": row["teacher_id"], "status": row["status"]}

    # adapters -----------------------------------------------------------------------------------------------------------------

    def adapter(self, adapter_id: str) -> Json:
        """Return an adapter with its origin and what was derived from it. Raises StoreRefused if there is none with that id."""
        backwards = self.ancestry(adapter_id)
        played, children = [], []
        for generation in self.generations():
            for row in self.rows(generation, "ratings"):
                if row["adapter_id"] == adapter_id:
                    played.append({"generation": generation} | {key: row[key] for key in _GAME})
            for row in self.rows(generation, "offspring"):
                if adapter_id in row["parent_adapter_ids"]:
                    children.append({"generation": generation} | {key: row[key] for key in _CHILD})
        return {
            "adapter_id": adapter_id,
            "sha256": self._sha256(adapter_id),
            "backwards": backwards,
            "forwards": {"played": played, "offspring": children, "scores": self._scores(adapter_id)},
        }

    def ancestry(self, adapter_id: str) -> list[Json]:
        """Return every step from these weights back to the starting ones, newest first; a crossover follows its first parent.

        Raises StoreRefused if the run has no such adapter.
        """
        steps = [self._made(adapter_id)]
        while steps[-1]["parents"]:
            steps.append(self._made(steps[-1]["parents"][0]))
        return steps

    def _made(self, adapter_id: str) -> Json:
        """Return one step: which stage of which generation made these weights, from which others, and from what."""
        manifest = self._maker(adapter_id)
        stage = manifest.whole_stage
        made: Json = {"adapter_id": adapter_id, "made_by": stage, "generation": manifest.generation, "parents": []}
        if stage == "evolve":
            row = self.row(manifest.generation, "offspring", "adapter_id", adapter_id) or {}
            wanted = ("member_id", "replaces", "operator", "parents", "parameters", "seed", "relative_change", "cosine")
            return made | {"parents": row.get("parent_adapter_ids", []), "birth": {key: row.get(key) for key in wanted}}
        if stage == "update" and manifest.generation is not None:
            member_id = adapter_id.rpartition("-g")[0]
            before = self._before(manifest.generation, member_id)
            return made | {"parents": [before] if before else [], "samples": self._samples_of(manifest.generation, member_id)}
        return made

    def _maker(self, adapter_id: str) -> Manifest:
        """Return the manifest that names these weights."""
        if not self._makers:
            for manifest in self.run.history.walk():
                self._makers |= {ref.uri: manifest for ref in manifest.outputs if ref.uri.endswith(WEIGHTS_FILE)}
        found = self._makers.get(f"adapters/{adapter_id}/{WEIGHTS_FILE}")
        if found is None:
            raise no_adapter(self.run, adapter_id)
        return found

    def _before(self, generation: int, member_id: str) -> str:
        """Return the weights with which a member played in a generation; read from its samples until it is rated."""
        rating = self.row(generation, "ratings", "member_id", member_id)
        sample = self.row(generation, "samples", "member_id", member_id)
        return str((rating or sample or {}).get("adapter_id", ""))

    def trained_on(self, generation: int, member_id: str) -> list[Json]:
        """Return the samples on which the update of a generation trained a member."""
        return [
            row for row in self.rows(generation - self.run.history.off_policy_steps(), "samples") if row["member_id"] == member_id
        ]

    def _samples_of(self, generation: int, member_id: str) -> Json:
        """Return the number of these samples, their tasks, and who wrote those."""
        own = self.trained_on(generation, member_id)
        tasks = {task_of(row["sample_id"]) for row in own}
        places = sorted({place for task_id in tasks if (place := generation_of_row(task_id)) is not None})
        return {
            "count": len(own),
            "tokens": sum(row["tokens"] for row in own),
            "mean_reward": sum(row["reward"] for row in own) / len(own) if own else None,
            "tasks": sorted(tasks),
            "written_by": sorted(
                {row["adapter_id"] for place in places for row in self.rows(place, "proposals") if row["proposal_id"] in tasks}
            ),
        }

    def _scores(self, adapter_id: str) -> list[Json]:
        """Return the scores of these weights, each with how the suite was asked (`question_of`)."""
        found = {
            ref.uri: question_of(one) for one in self._benchmarks() for ref in one.outputs if ref.uri.endswith("/scores.parquet")
        }
        wanted = ("suite", "group", "measure", "score", "stderr", "problems")
        rows = [(row, found[uri]) for uri in sorted(found) for row in self.run.read_table(uri, "scores").to_pylist()]
        return [
            {key: row[key] for key in wanted} | {"question": question}
            for row, question in rows
            if row["adapter_id"] == adapter_id
        ]

    def _benchmarks(self) -> list[Manifest]:
        inside = [self.run.manifest("benchmark", generation) for generation in self.generations()]
        return [manifest for manifest in inside if manifest] + self.run.history.benchmarks()

    def _sha256(self, adapter_id: str) -> str:
        return self.run.history.find(f"adapters/{adapter_id}/{WEIGHTS_FILE}").sha256


def adapters_made(run: Run) -> dict[int | None, list[str]]:
    """Return the ids of the adapters that each generation made, sorted; None is the start, and it comes first."""
    found: dict[int | None, set[str]] = {}
    for manifest in run.history.walk():
        made = {ref.uri.split("/")[1] for ref in manifest.outputs if ref.uri.endswith(f"/{WEIGHTS_FILE}")}
        if made:
            found.setdefault(manifest.generation, set()).update(made)
    return {generation: sorted(made) for generation, made in found.items()}


def no_adapter(run: Run, adapter_id: str) -> StoreRefused:
    """Return the error for an unknown adapter: with the member's nearest one, or the adapters of the newest generation."""
    made = adapters_made(run)
    member = adapter_id.partition("-")[0]
    own = [name for names in made.values() for name in names if name.partition("-")[0] == member]
    newest = list(made.values())[-1] if made else []
    latest = f"; the newest {'are' if newest[1:] else 'is'} {', '.join(newest[:LISTED])}" if newest else ""
    return StoreRefused(f"run {run.run_id} has no adapter {adapter_id}{hint(adapter_id, own) or latest}")


def no_task(run: Run, task_id: str, known: Sequence[str]) -> StoreRefused:
    """Return the error for an unknown task: with the nearest known ids, or the generations that there are."""
    begun = run.history.generations()
    place = generation_of_row(task_id)
    if place is not None and place not in begun:
        there = f"; its generations are 0 to {begun[-1]}" if begun else "; it has no generation yet"
        return StoreRefused(f"run {run.run_id} has no task {task_id}{there}")
    return StoreRefused(f"run {run.run_id} has no task {task_id}{near_or_all(task_id, known)}")


def replays_tasks(run: Run) -> bool:
    """Return whether students of this run may be given stored tasks again."""
    config = (run.history.description() or {}).get("config", {})
    rule = config.get("solve", {})
    return any(rule.get(name) for name in REPLAYS)


def generation_of_row(row_id: str) -> int | None:
    """Return the generation that an id (`g0007-m00-p003`) belongs to; None for seeds."""
    found = re.match(r"g(\d{4,9})-", row_id)  # what is longer is no id, and Python reads no number of any length
    return int(found.group(1)) if found else None
