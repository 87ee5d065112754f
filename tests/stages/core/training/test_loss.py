"""The loss against a naive double loop over samples and tokens."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from stages.core.training.loss import (
    Objective,
    importance_weights,
    k3_divergence,
    surrogate,
    token_logprobs,
    token_losses,
)

T, H, V = 11, 4, 7


def setting() -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    rng = np.random.default_rng(0)
    head = nn.Linear(H, V, bias=False).double().requires_grad_(False)
    head.weight.copy_(torch.from_numpy(rng.normal(size=(V, H))))
    return torch.from_numpy(rng.normal(size=(T, H))).requires_grad_(), head, torch.from_numpy(rng.integers(0, V, T))


@pytest.mark.parametrize("chunk_elements", [1, 3 * V, 1000])
def test_logprobs_and_entropy_equal_a_naive_loop_in_chunks_of_any_size(chunk_elements: int) -> None:
    hidden_TH, head, targets_T = setting()
    logprobs_T, entropy_T = token_logprobs(hidden_TH, head, targets_T, 0.7, chunk_elements)
    for t in range(T):
        logits = [sum(float(head.weight[v, h]) * float(hidden_TH.detach()[t, h]) for h in range(H)) / 0.7 for v in range(V)]
        total = math.fsum(math.exp(logit) for logit in logits)
        probabilities = [math.exp(logit) / total for logit in logits]
        assert float(logprobs_T.detach()[t]) == pytest.approx(math.log(probabilities[int(targets_T[t])]), rel=1e-12)
        assert float(entropy_T.detach()[t]) == pytest.approx(-math.fsum(p * math.log(p) for p in probabilities), rel=1e-12)
    (gradient,) = torch.autograd.grad((logprobs_T + 0.3 * entropy_T).sum(), hidden_TH)
    whole, whole_entropy = token_logprobs(hidden_TH, head, targets_T, 0.7)
    (expected,) = torch.autograd.grad((whole + 0.3 * whole_entropy).sum(), hidden_TH)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


def test_no_tokens_give_no_logprobs() -> None:
    hidden_TH, head, targets_T = setting()
    assert [part.shape for part in token_logprobs(hidden_TH[:0], head, targets_T[:0], 1.0)] == [(0,), (0,)]


def test_full_logits_never_exist() -> None:
    """The largest tensor that forward and backward make is one chunk, not [T, V]."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return out

    tokens, width = 512, 3000
    head = nn.Linear(8, width, bias=False).requires_grad_(False)
    hidden_TH = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with Watch():
        logprobs_T, entropy_T = token_logprobs(hidden_TH, head, torch.arange(tokens), 1.0, chunk_elements=16 * width)
        (logprobs_T.sum() + entropy_T.sum()).backward()
    assert largest <= 16 * width < tokens * width


def test_surrogate_clips_only_where_it_lowers_the_objective() -> None:
    ratios = torch.tensor([0.5, 0.9, 1.1, 1.5, 0.5, 0.9, 1.1, 1.5], dtype=torch.float64)
    advantages = torch.tensor([2.0] * 4 + [-2.0] * 4, dtype=torch.float64)
    losses = surrogate(ratios.log(), torch.zeros(8, dtype=torch.float64), advantages, 0.2)
    torch.testing.assert_close(losses, -torch.tensor([1.0, 1.8, 2.2, 2.4, -1.6, -1.8, -2.2, -3.0], dtype=torch.float64))


def test_importance_weights_are_truncated_and_carry_no_gradient() -> None:
    old, engine = torch.tensor([0.0, -1.0, -2.0], requires_grad=True), torch.tensor([-1.0, -1.0, 0.0])
    weights = importance_weights(old, engine, 2.0)
    torch.testing.assert_close(weights, torch.tensor([2.0, 1.0, math.exp(-2)]))
    assert not weights.requires_grad and importance_weights(old, engine, 0.0).tolist() == [1, 1, 1]


def test_k3_is_zero_only_where_the_policies_agree() -> None:
    values = k3_divergence(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -2.0, -0.5]))
    torch.testing.assert_close(values, torch.tensor([0.0, math.exp(-1), math.exp(0.5) - 1.5]))


def test_gradient_is_that_of_weighted_reinforce_plus_entropy_and_divergence() -> None:
    """With ratio 1 the gradient of the loss is -w A grad logp - e grad H + k grad k3."""
    hidden_TH, head, targets_T = setting()
    rng = np.random.default_rng(1)
    advantages_T, weights_T, base_T = (torch.from_numpy(rng.normal(size=T)) for _ in range(3))
    logprobs_T, entropy_T = token_logprobs(hidden_TH, head, targets_T, 1.0)
    losses_T = token_losses(Objective(entropy_bonus=0.1, kl=0.2), logprobs_T, entropy_T, advantages_T, weights_T, base_T)
    (gradient,) = torch.autograd.grad(losses_T.sum(), hidden_TH)
    logprobs_T, entropy_T = token_logprobs(hidden_TH, head, targets_T, 1.0)
    divergence = (base_T - logprobs_T).exp() + logprobs_T
    plain = (-weights_T * advantages_T * logprobs_T - 0.1 * entropy_T + 0.2 * divergence).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, hidden_TH)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("chunk_elements", [2**20, 4 * 31])
def test_the_head_sees_every_token_once(chunk_elements: int) -> None:
    """In a forward pass: another product only to learn the vocabulary's size would read the whole head."""
    head, seen = torch.nn.Linear(6, 31), list[tuple[int, ...]]()
    head.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    with torch.no_grad():
        token_logprobs(torch.randn(10, 6), head, torch.arange(10), 1.0, chunk_elements)
    assert sum(rows for rows, _ in seen) == 10 and len(seen) == (1 if chunk_elements > 310 else 3)


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 0.5), (1.0, 0.5)])
def test_an_output_that_the_loss_leaves_out_has_no_gradient(weights: tuple[float, float]) -> None:
    hidden_TH, head, targets_T = setting()
    found = []
    for chunk_elements in (3 * V, 1000):
        parts = token_logprobs(hidden_TH, head, targets_T, 0.7, chunk_elements)
        loss = sum(weight * part.sum() for weight, part in zip(weights, parts, strict=True) if weight)
        found.append(torch.autograd.grad(loss, hidden_TH)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_chunks_in_bfloat16_equal_the_whole_within_its_precision() -> None:
    rng = torch.Generator().manual_seed(0)
    head = nn.Linear(16, 300, bias=False).bfloat16().requires_grad_(False)
    hidden_TH, targets_T = torch.randn(40, 16, generator=rng).bfloat16().requires_grad_(), torch.arange(40)
    found = []
    for chunk_elements in (7 * 300, 2**20):
        logprobs_T, entropy_T = token_logprobs(hidden_TH, head, targets_T, 1.0, chunk_elements)
        assert logprobs_T.dtype == entropy_T.dtype == torch.float32
        (gradient,) = torch.autograd.grad((logprobs_T * torch.linspace(-1, 1, 40)).sum(), hidden_TH)
        found.append((logprobs_T.detach(), entropy_T.detach(), gradient.float()))
    for chunked, whole in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=2e-2, atol=2e-3)
