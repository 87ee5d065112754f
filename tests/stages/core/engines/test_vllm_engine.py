"""vLLM on the CPU against the transformers engine, in vLLM's own environment; skipped where `make vllm` has not been run."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from stages.core.engines.hf_engine import HFEngine, load_model, load_tokenizer
from stages.core.engines.protocol import Request, before_stop
from stages.core.lora.adapter_files import parameter_shapes
from stages.core.prompts.compact import OUTPUT
from stages.core.prompts.styles import Kind
from stages.core.prompts.trace import TracePrompts
from stages.core.training.grouped_lora import GroupedLoRA, attach
from tests.stages.core.training.test_grouped_lora import TARGETS
from tests.support.cards import machine

ROOT = Path(__file__).resolve().parents[4]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
SEED_MODEL, REASONER = ROOT / "infra" / "models" / "seed", ROOT / "infra" / "models" / "reasoner"
RANK, ALPHA, WINDOW = 4, 4.0, 256  # a rank that vLLM itself does not take
STOPS = ("e", "1")
DRIFT = 5e-3  # nats, float32 on both sides: the stated threshold

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.is_file(), reason="no .venv-vllm: run make vllm"),
]


@pytest.fixture(scope="module")
def lora() -> GroupedLoRA:
    return attach(load_model(str(SEED_MODEL), "cpu", "float32"), TARGETS, RANK, ALPHA, 1)


@pytest.fixture(scope="module")
def weights(lora: GroupedLoRA) -> dict[str, dict[str, np.ndarray]]:
    """Three adapters strong enough to change what is said."""
    made = {}
    for n, name in enumerate(("a", "b", "c")):
        rng = np.random.default_rng(n)
        shapes = parameter_shapes(lora.shapes(), RANK)
        made[name] = {key: rng.normal(0, 0.05, shape).astype(np.float32) for key, shape in shapes.items()}
    return made


def requests(seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(8, 200, rng.integers(5, 40)).tolist()) for _ in range(8)]
    return [Request(prompt, ("t0", "s0", None)[i % 3], 10 * i + k, 16) for i, prompt in enumerate(prompts) for k in range(2)]


@pytest.fixture(scope="module")
def answered(weights: dict, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Greedy with adapters a and b; then sampled; then with t0's weights replaced by c under the same id.

    Then the first turn with stop sequences, and the first turn again while every completion is reported as it ends.
    """
    folder = tmp_path_factory.mktemp("vllm")
    for name, arrays in weights.items():
        save_file(arrays, folder / f"{name}.safetensors")
    asked = [[list(r.prompt_ids), r.adapter_id, r.seed, r.max_new_tokens] for r in requests()]
    turns = [({"t0": "a", "s0": "b"}, 0.0), ({"t0": "a", "s0": "b"}, 1.0), ({"t0": "c", "s0": "b"}, 1.0)]
    spec = {
        "model": str(SEED_MODEL),
        "rank": RANK,
        "alpha": ALPHA,
        "window": WINDOW,
        "adapters": {name: str(folder / f"{name}.safetensors") for name in weights},
        "turns": [{"adapters": adapters, "requests": asked, "temperature": t} for adapters, t in turns],
    }
    spec["turns"] += [spec["turns"][0] | more for more in ({"stops": [list(STOPS)] * len(asked)}, {"early": True})]
    return probed(spec, folder, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})


def probed(spec: dict, folder: Path, more: dict[str, str]) -> dict:
    """What vLLM answers in its own interpreter."""
    (folder / "spec.json").write_text(json.dumps(spec))
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # Intel's OpenMP spins between regions by default, which starves everything else on a small machine
    calm = {"KMP_BLOCKTIME": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    probe = ROOT / "tests" / "support" / "vllm_probe.py"
    command = [str(PYTHON), str(probe), str(folder / "spec.json"), str(folder / "out.json")]
    environment = os.environ | quiet | calm | more
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "out.json").read_text())


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The reasoner's traces up to a marker, from an engine in a process of its own, as in a run, which is killed at the end."""
    asked = [[list(request.prompt_ids), None, request.seed, request.max_new_tokens] for request in deductions()]
    turn = {"adapters": {}, "requests": asked, "temperature": 0.0, "stops": [[OUTPUT]] * len(asked)}
    spec = {"model": str(REASONER), "rank": RANK, "alpha": ALPHA, "window": WINDOW, "adapters": {}, "turns": [turn], "kill": True}
    return probed(spec, tmp_path_factory.mktemp("traced"), {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})


def deductions() -> list[Request]:
    """Two tasks for the reasoner, whose answers have a marker between the trace and the output."""
    tokenizer, write = load_tokenizer(str(REASONER)), TracePrompts().solve
    programs = ("def f(x):\n    y = x + 3\n    z = y * 2\n    return z", "def f(a):\n    b = a + 1\n    return b")
    prompts = [tuple(tokenizer.encode(write(Kind.DEDUCTION, program, ("4",), (), ""))) for program in programs]
    return [Request(prompt, None, 0, 60, (OUTPUT,)) for prompt in prompts]


