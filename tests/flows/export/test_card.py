"""A model card: lineage, training, rating, attempts and scores of the weights, and every name of others as text."""

import json
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from flows.export.adapter import export_adapter, read_files
from flows.export.base_model import BaseModel
from flows.export.card import Subject, model_card, rating_text
from flows.export.markdown import escaped, one_line
from flows.run.lineage import Lineage
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import scored_run
from tests.support.scored_run import HOSTILE


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return scored_run.build(FileStore(tmp_path_factory.mktemp("played")), "played")


def test_lineage_tasks_rating_and_scores_are_on_the_card(played: Run, tmp_path: Path) -> None:
    export_adapter(played, "s0-g0001", tmp_path / "s0", merge=False)
    export_adapter(played, "t0-g0001", tmp_path / "t0", merge=False)
    export_adapter(played, "s2-start", tmp_path / "s2", merge=False)
    student, teacher, child = ((tmp_path / name / "README.md").read_text() for name in ("s0", "t0", "s2"))
    assert "2 updates and 0 births lead from the starting weights" in student and "`s0-g0000`: update of generation 0" in student
    assert "| tasks seen (attempted as a student) | " in student and "tasks made" not in student
    assert "| tasks made (written as a teacher) | 12, of which 10 were judged valid |" in teacher
    assert "operator `M1` on `s0-g0000`, replacing `s1`" in child or "operator `M1` on `s" in child
    assert "TrueSkill mu " in student and "2 rated matches along the lineage" in student
    assert '"learning_rate"' in student and '"image"' not in student


def test_the_card_says_how_the_weights_were_trained_or_that_they_were_not(played: Run, tmp_path: Path) -> None:
    def card(adapter_id: str, **changed: object) -> str:
        description = played.history.description() or {}
        files = read_files(played, adapter_id, ("adapter_config.json", "adapter_model.safetensors"))
        adapter = json.loads(files["adapter_config.json"])
        subject = Subject(adapter_id, files, adapter, BaseModel("seed", False), "out", "An adapter.", merged=False)
        config = description["config"]
        return model_card(played, description | {"config": config | changed}, subject)

    curriculum = (played.history.description() or {})["config"]["propose"] | {"curriculum": [1]}
    for changed, how in (
        ({}, "trained by self-play in a population of LoRA adapters: teachers write"),
        ({"mode": "single"}, "trained by self-play: a single LoRA adapter writes"),
        ({"propose": curriculum}, "trained in a population of LoRA adapters: a generator of programs"),
    ):
        assert f"An adapter. It was {how}" in card("s0-g0001", **changed)
        said = f"An adapter. These weights were not trained. Those of the run's later adapters are {how}"
        assert said in card("s0-start", **changed)


def test_attempts_at_one_task_are_one_observation_on_the_card(played: Run, tmp_path: Path) -> None:
    export_adapter(played, "s0-g0001", tmp_path / "s0", merge=False)
    tasks: dict[str, list[bool]] = {}
    for generation in (0, 1):
        asked = {row["rollout_id"]: row for row in played.read_table(generation, "rollouts").to_pylist()}
        for row in played.read_table(generation, "grades").to_pylist():
            if asked[row["rollout_id"]]["student_id"] == "s0":
                tasks.setdefault(asked[row["rollout_id"]]["task_id"], []).append(row["correct"])
    means = np.array([np.mean(own) for own in tasks.values()])
    assert {len(own) for own in tasks.values()} == {2}, "with one attempt each, attempts would be independent"
    said = f"{means.mean():.1%} ± {means.std(ddof=1) / len(means) ** 0.5:.1%}, n = {len(means)} tasks"
    assert f"| attempts correct, mean over tasks | {said} |" in (tmp_path / "s0" / "README.md").read_text()


def test_the_rating_on_the_card_is_the_last_one_of_these_weights(played: Run, tmp_path: Path) -> None:
    rows = [row for row in played.read_table(1, "ratings").to_pylist() if row["member_id"] == "s0"]
    export_adapter(played, "s0-g0001", tmp_path / "s0", merge=False)
    assert f"TrueSkill mu {rows[-1]['mu']:.2f}, sigma {rows[-1]['sigma']:.2f}" in (tmp_path / "s0" / "README.md").read_text()
    export_adapter(played, "s0-start", tmp_path / "start", merge=False)
    start = next(row for row in played.read_table(None, "population").to_pylist() if row["member_id"] == "s0")
    said = f"TrueSkill mu {start['mu']:.2f}, sigma {start['sigma']:.2f}, fitness 0.00, at the start; 0 rated matches"
    assert said in (tmp_path / "start" / "README.md").read_text()


