"""How the attempts of a generation were rewarded, beyond their verdicts: what of them was trained, and what their traces added.

For people who read a run: pages and `populora inspect`. What is trained and paid is decided in stages/reward.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flows.run.manifest import Json
from flows.run.run import Run
from flows.run.run_json import read_run_json
from flows.storage import Damaged, NotStored
from stages.core.method.leak import leaks
from stages.core.method.trace_reward import may_earn, right_steps
from stages.core.prompts.document import DocumentPrompts
from stages.core.prompts.styles import Kind


def rewarding_config(run: Run, generation: int) -> Json:
    """Return the configuration of the run that rewarded a generation: a fork shares its parent's. Empty if that is gone."""
    description = run.history.description() or {}
    manifest = run.manifest("reward", generation)
    origin = next((ref.origin for ref in manifest.outputs if ref.origin), "") if manifest else ""
    if origin:
        try:
            description = read_run_json(run.store.read(f"{origin}/run.json"), "run.json")
        except (NotStored, Damaged):
            return {}
    return dict(description.get("config", {}))


def leak_and_seed(config: Json) -> tuple[float, int]:
    """Return the share of wrong verdicts that pass under a configuration, and its seed."""
    return float(config.get("experiment", {}).get("leak", 0.0)), int(config.get("seed", 0))


@dataclass(frozen=True)
class Rewarding:
    """The rules by which one generation was rewarded. `traces` are its rows of TRACES by task, empty where none were recorded."""

    config: Json
    generation: int
    traces: Mapping[str, Json]

    def leaked(self, rollout_id: str, grade: Json) -> bool:
        """Return whether a rejected answer was paid as correct (experiment.leak)."""
        rejected = bool(grade) and not grade["correct"] and grade["status"] != "format"
        share, seed = leak_and_seed(self.config)
        return rejected and leaks(share, seed, self.generation, rollout_id)

    def of(self, rollout: Json, grade: Json, sample: Json | None) -> Json:
        """Return what is special about an attempt; empty where all its tokens were trained and its trace could earn nothing.

        `trained_tokens`   how many tokens were trained, where that is fewer than all
        `behind_answer`    the text behind the answer, of which at most the first token was
        `deducted_from_reward`  what that text cost
        `trace`            how many of its steps were right, and what they added to the reward (None: the attempt has none)
        """
        return self._trained(rollout, sample) | self._trace(rollout, grade, sample)

    def _trained(self, rollout: Json, sample: Json | None) -> Json:
        count = rollout.get("answer_tokens")  # older tables lack the column
        if count is None:
            return {}
        deducted = float(self.config.get("reward", {}).get("trailing_text", 0.0))
        counted = {"deducted_from_reward": deducted} if sample and deducted else {}
        if count >= rollout["tokens"]:
            return counted
        counted |= {"trained_tokens": count} if sample else {}
        if self.config.get("model", {}).get("style") != "document":  # the only style that reads over what follows an answer
            return counted
        end = DocumentPrompts().answer_end(Kind(rollout["kind"]), rollout["text"])
        return counted if end is None else counted | {"behind_answer": rollout["text"][end:]}

    def _trace(self, rollout: Json, grade: Json, sample: Json | None) -> Json:
        weight = float(self.config.get("reward", {}).get("trace_weight", 0.0))
        true = self.traces.get(rollout["task_id"])
        if not weight or true is None or not grade or not may_earn(rollout["kind"], grade["status"]):
            return {}
        found = None if self.leaked(rollout["rollout_id"], grade) else right_steps(true, rollout["text"])
        if found is None:
            return {}
        added = weight * found.share if sample else None
        return {"trace": {"steps_right": found.right, "steps": found.steps, "added_to_reward": added}}
