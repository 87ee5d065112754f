"""The transformers engine against a naive decoder that runs one request at a time without a cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from stages.core.engines import decoding
from stages.core.engines.hf_engine import HFEngine, load_model
from stages.core.engines.protocol import Completion, Request, before_stop
from stages.core.engines.shared_prompts import SharedPrompts
from stages.core.training.grouped_lora import GroupedLoRA, attach
from tests.stages.core.training.test_grouped_lora import TARGETS, random_weights, tiny

SEED_MODEL = Path(__file__).resolve().parents[4] / "infra" / "models" / "seed"
END = 1
WEIGHT_SCALE = 3  # large enough that the adapters' completions differ


class Letters:
    """A tokenizer of single characters."""

    eos_token_id = END

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def encode(self, text: str) -> list[int]:
        return [(ord(letter) - 95) % 31 for letter in text]

    def decode(self, token_ids: Sequence[int], **_: bool) -> str:
        return "".join(chr(token + 95) for token in token_ids)


def test_a_loaded_model_does_not_use_cudnn_s_attention() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        load_model(str(SEED_MODEL), "cpu", "float32")
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(
    ("device", "said", "asked"),
    [
        ("cuda", "", True),
        ("cuda:1", "", True),
        ("cpu", "", False),
        ("cuda", "PYTORCH_ALLOC_CONF", False),
        ("cuda", "PYTORCH_CUDA_ALLOC_CONF", False),
    ],
)
def test_gpu_memory_grows_unless_the_user_has_said_how(
    device: str, said: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if said:
        monkeypatch.setenv(said, "backend:native")
    settings, events = list[str](), list[str]()

    class Model:
        def to(self, device: str) -> "Model":
            events.append(f"{len(settings)} settings before the first allocation")
            return self

        def eval(self) -> "Model":
            return self

    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: Model())
    load_model("any", device, "float32")
    assert settings == ["expandable_segments:True"] * asked
    assert events == [f"{len(settings)} settings before the first allocation"]


@pytest.fixture(scope="module")
def lora() -> GroupedLoRA:
    return attach(tiny(dtype=torch.float32), TARGETS, 2, 4, 1)


@pytest.fixture(scope="module")
def engine(lora: GroupedLoRA) -> HFEngine:
    adapters = {f"s{n}": {name: WEIGHT_SCALE * array for name, array in random_weights(lora, n).items()} for n in range(3)}
    return HFEngine(lora, Letters(), adapters, batch_tokens=160)


def requests(num: int = 16, repeats: int = 2, max_new_tokens: int = 8) -> list[Request]:
    rng = np.random.default_rng(3)
    prompts = [tuple(rng.integers(2, 31, rng.integers(1, 9)).tolist()) for _ in range(num // repeats)]
    adapters = ["s0", "s1", None, "s2"]
    return [Request(prompts[i // repeats], adapters[(i // repeats) % 4], 100 + i, max_new_tokens + i % 3) for i in range(num)]


def naive(engine: HFEngine, lora: GroupedLoRA, request: Request, temperature: float) -> Completion:
    """One token at a time from a full forward pass; the definition of what the engine must return."""
    weights = engine._base if request.adapter_id is None else engine._adapters[request.adapter_id]
    lora.load([weights])
    uniforms, ids, logprobs = np.random.default_rng(request.seed).random(request.max_new_tokens), list(request.prompt_ids), []
    for uniform in uniforms:
        with torch.no_grad(), lora.routed([1]):
            logits = lora.model(torch.tensor([ids])).logits[0, -1]
        row = (logits / (temperature or 1)).log_softmax(-1)
        cumulative = row.double().exp().cumsum(0)
        token = int(row.argmax()) if temperature == 0 else int((cumulative > uniform * cumulative[-1]).nonzero()[0])
        ids.append(token)
        logprobs.append(float(row[token]))
        if token == END:
            break
    written = ids[len(request.prompt_ids) :]
    return Completion(tuple(written), tuple(logprobs), written[-1] != END)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_equals_the_naive_decoder(engine: HFEngine, lora: GroupedLoRA, temperature: float) -> None:
    asked = requests()
    for request, completion in zip(asked, engine.generate(asked, temperature), strict=True):
        expected = naive(engine, lora, request, temperature)
        assert (completion.token_ids, completion.truncated) == (expected.token_ids, expected.truncated)
        np.testing.assert_allclose(completion.logprobs, expected.logprobs, atol=2e-5)


def test_memory_is_bounded_however_many_prompts_there_are(lora: GroupedLoRA) -> None:
    """Prompts are read, and distributions drawn from, some at a time; the head gets contiguous rows, which it need not copy."""
    weights = {"s0": random_weights(lora, 0), "s1": random_weights(lora, 1)}
    asked = [Request((2 + n % 5, *range(2, 9)), f"s{n % 2}", n, 6) for n in range(40)]
    whole = HFEngine(lora, Letters(), weights).generate(asked, 1.0)
    bound = 8 * 4 * 40 * 3  # three prompts of eight tokens, 40 wide, in float32
    widest, rows, contiguous = [], [], []
    head, layer = lora.model.get_output_embeddings(), lora.model.get_submodule("model.layers.0.mlp.down_proj")
    hooks = [
        layer.register_forward_pre_hook(lambda _, given: widest.append(given[0].numel() * 4)),
        head.register_forward_pre_hook(lambda _, given: rows.append(len(given[0]))),
        head.register_forward_pre_hook(lambda _, given: contiguous.append(given[0].is_contiguous())),
    ]
    bounded = HFEngine(lora, Letters(), weights, pass_bytes=bound).generate(asked, 1.0)
    for hook in hooks:
        hook.remove()
    assert [one.token_ids for one in bounded] == [one.token_ids for one in whole]
    assert max(rows[:4]) == 3 and len(rows) > 5 and max(widest[:4]) <= bound
    assert all(contiguous)


def test_a_large_pass_over_prompts_is_read_in_parts(lora: GroupedLoRA) -> None:
    """One pass of 12,000 tokens is read by halves, with the same completions as prompts that are read alone."""
    engine = HFEngine(lora, Letters(), {"s0": random_weights(lora, 0), "s1": random_weights(lora, 1)})
    rng = np.random.default_rng(5)
    asked = [Request(tuple(rng.integers(2, 31, 28 + n % 3).tolist()), f"s{n % 2}", n, 2) for n in range(400)]
    found, passes = positions_computed(lora, engine, asked)
    assert passes[:2] == [(200, 30), (200, 30)]
    for request, completion in list(zip(asked, found, strict=True))[::80]:
        alone = naive(engine, lora, request, 1.0)
        assert completion.token_ids == alone.token_ids
        np.testing.assert_allclose(completion.logprobs, alone.logprobs, atol=2e-5)


def test_short_prompts_are_not_padded_to_long_ones(lora: GroupedLoRA) -> None:
    """300 prompts of 10 tokens and 60 of 40 are two passes; a few short ones join the long ones."""
    engine = HFEngine(lora, Letters(), {"s0": random_weights(lora, 0)})
    rng = np.random.default_rng(6)

    def asked(short: int) -> list[Request]:
        lengths = [10] * short + [40] * 60
        return [Request(tuple(rng.integers(2, 31, length).tolist()), "s0", n, 2) for n, length in enumerate(lengths)]

    many, few = asked(300), asked(8)
    found, passes = positions_computed(lora, engine, many)
    assert passes[:2] == [(300, 10), (60, 40)]
    assert positions_computed(lora, engine, few)[1][0] == (68, 40)
    for request, completion in list(zip(many, found, strict=True))[::60]:
        assert completion.token_ids == naive(engine, lora, request, 1.0).token_ids


def positions_computed(
    lora: GroupedLoRA, engine: HFEngine, asked: list[Request]
) -> tuple[list[Completion], list[tuple[int, ...]]]:
    """Completions, and the rows and new positions of every pass through the model."""
    passes: list[tuple[int, ...]] = []
    layer = lora.model.get_submodule("model.layers.0")
    hook = layer.register_forward_pre_hook(lambda _, given: passes.append(tuple(given[0].shape[:2])))
    try:
        return engine.generate(asked, 1.0), passes
    finally:
        hook.remove()


def test_what_prompts_of_an_adapter_begin_with_is_computed_once(engine: HFEngine, lora: GroupedLoRA) -> None:
    rng = np.random.default_rng(4)
    kinds = [tuple(rng.integers(2, 31, 24).tolist()) for _ in range(2)]
    tails = [(*rng.integers(2, 31, 1 + n % 4).tolist(), 2 + n) for n in range(6)]
    asked = [Request((*kinds[n % 2], *tail), f"s{n % 3}", 10 * n + k, 6) for n in range(12) for k, tail in enumerate(tails)]
    completions, passes = positions_computed(lora, HFEngine(lora, Letters(), engine._adapters), asked)
    assert passes[0] == (6, 24)  # three adapters, two kinds
    assert sum(rows * length for rows, length in passes if length > 1) == 6 * 24 + 36 * 5  # 36 different prompts
    for request, completion in zip(asked, completions, strict=True):
        expected = naive(engine, lora, request, 1.0)
        assert completion.token_ids == expected.token_ids
        np.testing.assert_allclose(completion.logprobs, expected.logprobs, atol=2e-5)


def test_rows_are_filled_again_as_others_end(engine: HFEngine, lora: GroupedLoRA) -> None:
    """Three requests in four stop early: waiting for the longest of each batch would leave most rows idle."""
    rng, early = np.random.default_rng(5), tuple(chr(95 + token) for token in range(2, 16))
    prompts = [tuple(rng.integers(2, 31, 5).tolist()) for _ in range(48)]
    asked = [Request(prompt, f"s{n % 3}", n, 40, early if n % 4 else ()) for n, prompt in enumerate(prompts)]
    refilled = HFEngine(lora, Letters(), engine._adapters, batch_tokens=8 * 45)
    completions, passes = positions_computed(lora, refilled, asked)
    steps = [rows for rows, length in passes if length == 1]
    tokens = sum(len(completion.token_ids) for completion in completions)
    assert max(steps) == 8 and sum(steps) < 1.3 * tokens
    assert len(steps) < 0.7 * 6 * 40  # six batches of eight rows, one after the other
    assert completions == refilled.generate(asked, 1.0)
    alone = HFEngine(lora, Letters(), engine._adapters, batch_tokens=45)
    assert [one.token_ids for one in alone.generate(asked, 1.0)] == [one.token_ids for one in completions]


def test_keys_and_values_are_not_copied_for_every_head(engine: HFEngine, lora: GroupedLoRA) -> None:
    """Three query heads read one key-value head: a step makes no tensor as large as three times the keys that it sees."""

    class Largest(TorchDispatchMode):
        entries = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and not out._is_view() and out.shape[-2:] == (61, 8):
                self.entries = max(self.entries, out.numel())
            return out

    with Largest() as copied:
        engine.generate([Request((3,) * 60, "s1", seed, 2) for seed in range(2)], 1.0)
    assert copied.entries <= 2 * 61 * 8


def test_the_head_reads_one_contiguous_row_per_prompt(engine: HFEngine, lora: GroupedLoRA) -> None:
    """Of a slice, torch would make a batched product with one copy of the head per row: 54 GB for 200 prompts of the 0.5B."""
    given: list[torch.Tensor] = []
    hook = lora.model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        engine.generate([Request((3, 4 + row, 5, 6), "s1", row, 3) for row in range(5)], 1.0)
    finally:
        hook.remove()
    assert given[0].shape[:2] == (5, 1)
    assert all(hidden.is_contiguous() for hidden in given)


def test_shards_of_the_requests_are_completed_as_the_whole_is(engine: HFEngine) -> None:
    asked = requests()
    whole = engine.generate(asked, 1.0)
    shards = [one for part in (asked[:5], asked[5:11], asked[11:]) for one in engine.generate(part, 1.0)]
    assert [one.token_ids for one in shards] == [one.token_ids for one in whole]
    for one, other in zip(shards, whole, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


def test_repeats_bit_for_bit_and_leaves_the_global_generator_alone(engine: HFEngine) -> None:
    before = torch.random.get_rng_state()
    first = engine.generate(requests(), 1.0)
    assert engine.generate(requests(), 1.0) == first
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {completion.truncated for completion in first} == {True, False}
    assert all(isinstance(token, int) for completion in first for token in completion.token_ids)


def test_a_draw_does_not_depend_on_the_batch(engine: HFEngine) -> None:
    asked = requests()
    together, alone = engine.generate(asked, 1.0), [engine.generate([request], 1.0)[0] for request in asked]
    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]


def test_sampling_follows_the_distribution(engine: HFEngine, lora: GroupedLoRA) -> None:
    num = 4000
    sampled = engine.generate([Request((5, 6, 7), "s0", seed, 1) for seed in range(num)], 1.3)
    share_V = np.bincount([completion.token_ids[0] for completion in sampled], minlength=31) / num
    lora.load([engine._adapters["s0"]])
    with torch.no_grad(), lora.routed([1]):
        expected_V = (lora.model(torch.tensor([[5, 6, 7]])).logits[0, -1] / 1.3).softmax(-1).numpy()
    assert np.abs(share_V - expected_V).max() < 4 * np.sqrt(0.25 / num)


def test_adapters_are_exchanged_between_calls(lora: GroupedLoRA) -> None:
    weights = [{name: WEIGHT_SCALE * array for name, array in random_weights(lora, n).items()} for n in (7, 8)]
    engine = HFEngine(lora, Letters(), {"a": weights[0]})
    asked = [Request((4, 5), "a", seed, 8) for seed in range(8)]
    first = engine.generate(asked, 1.0)
    engine.set_adapters({"a": weights[1]})
    assert engine.generate(asked, 1.0) != first
    engine.set_adapters({"other": weights[1], "a": weights[0]})
    assert [c.token_ids for c in engine.generate(asked, 1.0)] == [c.token_ids for c in first]


def test_the_window_ends_a_completion(engine: HFEngine) -> None:
    (completion,) = engine.generate([Request((3,) * 60, "s1", 1, 50)], 1.0)
    assert len(completion.token_ids) <= engine.window - 60


def test_a_smaller_window_is_kept_and_a_larger_one_is_the_model_s(lora: GroupedLoRA, engine: HFEngine) -> None:
    small, large = (HFEngine(lora, Letters(), {}, window=window) for window in (16, 1000))
    assert large.window == engine.window and small.window == 16
    for completion in small.generate([Request((3,) * 10, None, seed, 50) for seed in range(8)], 1.0):
        assert len(completion.token_ids) <= 6
    with pytest.raises(ValueError, match="prompt of 16 tokens, window 16"):
        small.generate([Request((3,) * 16, None, 1, 1)], 1.0)


def test_bad_requests_are_named(engine: HFEngine) -> None:
    for request in [Request((), "s0", 1, 4), Request((2,) * 64, "s0", 1, 4), Request((2,), "s0", 1, 0)]:
        with pytest.raises(ValueError, match="prompt of"):
            engine.generate([request], 1.0)
    with pytest.raises(ValueError, match="'gone' is not loaded"):
        engine.generate([Request((2,), "gone", 1, 4)], 1.0)
    assert engine.generate([], 1.0) == []


def test_text_goes_both_ways(engine: HFEngine) -> None:
    assert engine.decode([*engine.encode("abc"), END]) == "abc"


def test_a_stop_sequence_ends_a_completion_and_is_no_cut(engine: HFEngine) -> None:
    plain = engine.generate(requests(max_new_tokens=12), 0.7)
    stops = [engine.decode(one.token_ids)[3:5] for one in plain]
    asked = [
        replace(request, stops=("never", stop) if len(stop) == 2 else ("never",))
        for request, stop in zip(requests(max_new_tokens=12), stops, strict=True)
    ]
    ended = 0
    for stop, whole, found in zip(stops, plain, engine.generate(asked, 0.7), strict=True):
        text = engine.decode(whole.token_ids)
        if len(stop) < 2:  # it ended by itself before
            assert found.token_ids == whole.token_ids
            continue
        written = engine.decode(found.token_ids)
        assert written == text[: text.index(stop) + 2] and not found.truncated
        assert found.logprobs == pytest.approx(whole.logprobs[: len(found.token_ids)], abs=2e-5)
        assert before_stop(written, ("never", stop)) == text[: text.index(stop)]
        ended += 1
    assert ended >= 10


def test_each_completion_is_reported_once_when_it_ends(lora: GroupedLoRA, engine: HFEngine) -> None:
    asked = requests(24, max_new_tokens=6)
    heard: list[tuple[int, Completion]] = []
    found = engine.generate(asked, 1.0, lambda *ended: heard.append(ended))
    assert found == engine.generate(asked, 1.0), "a callback changes nothing"
    assert sorted(place for place, _ in heard) == list(range(24))
    assert all(completion == found[place] for place, completion in heard)
    places = [place for place, _ in heard]
    assert places != sorted(places), "in the order in which they end"
    one_batch = HFEngine(lora, Letters(), engine._adapters, batch_tokens=10_000)
    order: list[tuple[int, Completion]] = []
    one_batch.generate(asked, 1.0, lambda *ended: order.append(ended))
    lengths = [len(completion.token_ids) for _, completion in order]
    assert lengths == sorted(lengths), "rows of one batch step together"


@pytest.mark.parametrize("shares", [True, False])
def test_rows_of_a_prompt_give_what_they_give_alone(
    engine: HFEngine, lora: GroupedLoRA, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they share their prompt or have a copy each; some end early, and other prompts take their places."""
    monkeypatch.setattr(decoding, "pays", lambda rows: shares)
    added: list[int] = []
    add = SharedPrompts.add
    monkeypatch.setattr(SharedPrompts, "add", lambda shared, count: added.append(count) or add(shared, count))
    rng, early = np.random.default_rng(6), tuple(chr(95 + token) for token in range(2, 16))
    prompts = [tuple(rng.integers(2, 31, 3 + n).tolist()) for n in range(10)]
    asked = [
        Request(prompt, f"s{n % 3}", 10 * n + k, 12, early if k else ())
        for n, prompt in enumerate(prompts)
        for k in range(1 + n % 4)
    ]
    refilled = HFEngine(lora, Letters(), engine._adapters, batch_tokens=16 * 24)
    completions = refilled.generate(asked, 1.0)
    assert (len(added) > 1 and sum(added) == 10) if shares else not added
    for request, completion in zip(asked, completions, strict=True):
        alone = naive(engine, lora, request, 1.0)
        text = before_stop("".join(chr(95 + token) for token in alone.token_ids), request.stops)
        kept = completion.token_ids[: len(text)]
        assert kept == alone.token_ids[: len(kept)] and len(kept) == len(text)
        np.testing.assert_allclose(completion.logprobs, alone.logprobs[: len(completion.logprobs)], atol=2e-5)