def test_hostile_names_in_a_run_stay_text_in_the_card_and_its_metadata(played: Run, tmp_path: Path) -> None:
    export_adapter(played, "s0-g0001", tmp_path / "out", merge=False)
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license in (None, "mit")
    assert [result.dataset_name for result in card.data.eval_results] == ["cruxeval", one_line(HOSTILE)]
    assert card.data.eval_results[0].metric_args == {"problems": 48, "stderr": 0.0625}
    assert "| cruxeval | all | pass\\@1 greedy | 0.2500 | 0.0625 | 48 | as its configuration says |" in card.text
    assert "<script>" not in card.text and "](javascript" not in card.text


def test_scores_on_the_card_say_how_they_were_asked_for(played: Run, tmp_path: Path) -> None:
    export_adapter(played, "t0-g0001", tmp_path / "out", merge=False)
    card = ModelCard.load(tmp_path / "out" / "README.md")
    for score, way in (("0.5000", "chat, 1,024 tokens"), ("0.2500", "completion, 512 tokens")):
        assert f"| humaneval | all | pass\\@1 greedy | {score} | 0.0625 | 164 | {escaped(way)} |" in card.text
    found = [(result.metric_value, (result.metric_args or {})["asked"]) for result in card.data.eval_results]
    assert found == [(0.5, "chat, 1,024 tokens"), (0.25, "completion, 512 tokens")]


class Rated(Lineage):
    """Tables of ratings alone: s0 meets two teachers a generation, steps in generation 0, not in 1, and is a parent of s1."""

    def __init__(self) -> None:
        self._tables = {
            (0, "ratings"): [rated("s0-start", "s0-g0000", 20.0), rated("s0-start", "s0-g0000", 22.0)],
            (1, "ratings"): [rated("s0-g0000", "s0-g0000", 23.0), rated("s0-g0000", "s0-g0000", 24.0)],
            (1, "offspring"): [{"adapter_id": "s1-start", "mu": 24.0, "sigma": 5.0}],
            (2, "ratings"): [rated("s0-g0000", "s0-g0000", 25.0), rated("s1-start", "s1-g0002", 26.0)],
        }

    def generations(self) -> list[int]:
        return [0, 1, 2]

    def rows(self, generation: int | None, name: str) -> list[dict]:
        return self._tables.get((generation, name), [])


def rated(before: str, after: str, mu: float, result: str = "win", role: str = "student") -> dict:
    return {
        "adapter_id": before,
        "next_adapter_id": after,
        "mu": mu,
        "sigma": 5.0,
        "fitness": mu - 5,
        "result": result,
        "role": role,
    }


def test_matches_of_a_line_are_those_before_each_step() -> None:
    start, stepped = {"adapter_id": "s0-start", "generation": None}, {"adapter_id": "s0-g0000", "generation": 0}
    born, grown = {"adapter_id": "s1-start", "generation": 1}, {"adapter_id": "s1-g0002", "generation": 2}
    assert rating_text(Rated(), "s0-g0000", [stepped, start]).startswith(
        "TrueSkill mu 25.00, sigma 5.00, fitness 20.00, after generation 2; 5 rated"
    )
    assert rating_text(Rated(), "s1-start", [born, stepped, start]).startswith(
        "TrueSkill mu 24.00, sigma 5.00, after generation 1; 4 rated"
    )
    assert "after generation 2; 5 rated" in rating_text(Rated(), "s1-g0002", [grown, born, stepped, start])


def test_a_single_agent_is_not_rated() -> None:
    lineage = Rated()
    lineage._tables = {(0, "ratings"): [rated("a0-start", "a0-g0000", 25.0, "draw", "both")]}
    steps = [{"adapter_id": "a0-g0000", "generation": 0}, {"adapter_id": "a0-start", "generation": None}]
    assert rating_text(lineage, "a0-g0000", steps) == "These weights were not rated: a single agent plays against itself."
