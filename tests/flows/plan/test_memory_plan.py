"""What the plan says of memory: its terms are counted on the trainer itself, with tensors that hold nothing."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Qwen2Config

from flows.config import PROJECT, load
from flows.plan.decoder_shape import KNOWN, DecoderShape, adapter_parameters
from flows.plan.estimate import plan
from flows.plan.memory_plan import (
    CHUNK,
    PASS,
    REDUCED,
    VLLM_PASS,
    beside_vllm,
    cache_bytes,
    engine_needs,
    settled_for,
    shared_process,
    update_peaks,
)
from flows.settings import Learning
from stages.core.engines.decoding import PASS_BYTES
from stages.core.training import head_loss, torch_trainer
from stages.core.training.grouped_lora import attach
from stages.core.training.head_loss import CHUNK_ELEMENTS
from stages.core.training.loss import Objective
from stages.core.training.packing import Samples, lay_out, micro_batches, pack_rows
from stages.core.training.settings import Settings
from stages.core.training.torch_trainer import TokenValues, TorchTrainer

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Living(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, and their peak; those in `known` count nothing."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, storage._cdata)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


class Nothing(TokenValues):
    """Measures nothing: a fake tensor has no values."""

    def add(self, slots_T: np.ndarray, **values_T: torch.Tensor) -> None:
        pass


def counted(shape: DecoderShape, rank: int, adapters: int, budget: int, lengths: tuple[int, int], checkpointing: bool) -> Any:
    """The peak bytes of the passes over two equal, full micro-batches, the positions of one, and those of a row."""
    prompt, completion = lengths
    rows, attempts = max(1, budget // (prompt + 8 * (completion - 1))), 8
    slots = np.sort(np.repeat(np.arange(rows) % adapters, attempts))
    prompts = [[1 + row] * prompt for row in range(rows) for _ in range(attempts)]
    completions, samples = [[1 + number % attempts] + [9] * (completion - 1) for number in range(len(slots))], len(slots)
    columns = Samples(
        tuple(f"a{n}" for n in range(adapters)),
        slots,
        prompts,
        completions,
        [np.zeros(completion)] * samples,
        np.ones(samples),
        np.bincount(slots, minlength=adapters) * float(completion),
    )
    batch = lay_out(
        micro_batches(pack_rows(list(slots), prompts, completions, 1 << 20), budget)[0], prompts, completions, adapters, 0
    )
    config = Qwen2Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.feed_forward,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    settings = Settings(Objective(entropy_bonus=0.0, importance_cap=2.0), gradient_checkpointing=checkpointing)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        lora = attach(model, TARGETS, rank, rank, adapters)
        trainer = TorchTrainer(lora, 0, settings)
        lora.checkpoint(checkpointing)
        with Living([*model.parameters(), *model.buffers(), lora.parameters_NP]) as living:
            for _ in range(2):  # the second one finds the gradients of the first
                trainer._loss(batch, columns, Nothing()).backward()
    return living.peak, batch.ids_BL.size, batch.ids_BL.shape[1]


SIZES = [
    ("Qwen2.5-Coder-0.5B", 16, 4, 2048, (200, 20), False),
    ("Qwen2.5-Coder-1.5B", 32, 8, 8192, (500, 100), False),
    ("Qwen2.5-Coder-1.5B", 32, 8, 8192, (500, 100), True),
    ("Qwen2.5-Coder-7B", 32, 8, 16384, (400, 1999), True),  # one row that fills the pass, here and below
    ("Qwen2.5-Coder-7B", 32, 2, 32768, (800, 3997), True),
]


# a few rows of logits at a time: thousands of fake operations at the sizes of a GPU
ON_CPU = [("Qwen2.5-Coder-0.5B", 16, 4, 1024, (200, 20), False, 0)]


@pytest.mark.parametrize(
    ("name", "rank", "adapters", "budget", "lengths", "checkpointing", "reduced"),
    [*ON_CPU, *((*size, REDUCED) for size in SIZES)],
)
def test_the_terms_of_the_update_are_those_of_the_trainer(
    name: str,
    rank: int,
    adapters: int,
    budget: int,
    lengths: tuple[int, int],
    checkpointing: bool,
    reduced: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reduced:
        monkeypatch.setattr(head_loss, "BLOCK_ELEMENTS", CHUNK)  # as on a GPU
    monkeypatch.setattr(torch_trainer, "_check_model", lambda *_: None)  # it compares values, and there are none
    shape = replace(KNOWN[name], layers=KNOWN[name].layers // 2)  # they are alike, and each takes seconds
    peak, positions, row = counted(shape, rank, adapters, budget, lengths, checkpointing)
    found = update_peaks(shape, adapter_parameters(shape, TARGETS, rank), adapters, positions, 2, checkpointing, reduced, row)
    assert peak == pytest.approx(max(sum(found[point].values()) for point in found if point != "step"), rel=0.1)


def test_a_layer_whose_heads_are_wider_than_its_hidden_state_keeps_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_trainer, "_check_model", lambda *_: None)
    counts, plans = list[int](), list[float]()
    for layers in (2, 4):
        shape = DecoderShape(256, layers, 512, 16, 2, 1000, True, head_dim=32)
        peak, positions, row = counted(shape, 8, 2, 2048, (200, 20), False)
        counts.append(peak)
        found = update_peaks(shape, adapter_parameters(shape, TARGETS, 8), 2, positions, 2, False, 0, row)
        plans.append(sum(found["loss"].values()))
    assert counts[1] - counts[0] == pytest.approx(plans[1] - plans[0], rel=0.05)


def test_the_plan_s_constants_are_the_code_s() -> None:
    assert (CHUNK, PASS) == (CHUNK_ELEMENTS, PASS_BYTES)


def test_a_card_holds_vllm_s_share_and_the_trainer_in_turn() -> None:
    shape = KNOWN["Qwen2.5-Coder-7B"]
    config = settled_for(load("paper"), shape, 80e9)
    moments = {moment.name: moment for moment in beside_vllm(config, shape, 8, 80e9)}
    assert list(moments) == ["start", "wake", "rollout", "sleep", "update", "evolve"]
    rollout, update = moments["rollout"], moments["update"]
    assert rollout.parts["vLLM"] == 48e9 and "vLLM" not in update.parts
    assert rollout.parts["trainer's base"] == update.parts["trainer's base"] == 2 * shape.parameters
    assert rollout.total < update.total < 0.95 * 80e9, "the update keeps as many activations as fit"
    assert engine_needs(config, shape, 8) > 2 * shape.parameters


def test_a_processor_holds_engine_and_trainer_at_once() -> None:
    config, shape = load("laptop"), KNOWN["Qwen2.5-Coder-0.5B"]
    moments = {moment.name: moment for moment in shared_process(config, shape, 4)}
    assert list(moments) == ["start", "rollout", "update", "evolve"]
    rollout, update = moments["rollout"], moments["update"]
    assert rollout.parts["packed base"] == rollout.parts["base"] == 2 * shape.parameters
    adapters = adapter_parameters(shape, config.model.targets, config.model.rank)
    assert rollout.parts["held adapters"] == update.parts["held adapters"] == 4 * 4 * 4 * adapters, (
        "weights twice, two moments, fp32"
    )
    assert 0 < update.parts["activations"] < rollout.parts["cache"], "passes of 1,024 tokens hold less than the cache"


def test_longer_rows_have_a_larger_mask_and_a_pass_holds_the_longest_completion() -> None:
    shape = KNOWN["Qwen2.5-Coder-7B"]

    def update(*settings: str) -> dict[str, float]:
        moments = beside_vllm(load("paper", list(settings)), shape, 8, 80e9)
        return next(moment.parts for moment in moments if moment.name == "update")

    short, long = (update("learning.gradient_checkpointing=true", f"learning.row_tokens={size}") for size in (1024, 16384))
    assert (short["mask"], long["mask"]) == (2 * 16384 * 8192, 2 * 16384 * 16384)  # two rows of 8,192: one of them shared
    assert short | {"mask": 0.0} == long | {"mask": 0.0}
    small, exact = (
        update("learning.gradient_checkpointing=false", "learning.row_tokens=1024", f"learning.micro_batch_tokens={tokens}")
        for tokens in (2048, 1200 + 8096)
    )
    assert small | {"mask": 0.0} == exact | {"mask": 0.0}, "a teacher's prompt and its longest completion are one pass"


def test_vllm_s_pass_is_the_engine_s_own_and_no_window_changes_it() -> None:
    text = (PROJECT / "stages" / "core" / "engines" / "vllm_engine.py").read_text()
    assert f"batch_tokens: int = {VLLM_PASS}  #" in text, "vLLM is not installed here"
    shape = KNOWN["Qwen2.5-Coder-1.5B"]
    short, long = (engine_needs(load("one-gpu", [f"engine.window={window}"]), shape, 8) for window in (8192, 32768))
    assert long - short == (32768 - 8192) * cache_bytes(shape, 2)


def test_auto_recomputes_only_where_activations_do_not_fit() -> None:
    def learning(name: str, memory: float, *settings: str) -> Learning:
        config = load(name, ["learning.gradient_checkpointing=auto", *settings])
        shape = KNOWN["Qwen2.5-Coder-7B" if name.startswith("paper") else "Qwen2.5-Coder-1.5B"]
        return settled_for(config, shape, memory).learning

    def chosen(name: str, memory: float, *settings: str) -> object:
        return learning(name, memory, *settings).gradient_checkpointing

    def above(name: str, memory: float) -> int:
        return learning(name, memory).recompute_above

    assert [chosen("paper", size) for size in (24e9, 80e9, 141e9)] == [True, True, False]
    assert [above("paper", size) for size in (24e9, 80e9, 141e9)] == [0, 7936, 0], "a card of 24 GB has no room for any"
    assert [chosen("one-gpu", size) for size in (24e9, 80e9)] == [True, False]
    alone = ("engine.kind=transformers", "engine.python=''")
    assert [chosen("one-gpu", size, *alone) for size in (24e9, 40e9)] == [True, False]
    assert chosen("one-gpu", 0, "model.device=cpu") is chosen("one-gpu", 24e9, "model.device=cpu") is False
    for choice in (True, False):
        config = load("one-gpu", [f"learning.gradient_checkpointing={str(choice).lower()}"])
        assert settled_for(config, KNOWN["Qwen2.5-Coder-1.5B"], 24e9) is config


def test_the_plan_says_what_auto_means_on_each_card() -> None:
    own = load("one-gpu", ["engine.kind=transformers", "engine.python=''"])
    for config, above in ((load("one-gpu"), "4,608"), (own, "5,120")):
        line = f"recomputation    above {above} tokens on 24 GB, no on 80 GB: learning.gradient_checkpointing is auto"
        lines = plan(config).splitlines()
        assert line in lines and len([one for one in lines if " update " in one and one.startswith("memory")]) == 2
    assert "recomputation" not in plan(load("one-gpu", ["learning.gradient_checkpointing=true"])) + plan(load("laptop"))
    same = plan(load("one-gpu", ["engine.kind=transformers", "engine.python=''", "learning.gradient_checkpointing=true"]))
    assert "memory           update " in same


def test_only_cards_on_which_every_moment_fits_are_named() -> None:
    assert plan(load("paper")).count("memory 24 GB") == 6
    assert "fits             1 x 80 GB" in plan(load("paper")).splitlines()
    assert "fits             1 x 24 GB, 1 x 80 GB" in plan(load("one-gpu")).splitlines()
    small = plan(load("one-gpu", ["engine.memory_share=0.1"]))
    assert "vLLM's share of 0.1 is" in small and "fits             1 x 80 GB" in small.splitlines()
    large = plan(load("one-gpu", ["learning.gradient_checkpointing=false", "learning.micro_batch_tokens=65536"]))
    assert "no card of 24 GB or 80 GB" in large
    assert "fits" not in plan(load("laptop"))
