"""Grouped LoRA against its loop, against itself alone, and against PEFT."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from stages.core.lora.adapter import Adapter, Weights
from stages.core.lora.adapter_files import (
    CONFIG_FILE,
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    adapter_bytes,
    initial_adapter,
    parameter_shapes,
)
from stages.core.training.grouped_lora import GroupedLoRA, attach, unflatten
from stages.core.training.lora_backends import Backend, Segments, choose_backend, lora_bmm, lora_grouped_mm, lora_loop

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
FAMILIES = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def tiny(family: str = "qwen2", dtype: torch.dtype = torch.float64) -> nn.Module:
    config, model = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = model(config(**SIZES)).to(dtype).eval()
    if dtype == torch.float64:  # transformers' own norm rounds to float32, which hides what these tests compare
        for path, module in list(made.named_modules()):
            if path.endswith("norm"):
                norm = nn.RMSNorm(SIZES["hidden_size"], eps=module.variance_epsilon, dtype=dtype)
                made.set_submodule(path, norm)
    return made


def random_weights(lora: GroupedLoRA, seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in parameter_shapes(lora.shapes(), lora.rank).items()
    }


def grouped(weights: list[Weights], family: str = "qwen2", dtype: torch.dtype = torch.float64) -> GroupedLoRA:
    lora = attach(tiny(family, dtype), TARGETS, rank=2, alpha=4, num_adapters=len(weights))
    lora.load(weights)
    return lora


def read_row(lora: GroupedLoRA, row: int) -> Weights:
    """One adapter of the stack as float32 arrays under PEFT's names."""
    return unflatten(lora, lora.parameters_NP[row].detach().cpu().numpy().astype(np.float32))


