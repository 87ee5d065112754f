"""The learning benches run and say what design.md promises; their figures are not judged here."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from flows.bench import population as population_bench
from flows.bench import rollout as rollout_bench
from flows.bench import update as update_bench
from flows.bench.peft_rival import PeftInTurn
from flows.bench.update import SEED_MODEL
from flows.bench.update_samples import check_norms, new_adapters
from flows.config import PROJECT
from stages.core import tables
from stages.core.engines.hf_engine import load_model
from stages.core.engines.precision import fast_bfloat16
from stages.core.training.grouped_lora import attach, unflatten
from stages.core.training.loss import Objective
from stages.core.training.packing import Samples, pack_rows
from stages.core.training.settings import Settings
from stages.core.training.torch_trainer import TorchTrainer

SMALL = [
    "--shape",
    "seed",
    "--device",
    "cpu",
    "--rank",
    "2",
    "--adapters",
    "1",
    "--against",
    "2",
    "--repeats",
    "1",
    "--threads",
    "1",
]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.timeout(300)  # a bench on a busy machine
@pytest.mark.parametrize(
    ("module", "options", "rivals"),
    [
        (update_bench, ["--total", "64", "--tokens", "64"], {"peft_set_adapter", "prompt_per_completion"}),
        (rollout_bench, ["--total", "256", "--tokens", ""], {"one_call_per_adapter", "single_adapter"}),
    ],
)
def test_lines_are_json_with_names_values_and_rivals(module, options: list[str], rivals: set[str]) -> None:
    lines = [json.loads(json.dumps(line)) for line in module.main(SMALL + options)]
    assert all({"name", "value", "unit"} <= line.keys() and line["value"] > 0 for line in lines)
    paired = [line for line in lines if "against" in line]
    if module is update_bench and fast_bfloat16():
        rivals = rivals | {"float32"}  # the default, bfloat16, is compared with it where the hardware has it
    assert {line["against"] for line in paired} == rivals and all(line["ratio"] > 0 for line in paired)
    alone = {line["name"] for line in lines if "against" not in line}
    assert alone == {"update.share_of_peak"} if module is update_bench else all(name.startswith("memory.") for name in alone)


@pytest.mark.timeout(300)
def test_a_checkpoint_is_measured_against_generate_and_another_checkout() -> None:
    options = ["--model", str(SEED_MODEL), "--device", "cpu", "--rank", "2", "--against", "2", "--repeats", "1", "--threads", "1"]
    options += ["--instructions", "30", "--attempts", "2", "--longest", "4", "--checkout", str(PROJECT)]
    lines = list(rollout_bench.main(options))
    assert [(line["name"], line["against"]) for line in lines] == [
        (name, rival) for rival in ("model_generate", "checkout") for name in ("rollout.tokens_per_s", "memory.rollout")
    ]
    assert all(line["rows"] == 8 and line["model"] == "seed" and line["value"] > 0 and line["ratio"] > 0 for line in lines)


@pytest.mark.parametrize("bench", [rollout_bench, update_bench])
def test_a_model_that_does_not_exist_is_a_mistake_of_the_user(bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        list(bench.main(["--model", "nowhere"]))
    assert ended.value.code == 2 and "'nowhere' is not a folder with a model's config.json" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_an_update_of_a_checkpoint_is_measured() -> None:
    options = ["--model", str(SEED_MODEL), "--device", "cpu", "--rank", "2", "--adapters", "2", "--tokens", "", "--total", "128"]
    lines = list(update_bench.main([*options, "--repeats", "1", "--threads", "1"]))
    rivals = {"peft_set_adapter", "float32"} if fast_bfloat16() else {"peft_set_adapter"}
    *paired, share, saved = lines
    assert {line["against"] for line in paired} == rivals and {line["shape"] for line in [*paired, share]} == {"seed"}
    assert (saved["name"], saved["shape"], saved["unit"], saved["ratio"]) == ("update.flops", "qwen2.5-7b", "PFLOP", 1.185)
    assert share["name"] == "update.share_of_peak" and 0 < share["value"] < 1 < 1000 * share["peak_tflops"]


def _stored_samples(folder: Path) -> Path:
    blank = {"member_id": "m", "kind": "deduction", "adapter_sha256": "sha", "reward": 1.0, "baseline": 0.0, "centred": 1.0}
    rows = [
        blank
        | {
            "sample_id": f"{role}{number}",
            "group_id": f"{role}{number // 2}",
            "role": role,
            "adapter_id": f"{role[0]}{number // 4}",
        }
        | {"prompt_ids": [5, 6, number // 2], "completion_ids": [7, 8, 9], "logprobs": [-1.0] * 3}
        | {"advantage": 0.0 if number < 2 else 1.0 - number}
        for role in ("teacher", "student")
        for number in range(8)
    ]
    pq.write_table(tables.table(rows, tables.SAMPLES), folder / "samples.parquet")
    return folder / "samples.parquet"


@pytest.mark.timeout(300)
def test_an_update_on_stored_samples_is_measured_role_by_role(tmp_path: Path) -> None:
    options = ["--model", str(SEED_MODEL), "--device", "cpu", "--rank", "2", "--repeats", "1", "--threads", "1"]
    lines = list(update_bench.main([*options, "--samples", str(_stored_samples(tmp_path)), "--checkout", str(PROJECT)]))
    assert [(line["role"], line["against"]) for line in lines] == [
        (role, rival) for rival in ("row_per_completion", "peft_set_adapter", "checkout") for role in ("teacher", "student")
    ]
    assert all(
        line["response_tokens"] == 6 * 3 and line["adapters"] == 2 and line["value"] > 0 and line["ratio"] > 0 for line in lines
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples", str(SEED_MODEL)], "--samples needs --model"),
        (["--checkout", str(PROJECT)], "--checkout needs --samples"),
        (["--rival", "peft_set_adapter"], "--rival needs --samples"),
        (["--samples", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_options_of_stored_samples_that_do_not_fit_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        list(update_bench.main(options))
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_the_rival_computes_the_same_gradients() -> None:
    """PEFT in turn, with a row for each completion, against the grouped pass, which shares prompts and beginnings."""
    rng = np.random.default_rng(0)
    completions = [[7, 8, *rng.integers(2, 5, 1 + number % 3).tolist()] for number in range(24)]
    samples = Samples(
        names=("a0", "a1", "a2"),
        slots_S=np.repeat([0, 1, 2], 8),
        prompts=[[5, 6, 7 + number // 4, 9] for number in range(24)],  # four completions of each
        completions=completions,
        engine_logprobs=[rng.uniform(-9, -7, len(completion)) for completion in completions],
        advantages_S=np.where(np.arange(24) % 8 == 3, 0.0, rng.normal(size=24)),
        tokens_N=np.full(3, 32.0),
    )
    objective = Objective(entropy_bonus=0.0, importance_cap=2.0)
    base = load_model(str(SEED_MODEL), "cpu", "float32")
    lora = attach(base, update_bench.TARGETS, 4, 4, 1)
    stack = [
        {name: array + rng.normal(0, 0.02, array.shape).astype(np.float32) for name, array in weights.items()}
        for weights in new_adapters(lora.shapes(), 4, 3)
    ]
    lora.load(stack)
    TorchTrainer(lora, 0, Settings(objective, row_tokens=1024)).accumulate(samples, 512)
    ours = [unflatten(lora, gradient_P) for gradient_P in lora.gradients_NP.numpy()]
    rival = PeftInTurn(load_model(str(SEED_MODEL), "cpu", "float32"), update_bench.TARGETS, 4, stack, objective)
    for expected, found in zip(ours, rival.gradients(samples, 512), strict=True):
        assert found.keys() == expected.keys()
        largest = max(np.abs(value).max() for value in expected.values())
        assert largest > 0
        for name, value in expected.items():
            np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.timeout(300)
def test_one_rival_alone_can_be_asked_for(tmp_path: Path) -> None:
    samples = _stored_samples(tmp_path)
    options = ["--model", str(SEED_MODEL), "--device", "cpu", "--rank", "2", "--repeats", "1", "--threads", "1"]
    lines = list(update_bench.main([*options, "--samples", str(samples), "--rival", "peft_set_adapter"]))
    assert [(line["role"], line["against"]) for line in lines] == [(role, "peft_set_adapter") for role in ("teacher", "student")]


def test_sides_with_different_gradients_are_not_compared() -> None:
    check_norms("rival", {"student": [1.0, 2.0]}, {"student": [1.04, 1.92]})
    for other in (1.89, float("nan")):
        with pytest.raises(RuntimeError, match="rival has other gradients of the student role than our trainer"):
            check_norms("rival", {"student": [1.0, 2.0]}, {"student": [1.0, other]})


@pytest.mark.timeout(300)
def test_an_update_of_groups_computes_a_prompt_once() -> None:
    options = ["--device", "cpu", "--rank", "2", "--adapters", "2", "--tokens", "", "--total", "200", "--repeats", "1"]
    options += ["--threads", "1", "--group-size", "4", "--prompt-tokens", "20", "--response-tokens", "6"]
    arguments = update_bench.parser("update", "").parse_args([])
    first, *_ = update_bench.main(options)
    lengths = {"group_size": 4, "prompt_tokens": 20, "response_tokens": 6}
    assert first.items() >= (lengths | {"adapters": 2, "tokens_per_adapter": 100, "against": "peft_set_adapter"}).items()
    arguments.__dict__.update(lengths)
    samples = update_bench._samples(arguments, 2, 8, 200)
    rows = pack_rows(samples.slots_S.tolist(), samples.prompts, samples.completions, 1024)
    assert [(row.slot, len(row.samples), row.length) for row in rows] == [(slot, 4, 20 + 4 * 5) for slot in (0, 1, 0, 1)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--total", "1024"], "--total 1024: 32 adapters need 16384, 512 tokens each for one group"),
        (["--tokens", "2560,511"], "--tokens 511: a group has 512 tokens"),
        (["--adapters", "8,0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_what_has_no_room_for_a_group_is_refused_and_the_defaults_make_room(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--group-size", "8"]  # rows of 64 tokens
    with pytest.raises(SystemExit) as ended:
        list(update_bench.main([*lengths, *options]))
    assert ended.value.code == 2 and said in capsys.readouterr().err
    asked = update_bench._asked(lengths)
    assert (asked.total, asked.tokens) == (512 * 32, [512, 640, 2560])


@pytest.mark.parametrize("option", ["--group-size", "--prompt-tokens", "--response-tokens"])
def test_lengths_of_no_tokens_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        list(update_bench.main([option, "0"]))
    assert ended.value.code == 2 and "'0' is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_population_is_measured_beside_a_single_agent_with_as_many_prompts() -> None:
    options = ["--config", "chaos", "--generations", "1", "--rounds", "1", "--set", "sandbox.kind=local"]
    *lines, last = population_bench.main(options)
    found = {line["name"]: line["value"] for line in lines}
    assert 0.5 < found["population.generated"] / found["single.generated"] < 2 and found["population.trained"] > 0
    assert last["against"] == "single" and last["ratio"] > 0
