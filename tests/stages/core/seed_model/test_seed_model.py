"""The seed model that is shipped, and the recipe that makes one."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from flows.pretraining.checkpoint import save
from flows.pretraining.suites import stored_problems
from stages.core.engines.hf_engine import HFEngine, load_model, load_tokenizer
from stages.core.engines.protocol import Request
from stages.core.prompts.compact import INPUT, OUTPUT, PROGRAM, CompactPrompts
from stages.core.prompts.styles import Kind, Unparsed
from stages.core.seed_model import pretraining, seed_tokenizer
from stages.core.seed_model.muon import orthogonalised
from stages.core.seed_model.pretraining_data import BROAD, LISTINGS, DocumentSource, make_rows
from stages.core.seed_model.programs import ProgramKeys, compile_own, run_own
from stages.core.training.grouped_lora import attach
from stages.core.values.canonical import parse_value

ROOT = Path(__file__).parents[4]
SEED_MODEL = ROOT / "infra" / "models" / "seed"
STYLE = CompactPrompts()
NOTHING = ProgramKeys(frozenset(), frozenset())


def engine_of(folder: Path) -> HFEngine:
    return HFEngine(attach(load_model(str(folder), "cpu"), ("q_proj",), 1, 1.0, 1), load_tokenizer(str(folder)), {})


@pytest.fixture(scope="module")
def engine() -> HFEngine:
    return engine_of(SEED_MODEL)


def answers(engine: HFEngine, prompts: list[str], temperature: float, limit: int) -> list[str]:
    requests = [Request(tuple(engine.encode(prompt)), None, seed, limit) for seed, prompt in enumerate(prompts)]
    return [engine.decode(completion.token_ids) for completion in engine.generate(requests, temperature)]


def test_the_folder_is_complete_and_small() -> None:
    files = {path.name: path.stat().st_size for path in SEED_MODEL.iterdir()}
    wanted = {f"{name}.json" for name in ("config", "generation_config", "tokenizer", "tokenizer_config")}
    wanted |= {"model.safetensors", "README.md"}
    assert set(files) == wanted
    assert sum(files.values()) <= 10_000_000
    with safe_open(SEED_MODEL / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    text = "".join((SEED_MODEL / name).read_text(encoding="utf-8") for name in wanted if not name.endswith("safetensors"))
    assert str(Path.home()) not in text
    assert "license: mit" in text


def test_the_shipped_vocabulary_is_the_source_s(engine: HFEngine) -> None:
    config = json.loads((SEED_MODEL / "config.json").read_text(encoding="utf-8"))
    assert len(seed_tokenizer.COMPACT.tokens) <= config["vocab_size"]
    assert engine.window == config["max_position_embeddings"] == pretraining.WINDOW
    prompt = STYLE.propose_inputs("def f(a):\n    return a * 12", 10)
    assert engine.encode(prompt) == seed_tokenizer.COMPACT.encode(prompt)
    assert engine.decode(engine.encode(prompt)) == prompt


def test_it_answers_easy_deductions(engine: HFEngine) -> None:
    asked = {
        ("def f(a):\n    return a[::-1]", "[1, 2, 3]"): "[3, 2, 1]",
        ("def f(a):\n    return len(a)", "'abcd'"): "4",
        ("def f(a):\n    return a.upper()", "'abc'"): "'ABC'",
        ("def f(a, b):\n    return a + b", "2, 3"): "5",
        ("def f(a):\n    return sorted(a)", "[5, 3, 9]"): "[3, 5, 9]",
        ("def f(x):\n    return x + 'q'", "'ab'"): "'abq'",
        ("def f(x):\n    return x[0]", "[7, 1]"): "7",
        ("def f(x):\n    return max(x, 4)", "9"): "9",
    }
    prompts = [STYLE.solve(Kind.DEDUCTION, program, (given,), (), "") for program, given in asked]
    got = answers(engine, prompts, 0.0, 24)
    firsts = [answer.split(INPUT)[0] for answer in got]  # the model may continue with another pair
    right = sum(answer == wanted for answer, wanted in zip(firsts, asked.values(), strict=True))
    assert right >= 5, got


def test_it_answers_unseen_problems(engine: HFEngine) -> None:
    problems = stored_problems(pq.read_table(ROOT / "infra" / "benchmarks" / "probe-dev.parquet"))
    easy = [each for each in problems if each.kind is Kind.DEDUCTION and each.band == 1][:60]
    prompts = [STYLE.solve(each.kind, each.program, each.inputs, (), "") for each in easy]
    got = answers(engine, prompts, 0.0, 32)
    share = np.mean([answer == each.outputs[0] for answer, each in zip(got, easy, strict=True)])
    assert 0.15 < share < 0.95, share


def test_sampled_proposals_can_be_read(engine: HFEngine) -> None:
    read = 0
    for completion in answers(engine, [STYLE.propose(Kind.DEDUCTION, ())] * 64, 1.0, 120):
        try:
            STYLE.read_proposal(Kind.DEDUCTION, completion)
            read += 1
        except Unparsed:
            pass
    assert read > 24


def test_orthogonalised_brings_singular_values_near_one() -> None:
    stack = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 24, 48))).float()
    for matrices in (stack, stack.transpose(1, 2)):
        result = orthogonalised(matrices)
        assert result.shape == matrices.shape
        values = torch.linalg.svdvals(result)
        assert values.min() > 0.5 and values.max() < 1.4
        left, _, right = torch.linalg.svd(matrices, full_matrices=False)
        assert torch.nn.functional.cosine_similarity(result.flatten(1), (left @ right).flatten(1)).min() > 0.95


def test_documents_of_a_row_do_not_see_each_other() -> None:
    mask = pretraining.row_mask(torch.tensor([[1, 1, 2, 0]]))[0, 0] == 0
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_half_of_the_last_phase_s_answers_go_on_with_one_more_true_pair() -> None:
    source = DocumentSource((4,), NOTHING, LISTINGS)
    gone_on = 0
    for _ in range(200):
        prompt, answer = source.text("induction")
        program, given, more = answer.partition(INPUT)
        gone_on += bool(more)
        if more:
            given, _, got = more.partition(OUTPUT)
            assert f"{INPUT}{given}{OUTPUT}" not in prompt
            assert run_own(compile_own(program), list(parse_value(f"({given},)"))) == got
        assert prompt.endswith(PROGRAM)
    assert 70 <= gone_on <= 130


def trained(seed: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = pretraining.new_model(seed)
    rows = make_rows((seed,), 1, NOTHING, BROAD)
    losses: list[float] = []
    recipe = pretraining.Recipe(steps=4, rows_per_step=1, warmup=2)
    pretraining.train(model, iter([rows] * 4), recipe, lambda _, loss: losses.append(loss))
    return losses, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_recipe_learns_and_repeats(tmp_path: Path) -> None:
    losses, weights = trained(1)
    assert losses[-1] < losses[0] - 1
    again, same = trained(1)
    assert again == losses
    assert all(torch.equal(tensor, same[name]) for name, tensor in weights.items())


def test_a_saved_model_loads(tmp_path: Path) -> None:
    model = pretraining.new_model(3)
    save(model, tmp_path)
    save(model, tmp_path)
    assert not (tmp_path / ".part").exists()
    engine = engine_of(tmp_path)
    loaded = engine.generate([Request((4, 5), None, 1, 3)], 1.0)
    assert len(loaded[0].token_ids) <= 3