def gradients(
    lora: GroupedLoRA, ids: torch.Tensor, counts: list[int], checkpoint: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    lora.clear_gradients()
    lora.checkpoint(checkpoint)
    with lora.routed(counts):
        logits = lora.model(ids, use_cache=False).logits
    (logits.double().log_softmax(-1)[..., 3] ** 2).sum().backward()  # outside the routing, as a trainer's backward is
    return logits.detach(), lora.gradients_NP


@pytest.fixture(scope="module")
def stack() -> list[Weights]:
    lora = attach(tiny(), TARGETS, 2, 4, 1)
    return [random_weights(lora, seed) for seed in range(3)]


IDS = torch.from_numpy(np.random.default_rng(0).integers(0, 31, (6, 7)))


@pytest.mark.parametrize("backend", [lora_loop, lora_bmm, None])
@pytest.mark.parametrize("counts", [[2, 2, 2], [1, 3, 2], [4, 0, 2]])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_grouped_equals_each_alone(stack: list[Weights], backend: Backend | None, counts: list[int], family: str) -> None:
    lora = grouped(stack, family)
    lora.set_backend(backend)
    logits, grads_NP = gradients(lora, IDS, counts)
    start = 0
    for n, count in enumerate(counts):
        if count == 0:
            assert not grads_NP[n].any()
            continue
        solo_logits, solo_NP = gradients(grouped([stack[n]], family), IDS[start : start + count], [count])
        torch.testing.assert_close(logits[start : start + count], solo_logits, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(grads_NP[n], solo_NP[0], rtol=1e-10, atol=1e-12)
        start += count


@pytest.mark.parametrize("backend", [lora_loop, lora_bmm])
@pytest.mark.parametrize("counts", [[2, 2, 2], [1, 3, 2]])
def test_rows_of_one_adapter_give_exactly_no_gradient_to_another(
    stack: list[Weights], backend: Backend | None, counts: list[int]
) -> None:
    lora = grouped(stack)
    lora.set_backend(backend)
    with lora.routed(counts):
        logits = lora.model(IDS, use_cache=False).logits
    logits[counts[0] : counts[0] + counts[1]].square().sum().backward()
    assert lora.gradients_NP[1].any() and not lora.gradients_NP[0].any() and not lora.gradients_NP[2].any()


def test_checkpointing_changes_nothing(stack: list[Weights]) -> None:
    lora = grouped(stack)
    plain, checkpointed = gradients(lora, IDS, [1, 3, 2]), gradients(lora, IDS, [1, 3, 2], checkpoint=True)
    assert torch.equal(plain[0], checkpointed[0]) and torch.equal(plain[1], checkpointed[1])


def test_the_routing_of_the_forward_pass_holds_in_a_late_recomputation(stack: list[Weights]) -> None:
    lora = grouped(stack)
    _, expected = gradients(lora, IDS, [1, 3, 2])
    lora.clear_gradients()
    lora.checkpoint(True)
    with lora.routed([1, 3, 2]):
        logits = lora.model(IDS, use_cache=False).logits
    with lora.routed([6, 0, 0]):  # another batch is on its way
        (logits.log_softmax(-1)[..., 3] ** 2).sum().backward()
    assert torch.equal(lora.gradients_NP, expected)


def test_bfloat16_base_stays_close_to_the_loop(stack: list[Weights]) -> None:
    lora = grouped(stack, dtype=torch.bfloat16)
    lora.set_backend(lora_loop)
    _, loop = gradients(lora, IDS, [2, 2, 2])
    lora.set_backend(lora_bmm)
    _, bmm = gradients(lora, IDS, [2, 2, 2])
    assert lora.parameters_NP.dtype == torch.float32
    assert (loop - bmm).norm() <= 0.02 * loop.norm()  # stated tolerance: bfloat16 keeps 8 bits


@pytest.mark.parametrize("counts", [[2, 2, 2], [1, 3, 2], [0, 4, 2]])
def test_factors_rounded_once_give_the_same_bits_and_are_rounded_anew_for_the_next_weights(
    stack: list[Weights], counts: list[int]
) -> None:
    lora = grouped(stack, dtype=torch.bfloat16)

    def logits() -> torch.Tensor:
        with torch.no_grad(), lora.routed(counts):
            return lora.model(IDS, use_cache=False).logits

    for _ in range(2):
        expected = logits()
        with lora.rounded():
            assert torch.equal(logits(), expected)
            _, rounded = gradients(lora, IDS, counts)
        _, plain = gradients(lora, IDS, counts)
        assert torch.equal(rounded, plain)
        with torch.no_grad():
            lora.parameters_NP.mul_(3)
    assert not torch.equal(logits(), expected)


def test_an_infinite_token_reaches_no_gradient_of_another_adapter() -> None:
    x_TI = torch.randn(6, 4)
    x_TI[0] = torch.inf
    A_NRI, B_NOR = (torch.randn(3, *shape, requires_grad=True) for shape in ((2, 4), (5, 2)))
    lora_bmm(x_TI, A_NRI, B_NOR, [3, 1, 2])[3:].sum().backward()
    assert A_NRI.grad is not None and A_NRI.grad[1:].isfinite().all() and A_NRI.grad[1:].any()


def test_backends_on_distinct_axes() -> None:
    rng = np.random.default_rng(1)
    x_TI, A_NRI, B_NOR = (torch.from_numpy(rng.normal(size=shape)) for shape in [(7, 3), (3, 2, 3), (3, 5, 2)])
    expected = torch.stack([B_NOR[n] @ A_NRI[n] @ x for n, x in zip([0, 0, 1, 1, 1, 1, 2], x_TI, strict=True)])
    for backend in (lora_loop, lora_bmm):
        torch.testing.assert_close(backend(x_TI, A_NRI, B_NOR, [2, 4, 1]), expected)


@pytest.mark.parametrize("tokens", [[8, 8, 8], [5, 0, 19]])
def test_grouped_products_equal_the_loop_in_bfloat16(tokens: list[int]) -> None:
    rng = np.random.default_rng(2)
    x_TI, A_NRI, B_NOR = (
        torch.from_numpy(rng.normal(size=shape)).bfloat16().requires_grad_() for shape in [(24, 16), (3, 8, 16), (3, 24, 8)]
    )
    found, expected = (backend(x_TI, A_NRI, B_NOR, tokens) for backend in (lora_grouped_mm, lora_loop))
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    gradients = [torch.autograd.grad(out.float().square().sum(), (x_TI, A_NRI, B_NOR)) for out in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        assert (mine - theirs).norm() <= 0.02 * theirs.norm()


EMPTY = [[0, 5, 19], [5, 0, 19], [5, 19, 0], [0, 24, 0], [24, 0, 0], [0, 0, 24]]


@pytest.mark.parametrize("tokens", [[3, 1, 5], [4, 4, 4], [0, 6, 2], [2, 0, 0]])
def test_the_layer_in_one_function_equals_autograd_through_the_loop(tokens: list[int]) -> None:
    """Outputs and all gradients, with groups of any lengths; the scale is inside."""
    rng = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    weight_OI, bias_O = drawn(5, 4), drawn(5)
    leaves = [drawn(sum(tokens), 4), drawn(3, 2, 4), drawn(3, 5, 2)]
    upward_TO, found = drawn(sum(tokens), 5), []
    for fused in (True, False):
        x_TI, A_NRI, B_NOR = own = [one.clone().requires_grad_() for one in leaves]
        if fused:
            out_TO = Segments.apply(x_TI, weight_OI, bias_O, A_NRI, B_NOR, tokens, 1.5)
        else:
            out_TO = F.linear(x_TI, weight_OI, bias_O) + 1.5 * lora_loop(x_TI, A_NRI, B_NOR, tokens)
        found.append([out_TO.detach(), *torch.autograd.grad(out_TO, own, upward_TO)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", [lora_loop, lora_bmm, lora_grouped_mm])
@pytest.mark.parametrize("tokens", EMPTY)
def test_an_empty_group_has_a_gradient_of_exactly_zero(backend: Backend, tokens: list[int]) -> None:
    rng = np.random.default_rng(3)
    x_TI, A_NRI, B_NOR = (
        torch.from_numpy(rng.normal(size=shape)).bfloat16().requires_grad_() for shape in [(24, 16), (3, 8, 16), (3, 24, 8)]
    )
    found, expected = (one(x_TI, A_NRI, B_NOR, tokens) for one in (backend, lora_loop))
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    mine, theirs = (torch.autograd.grad(out.float().square().sum(), (x_TI, A_NRI, B_NOR)) for out in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()
    for n, count in enumerate(tokens):
        assert all(bool(grad_N[n].any()) == (count > 0) for grad_N in mine[1:])


class Offsets(TorchDispatchMode):
    """Notes the segment ends of every grouped product, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "grouped_mm" in str(func):
            ends = kwargs.get("offs", args[2] if len(args) > 2 else None)
            self.seen.append(ends.tolist())
        return func(*args, **kwargs)


@pytest.mark.parametrize("tokens", EMPTY)
def test_a_grouped_product_never_sees_an_empty_group(tokens: list[int]) -> None:
    """Kernels of some GPUs leave the gradient of an empty group uninitialized."""
    x_TI, A_NRI, B_NOR = (
        torch.ones(shape, dtype=torch.bfloat16, requires_grad=True) for shape in [(24, 16), (3, 8, 16), (3, 24, 8)]
    )
    with Offsets() as offsets:
        lora_grouped_mm(x_TI, A_NRI, B_NOR, tokens).float().sum().backward()
    assert len(offsets.seen) >= 2
    for ends in offsets.seen:
        assert (np.diff([0, *ends]) > 0).all() and ends[-1] == 24


@pytest.mark.parametrize(
    ("capability", "grouped"),
    [((9, 0), True), ((10, 0), False), ((10, 3), False), ((12, 0), False), ((8, 0), False), ((8, 9), False)],
)
def test_grouped_products_are_chosen_where_torch_has_a_right_kernel(capability: tuple[int, int], grouped: bool) -> None:
    x_TI, A_NRI, B_NOR = (torch.ones(shape, dtype=torch.bfloat16) for shape in [(24, 16), (3, 8, 16), (3, 24, 8)])
    for tokens in ([8, 8, 8], [24]):
        assert choose_backend(x_TI, A_NRI, B_NOR, tokens, capability) is lora_bmm, "fused with the base layer"
    for tokens in ([7, 8, 9], [1, 20, 3], [5, 0, 19]):
        assert (choose_backend(x_TI, A_NRI, B_NOR, tokens, capability) is lora_grouped_mm) == grouped
        assert choose_backend(x_TI.float(), A_NRI, B_NOR, tokens, capability) is not lora_grouped_mm
        assert choose_backend(x_TI[:, :12], A_NRI[:, :, :12], B_NOR, tokens, capability) is not lora_grouped_mm
        assert choose_backend(x_TI, A_NRI, B_NOR, tokens) is not lora_grouped_mm  # a processor


@pytest.mark.parametrize("backend", [lora_bmm, lora_grouped_mm])
def test_what_decoding_has_cached_can_be_trained_on(backend: Backend) -> None:
    """The same group sizes first in inference mode, then with gradients."""
    tokens = [3, 0, 4, 6]
    x_TI, A_NRI, B_NOR = (
        torch.ones(shape, dtype=torch.bfloat16, requires_grad=True) for shape in [(13, 16), (4, 8, 16), (4, 24, 8)]
    )
    with torch.inference_mode():
        backend(x_TI, A_NRI, B_NOR, tokens)
    backend(x_TI, A_NRI, B_NOR, tokens).float().sum().backward()
    assert A_NRI.grad is not None and A_NRI.grad[0].any() and not A_NRI.grad[1].any()


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_peft_round_trip(stack: list[Weights], family: str, tmp_path) -> None:
    from peft import PeftModel

    lora = grouped(stack, family, torch.float32)
    for name, data in adapter_bytes(Adapter(read_row(lora, 1), {}, 0), "tiny", lora.alpha).items():
        assert name in (WEIGHTS_FILE, CONFIG_FILE, OPTIMIZER_FILE)
        (tmp_path / name).write_bytes(data)
    peft = PeftModel.from_pretrained(tiny(family, torch.float32), tmp_path)
    with torch.no_grad(), lora.routed([0, 6, 0]):
        torch.testing.assert_close(lora.model(IDS).logits, peft(IDS).logits, rtol=1e-5, atol=1e-6)
    saved = {name for name in peft.state_dict() if "lora_" in name}
    assert {name.replace(".default.", ".") for name in saved} == set(read_row(lora, 1))


def test_rows_are_read_as_they_were_loaded(stack: list[Weights]) -> None:
    lora = grouped(stack)
    for row, weights in enumerate(stack):
        read = read_row(lora, row)
        assert read.keys() == weights.keys() and all(np.array_equal(read[name], weights[name]) for name in read)


def test_initial_adapters_share_a_and_change_nothing() -> None:
    lora = attach(tiny(), TARGETS, 2, 4, 1)
    first, again, other = (initial_adapter(lora.shapes(), 2, seed).weights for seed in (1, 1, 2))
    name = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
    assert np.array_equal(first[name], again[name]) and not np.array_equal(first[name], other[name])
    assert 0.8 / np.sqrt(40) < np.abs(first[name]).max() <= 1 / np.sqrt(40)
    with torch.no_grad(), lora.routed([6]):
        lora.load([first])
        torch.testing.assert_close(lora.model(IDS).logits, tiny()(IDS).logits, rtol=0, atol=0)


def test_misfits_are_refused(stack: list[Weights]) -> None:
    lora = grouped(stack)
    first = next(iter(stack[0]))
    with pytest.raises(ValueError, match="non-finite"):
        lora.load([stack[0] | {first: np.full_like(stack[0][first], np.nan)}])
    with pytest.raises(ValueError, match="the run's is"):
        lora.load([stack[0] | {first: stack[0][first][:1]}])
    with pytest.raises(ValueError, match="other targets"):
        lora.load([{name: array for name, array in stack[0].items() if name != first}])
    with pytest.raises(ValueError, match="output head"):
        attach(tiny(), ["lm_head"], 2, 4, 1)
    with pytest.raises(ValueError, match="name no module"):
        attach(tiny(), ["q_proj", "c_attn"], 2, 4, 1)
    with pytest.raises(RuntimeError, match="not routed"):
        lora.model(IDS)
    with pytest.raises(RuntimeError, match="does not fit"), lora.routed([1, 1]):
        lora.model(IDS)
