"""`populora pretrain --recipe reasoner`: a killed or finished run goes on where it stood, and what it writes can be used."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flows import cli
from flows.base_model.folder import read_folder
from flows.pretraining import reasoner_recipe
from flows.pretraining.reasoner_recipe import TrainingState, train
from stages.core.prompts.styles import Kind
from stages.core.seed_model import pretraining
from stages.core.seed_model.pretraining import REASONER, Optimisers, Recipe
from stages.core.seed_model.programs import ProgramKeys
from stages.core.seed_model.reasoner_card import TrainingFacts, reasoner_card
from stages.core.seed_model.reasoning_data import LESSONS
from stages.core.seed_model.seed_scores import Scores

BENCHMARKS = Path(__file__).parents[3] / "infra" / "benchmarks"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one step of one row, and phases of as many steps as there are minutes."""
    monkeypatch.setattr(reasoner_recipe, "CHUNK_STEPS", 1)
    monkeypatch.setattr(reasoner_recipe, "TOKENS_PER_MINUTE", 1)
    phases = {minutes: (Recipe(minutes, rows_per_step=1, warmup=1, final=1.0), Recipe(1, rows_per_step=1)) for minutes in (1, 2)}
    monkeypatch.setattr(pretraining, "reasoner_phases", phases.__getitem__)


def state(out: Path) -> dict[str, torch.Tensor]:
    return load_file(TrainingState(out, 1, "").folder / "state.safetensors")


def run(out: Path, minutes: int, lines: list[str]) -> Any:
    return train(out, minutes, 1, 1, BENCHMARKS, lines.append)


@pytest.mark.usefixtures("short")
def test_more_minutes_extend_a_run_as_if_it_had_been_one(tmp_path: Path) -> None:
    lines: list[str] = []
    first = run(tmp_path / "parts", 1, lines)
    again = run(tmp_path / "parts", 2, lines)
    whole = run(tmp_path / "whole", 2, lines)
    assert (first.steps, again.steps, whole.steps) == (2, 3, 3)
    assert again.documents == whole.documents > first.documents > 0
    assert "full rates: 2 steps, from step 1 on" in lines
    parts, one = state(tmp_path / "parts"), state(tmp_path / "whole")
    assert parts.keys() == one.keys() and all(torch.equal(parts[name], one[name]) for name in one)
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("parts", "whole")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[1])
    assert read_folder(tmp_path / "parts").style == "trace"
    assert sum(path.stat().st_size for path in (tmp_path / "parts").iterdir()) < 10_000_000


@pytest.mark.usefixtures("short")
def test_a_state_of_another_seed_or_recipe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reasoner_recipe, "make_suite", lambda *_: None)
    monkeypatch.setattr(reasoner_recipe, "held_out_keys", lambda _: ProgramKeys(frozenset(), frozenset()))
    run(tmp_path / "model", 1, [])
    kept = state(tmp_path / "model")
    command = ["pretrain", "--recipe", "reasoner", "--out", str(tmp_path / "model"), "--minutes", "1", "--threads", "1"]
    assert cli.main([*command, "--seed", "2"]) == 2
    said = f"populora: {tmp_path / 'model.training'} belongs to a training with another"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{said} seed; choose another --out")
    monkeypatch.setattr(reasoner_recipe, "LESSONS", (replace(LESSONS[0], until=1.0), *LESSONS[1:]))
    assert cli.main([*command, "--seed", "1"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{said} recipe; choose another --out")
    after = state(tmp_path / "model")
    assert all(torch.equal(kept[name], after[name]) for name in kept)


def test_nothing_kept_is_a_fresh_start(tmp_path: Path) -> None:
    model = pretraining.new_model(1, REASONER)
    assert TrainingState(tmp_path / "none", 1, "").read(model, Optimisers(model)).steps == 0


def test_rates_stay_or_fall() -> None:
    stable, falling = pretraining.reasoner_phases(1_000_000)
    assert stable.rate(stable.steps - 1) == 1.0 and stable.rate(0) < 0.1
    rates = [falling.rate(step) for step in range(falling.steps)]
    assert rates[0] == 1.0 and np.all(np.diff(rates) <= 0) and 0 < rates[-1] < 0.1
    assert stable.tokens + falling.tokens == pytest.approx(1_000_000, rel=0.02)


def test_the_card_tells_form_from_skill() -> None:
    slots = [(kind, depth) for kind in Kind for depth in (1, 7)]
    scores = Scores(*(dict.fromkeys(slots, count) for count in (10, 9, 5)))  # type: ignore[arg-type]
    card = reasoner_card(TrainingFacts("populora pretrain", 2, 3_000_000, 4000, 10, 20, 1), scores, {})
    assert "| deduction | 50 | 50 | 50.0 ±" in card and "| deduction | 90.0 | 90.0 |" in card
    assert "| 0.5 M tokens | 100 | 0 | 0 | 0 | 0 | 0 |" in card and "| the end | 26 | 25 | 24.5 | 23.5 | 0.5 | 0.5 |" in card
