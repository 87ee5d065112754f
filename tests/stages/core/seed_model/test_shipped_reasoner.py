"""The shipped model that shows its steps."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from flows.config import PROJECT
from flows.pretraining.suites import stored_problems
from stages.core.engines.hf_engine import HFEngine, load_model, load_tokenizer
from stages.core.engines.protocol import Request
from stages.core.prompts.styles import Kind, solver_prompt
from stages.core.prompts.trace import TracePrompts
from stages.core.seed_model import pretraining, seed_tokenizer
from stages.core.seed_model.seed_scores import SolvedTask
from stages.core.training.grouped_lora import attach

REASONER = PROJECT / "infra" / "models" / "reasoner"
STYLE = TracePrompts()
DEPTHS = (1, 2)


@pytest.fixture(scope="module")
def engine() -> HFEngine:
    return HFEngine(attach(load_model(str(REASONER), "cpu"), ("q_proj",), 1, 1.0, 1), load_tokenizer(str(REASONER)), {})


@pytest.fixture(scope="module")
def shallow() -> list[SolvedTask]:
    """The first ten deductions of each shallow depth of the half that experiments are not scored on."""
    table = pq.read_table(PROJECT / "infra" / "benchmarks" / "staircase-dev.parquet")
    own = [each for each in stored_problems(table) if each.kind is Kind.DEDUCTION]
    return [each for depth in DEPTHS for each in [one for one in own if one.band == depth][:10]]


def test_the_folder_is_complete_and_small() -> None:
    files = {path.name: path.stat().st_size for path in REASONER.iterdir()}
    wanted = {f"{name}.json" for name in ("config", "generation_config", "tokenizer", "tokenizer_config")}
    assert set(files) == wanted | {"model.safetensors", "README.md"}
    assert sum(files.values()) <= 10_000_000
    with safe_open(REASONER / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    text = "".join((REASONER / name).read_text(encoding="utf-8") for name in files if not name.endswith("safetensors"))
    assert str(Path.home()) not in text
    assert "license: mit" in text


def test_the_shipped_vocabulary_is_the_source_s(engine: HFEngine, shallow: list[SolvedTask]) -> None:
    config = json.loads((REASONER / "config.json").read_text(encoding="utf-8"))
    assert len(seed_tokenizer.TRACE.tokens) <= config["vocab_size"]
    assert engine.window == config["max_position_embeddings"] == pretraining.WINDOW
    prompt = solver_prompt(STYLE, Kind.DEDUCTION, shallow[0].program, shallow[0].inputs, shallow[0].outputs, "")
    assert engine.encode(prompt) == seed_tokenizer.TRACE.encode(prompt)


def test_it_ends_its_answers_and_most_shallow_ones_are_right(engine: HFEngine, shallow: list[SolvedTask]) -> None:
    asked = [
        Request(tuple(engine.encode(solver_prompt(STYLE, one.kind, one.program, one.inputs, one.outputs, ""))), None, 0, 64)
        for one in shallow
    ]
    found = engine.generate(asked, 0.0)
    assert not any(each.truncated for each in found)
    read = [STYLE.read_answer(Kind.DEDUCTION, engine.decode(each.token_ids)) for each in found]
    assert sum(text == one.outputs[0] for text, one in zip(read, shallow, strict=True)) >= 12