def rescored(lora: GroupedLoRA, adapters: dict, request: Request, token_ids: list[int]) -> np.ndarray:
    """Log-probabilities of given tokens by a plain forward pass."""
    import torch

    engine = HFEngine(lora, load_tokenizer(str(SEED_MODEL)), adapters)
    lora.load([engine._base if request.adapter_id is None else adapters[request.adapter_id]])
    with torch.no_grad(), lora.routed([1]):
        logprobs = lora.model(torch.tensor([[*request.prompt_ids, *token_ids]])).logits[0].log_softmax(-1)
    places = torch.arange(len(token_ids)) + len(request.prompt_ids) - 1
    return logprobs[places, torch.tensor(token_ids)].numpy()


def test_greedy_completions_are_those_of_the_transformers_engine(lora: GroupedLoRA, weights: dict, answered: dict) -> None:
    engine = HFEngine(lora, load_tokenizer(str(SEED_MODEL)), {"t0": weights["a"], "s0": weights["b"]})
    expected = [list(completion.token_ids) for completion in engine.generate(requests(), 0.0)]
    same = [found[0] == wanted for found, wanted in zip(answered["answers"][0], expected, strict=True)]
    assert np.mean(same) >= 0.9  # ties may fall either way


@pytest.mark.parametrize(("turn", "teacher"), [(1, "a"), (2, "c")])
def test_log_probabilities_are_the_trainers_for_every_adapter(
    lora: GroupedLoRA, weights: dict, answered: dict, turn: int, teacher: str
) -> None:
    adapters = {"t0": weights[teacher], "s0": weights["b"]}
    for request, (token_ids, logprobs, truncated) in zip(requests(), answered["answers"][turn], strict=True):
        assert np.abs(rescored(lora, adapters, request, token_ids) - logprobs).max() < DRIFT
        assert truncated == (token_ids[-1] != 1) and len(token_ids) <= request.max_new_tokens


def test_new_weights_under_an_old_id_are_not_taken_from_the_cache(answered: dict) -> None:
    changed = [a != b for a, b, r in zip(*answered["answers"][1:3], requests(), strict=True) if r.adapter_id == "t0"]
    kept = [a[0] == b[0] for a, b, r in zip(*answered["answers"][1:3], requests(), strict=True) if r.adapter_id != "t0"]
    assert all(changed) and np.mean(kept) >= 0.9
    assert answered["versions"].keys() == {"vllm", "runner"} and answered["versions"]["runner"] in ("V1", "V2")
    assert answered["published"] == 2  # what is no longer served is gone from the memory file system


def test_text_goes_both_ways(answered: dict) -> None:
    assert answered["text"] == "def f(x):\n    return x"


def test_stop_sequences_end_a_completion(answered: dict) -> None:
    tokenizer = load_tokenizer(str(SEED_MODEL))
    stopped = 0
    for (whole, _, cut), (token_ids, logprobs, truncated) in zip(answered["answers"][0], answered["answers"][3], strict=True):
        text = tokenizer.decode(token_ids)
        assert before_stop(tokenizer.decode(token_ids[:-1]), STOPS) == tokenizer.decode(token_ids[:-1])
        if before_stop(text, STOPS) == text:
            assert (token_ids, truncated) == (whole, cut)
        else:
            assert (token_ids, truncated) == (whole[: len(token_ids)], False)
            stopped += 1
        assert len(logprobs) == len(token_ids)
    assert stopped >= 4


def test_each_completion_is_reported_when_it_ends_and_none_changes(answered: dict) -> None:
    found, heard = answered["answers"][4], answered["reported"][4]
    assert sorted(place for place, _ in heard) == list(range(len(requests())))
    assert all(completion == found[place] for place, completion in heard)
    assert np.mean([one[0] == other[0] for one, other in zip(found, answered["answers"][0], strict=True)]) >= 0.9
    assert answered["reported"][:4] == [[]] * 4


def test_a_marker_that_is_a_special_token_ends_a_completion_as_in_the_transformers_engine(traced: dict) -> None:
    engine = HFEngine(
        attach(load_model(str(REASONER), "cpu", "float32"), TARGETS, RANK, ALPHA, 1), load_tokenizer(str(REASONER)), {}
    )
    expected = engine.generate(deductions(), 0.0)
    assert [engine.decode(one.token_ids) for one in expected] == ["y=7\nz=14" + OUTPUT, "b=5" + OUTPUT]
    assert [answer[0] for answer in traced["answers"][0]] == [list(one.token_ids) for one in expected]
    assert [answer[2] for answer in traced["answers"][0]] == [False, False]


def test_a_call_raises_when_vllm_s_process_is_killed_and_so_does_the_next(traced: dict) -> None:
    assert traced["children"] == 1
    during, after = traced["killed"]
    for said, seconds in (during, after):
        assert said.startswith("vLLM has died (EngineCore exited with code -9): ")
        assert seconds < 30


def test_a_build_for_processors_is_refused_where_there_is_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write on the CPU without a word."""
    machine(tmp_path, monkeypatch, 1)
    config = f'load("chaos", ["engine.kind=vllm", "engine.python={PYTHON}", "model.device=auto"])'
    code = f"from flows.backend import Backend\nfrom flows.config import load\nBackend({config})._vllm_engine()"
    done = subprocess.run([str(PYTHON), "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr.splitlines()[-1].endswith("was built for a CPU and leaves the GPU unused; VLLM_BUILD=cuda make vllm")
