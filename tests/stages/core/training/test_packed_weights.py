"""Packed weights: the bits of the plain product, and no part in training."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from stages.core.training.grouped_lora import GroupedLoRA, attach
from stages.core.training.packed_weights import PackedHead, PackedWeight, can_pack

pytestmark = pytest.mark.skipif(
    not can_pack(torch.zeros(1, 1, dtype=torch.bfloat16)), reason="needs AVX-512 BF16: elsewhere weights are not packed"
)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 96, 64), (7, 96, 32), (64, 352, 96), (300, 96, 352), (2, 4864, 896)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_has_the_same_bits(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(outputs, inputs).bfloat16(), torch.randn(2 * rows, inputs).bfloat16()
    bias_O = torch.randn(outputs).bfloat16() if bias else None
    packed = PackedWeight(weight)
    single = [x[None, :1]] if inputs < 1000 else []  # with AMX, one row of many inputs may differ by rounding
    for part in (x, x[::2], *single):  # contiguous or not, two axes or one row
        assert torch.equal(packed.linear(part, bias_O), F.linear(part, weight, bias_O))


def small(adapters: int) -> GroupedLoRA:
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=320,
        tie_word_embeddings=True,
    )
    lora = attach(Qwen2ForCausalLM(config).bfloat16(), ["q_proj", "down_proj"], rank=4, alpha=8, num_adapters=adapters)
    with torch.no_grad():
        lora.parameters_NP.normal_(std=0.1)
    return lora


@pytest.mark.parametrize("counts", [(2, 2), (1, 3)])
def test_a_packed_model_decodes_with_the_same_bits(counts: tuple[int, ...]) -> None:
    lora, ids = small(2), torch.arange(24).view(4, 6)
    model: nn.Module = lora.model
    with torch.inference_mode(), lora.routed(counts):
        before = model(ids).logits
        lora.pack()
        after = model(ids).logits
    assert isinstance(model.get_output_embeddings(), PackedHead)  # type: ignore[operator]
    assert torch.equal(before, after)


def test_a_trainer_does_not_use_packed_weights_whether_it_learns_or_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    lora, ids = small(2), torch.arange(24).view(4, 6)
    lora.pack()
    lora.pack()  # once is enough
    monkeypatch.setattr(PackedWeight, "linear", None)
    with lora.routed((2, 2)):
        lora.model(ids).logits.float().logsumexp(-1).sum().backward()
        with torch.no_grad():  # groups without an advantage, drift
            lora.model(ids)
    assert lora.gradients_NP.abs().sum() > 0
