"""The arithmetic of an update is what torch counts of the trainer's own passes, to the last product."""

from collections.abc import Callable
from math import ceil, prod
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import AutoModelForCausalLM, Qwen2Config

from flows.config import load
from flows.plan.decoder_shape import KNOWN, DecoderShape
from flows.plan.update_flops import Rows, packed, token_flops, update_flops
from stages.core.training.grouped_lora import attach
from stages.core.training.loss import Objective
from stages.core.training.packing import Samples, pack_rows
from stages.core.training.settings import Settings
from stages.core.training.torch_trainer import TorchTrainer

SHAPE = DecoderShape(64, 4, 160, 4, 2, 512, False, head_dim=24)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK, ADAPTERS, PROMPTS, PROMPT, ATTEMPTS, RESPONSE = 8, 2, 3, 24, 8, 17
FIRST = ("q_proj", "k_proj", "v_proj")  # of the first layer, whose input is the embedding and has no gradient
aten = torch.ops.aten


def product(out: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    """FLOP of `out += left @ right`, which torch does not count in place."""
    return 2 * prod(left) * right[-1]


def forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


ATTENTION: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
}


class Whole:
    """In place of torch's tracker of modules, whose hooks do not allow a gradient inside a forward pass."""

    parents = frozenset({"Global"})

    def __enter__(self) -> "Whole":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def counted(settings: Settings, attempts: int = ATTEMPTS) -> tuple[float, float]:
    """FLOP of the trainer's passes: of attention, and of all else."""
    samples = ADAPTERS * PROMPTS * attempts
    slots = np.repeat(np.arange(ADAPTERS), PROMPTS * attempts)
    rows = Samples(
        tuple(f"a{n}" for n in range(ADAPTERS)),
        slots,
        [[1 + sample // attempts] * PROMPT for sample in range(samples)],
        [[1 + sample % attempts] + [5] * (RESPONSE - 1) for sample in range(samples)],  # no two of a prompt begin alike
        [np.zeros(RESPONSE)] * samples,
        np.ones(samples),
        np.bincount(slots) * float(RESPONSE),
    )
    config = Qwen2Config(
        hidden_size=SHAPE.hidden,
        num_hidden_layers=SHAPE.layers,
        intermediate_size=SHAPE.feed_forward,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.key_value_heads,
        head_dim=SHAPE.head,
        vocab_size=SHAPE.vocabulary,
        tie_word_embeddings=SHAPE.tied,
    )
    trainer = TorchTrainer(attach(AutoModelForCausalLM.from_config(config), TARGETS, RANK, RANK, ADAPTERS), 0, settings)
    counter = FlopCounterMode(display=False, custom_mapping=ATTENTION | {aten.addmm_: product, aten.baddbmm_: product})
    counter.mod_tracker = Whole()  # type: ignore[assignment]
    with counter:
        trainer.accumulate(rows, 1 << 20)
    attention = sum(count for name, count in counter.get_flop_counts()["Global"].items() if name in ATTENTION)
    return float(attention), float(counter.get_total_flops() - attention)


@pytest.mark.parametrize("row_tokens", [1, 64, 4096])
@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("again", [False, True])
def test_the_arithmetic_is_what_torch_counts(again: bool, kl: float, row_tokens: int) -> None:
    settings = Settings(Objective(entropy_bonus=0.0, kl=kl), gradient_checkpointing=again, row_tokens=row_tokens)
    attention, rest = counted(settings)
    chosen = [f"learning.gradient_checkpointing={str(again).lower()}", f"learning.kl={kl}", f"model.rank={RANK}"]
    rows = packed(ADAPTERS * PROMPTS, PROMPT, ATTEMPTS, RESPONSE, row_tokens)
    found = update_flops(load("paper", chosen), SHAPE, rows)
    whole = 1 if row_tokens > PROMPT + 2 * RESPONSE else 2  # torch counts the causal kernel as if it computed everything
    assert attention == whole * found.attention
    inputs = SHAPE.linears()
    first = 0.0 if again else 2 * sum(a * b + RANK * a for a, b in (inputs[name] for name in FIRST))
    assert rest == found.total - found.attention - first * sum(one.positions for one in rows)


def test_rows_are_those_of_the_trainer() -> None:
    for attempts, response, row_tokens in ((8, 17, 64), (8, 17, 4096), (7, 5, 40), (3, 100, 50), (1, 9, 64)):
        prompts = [[prompt] * PROMPT for prompt in range(PROMPTS) for _ in range(attempts)]
        apart = [[sample] * response for sample in range(len(prompts))]
        theirs = pack_rows([0] * len(prompts), prompts, apart, row_tokens)
        ours = packed(PROMPTS, PROMPT, attempts, response, row_tokens)
        assert sorted(row.length for row in theirs) == sorted(one.length for one in ours for _ in range(int(one.count)))
        assert sum(one.predicted for one in ours) == PROMPTS * attempts * (response - 1) + len(theirs)


def test_nothing_to_learn_takes_no_arithmetic() -> None:
    assert packed(0, 700, 8, 100.0, 1024) == [] and packed(12, 700, 8, 0.0, 1024) == []
    assert update_flops(load("paper"), SHAPE, []).total == 0


def test_a_shared_prompt_saves_a_sixth_of_the_published_update_and_recomputation_costs_half_of_it_again() -> None:
    shape = KNOWN["Qwen2.5-Coder-7B"]

    def flops(again: str, row_tokens: int, above: int = 0) -> float:
        config = load("paper", [f"learning.gradient_checkpointing={again}", f"learning.recompute_above={above}"])
        rows = [*packed(192, 1200, 4, 1012, row_tokens), *packed(768, 700, 8, 1012, row_tokens)]
        return update_flops(config, shape, rows).total

    longest = max(one.length for one in packed(768, 700, 8, 1012, 4096))
    assert flops("true", 4096, ceil(longest)) == flops("false", 4096) < flops("true", 4096, ceil(longest) - 1)
    assert flops("true", 4096) / flops("true", 1024) == pytest.approx(0.829, abs=0.001)
    assert flops("true", 1024) / flops("false", 1024) == pytest.approx(1.466, abs=0.001)


def test_a_token_without_a_row_costs_what_it_costs_in_a_usual_one() -> None:
    config, shape = load("paper"), KNOWN["Qwen2.5-Coder-7B"]
    row = Rows(1, 512, 1, 513)
    assert row.length == 1024 and token_flops(config, shape) * 1024 == pytest.approx(update_flops(config, shape, [row]).total)
