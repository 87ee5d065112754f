"""The head and the loss in one pass against a naive loop, and against autograd through full logits."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stages.core.training.head_loss import TokenLoss, head_loss, token_logprobs
from stages.core.training.loss import Objective, token_losses

T, H, V = 11, 4, 7


def setting() -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    rng = np.random.default_rng(0)
    head = nn.Linear(H, V, bias=False).double().requires_grad_(False)
    head.weight.copy_(torch.from_numpy(rng.normal(size=(V, H))))
    return torch.from_numpy(rng.normal(size=(T, H))).requires_grad_(), head, torch.from_numpy(rng.integers(0, V, T))


def plain(hidden_TH: torch.Tensor, head: nn.Linear, targets_T: torch.Tensor, temperature: float) -> tuple[torch.Tensor, ...]:
    """Log-probabilities and entropies through full logits, for autograd."""
    logprobs_TV = (head(hidden_TH) / temperature).log_softmax(-1)
    return logprobs_TV.gather(1, targets_T[:, None])[:, 0], -(logprobs_TV.exp() * logprobs_TV).sum(-1)


def weighted(factors_T: torch.Tensor, on_entropy: float) -> TokenLoss:
    """A loss that is not linear and differs from token to token."""
    return lambda logprobs_R, entropy_R, part: factors_T[part] * logprobs_R.exp() + on_entropy * entropy_R.square()


@pytest.mark.parametrize("chunk_elements", [1, 3 * V, 1000])
def test_logprobs_and_entropy_equal_a_naive_loop_in_chunks_of_any_size(chunk_elements: int) -> None:
    hidden_TH, head, targets_T = setting()
    logprobs_T, entropy_T = token_logprobs(hidden_TH, head, targets_T, 0.7, chunk_elements)
    for t in range(T):
        logits = [sum(float(head.weight[v, h]) * float(hidden_TH.detach()[t, h]) for h in range(H)) / 0.7 for v in range(V)]
        total = math.fsum(math.exp(logit) for logit in logits)
        probabilities = [math.exp(logit) / total for logit in logits]
        assert float(logprobs_T[t]) == pytest.approx(math.log(probabilities[int(targets_T[t])]), rel=1e-12)
        assert float(entropy_T[t]) == pytest.approx(-math.fsum(p * math.log(p) for p in probabilities), rel=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("on_entropy", [0.0, 0.3])
@pytest.mark.parametrize("chunk_elements", [1, 3 * V, 1000])
def test_loss_and_gradient_are_those_of_full_logits(chunk_elements: int, on_entropy: float, temperature: float) -> None:
    hidden_TH, head, targets_T = setting()
    token_loss = weighted(torch.linspace(-1, 2, T, dtype=torch.float64), on_entropy)
    found = head_loss(hidden_TH, head, targets_T, temperature, token_loss, chunk_elements)
    (gradient,) = torch.autograd.grad(3 * found.total, hidden_TH)
    logprobs_T, entropy_T = plain(hidden_TH, head, targets_T, temperature)
    losses_T = token_loss(logprobs_T, entropy_T, slice(None))
    (expected,) = torch.autograd.grad(3 * losses_T.sum(), hidden_TH)
    close = {"rtol": 1e-12, "atol": 1e-14}
    for name, value in (("total", losses_T.sum()), ("losses_T", losses_T), ("logprobs_T", logprobs_T), ("entropy_T", entropy_T)):
        torch.testing.assert_close(getattr(found, name).detach(), value.detach(), **close)
    torch.testing.assert_close(gradient, expected, **close)


@pytest.mark.parametrize("on_entropy", [0.0, 0.3])
@pytest.mark.parametrize("chunk_elements", [1, 3 * V, 1000])
def test_states_that_predict_several_tokens_give_the_loss_and_gradient_of_copies_of_them(
    chunk_elements: int, on_entropy: float
) -> None:
    hidden_UH, head, _ = setting()
    states_T, targets_T = np.sort(np.r_[np.arange(T), [0, 0, 3, 3, 3, T - 1]]), torch.zeros(T + 6, dtype=torch.int64)
    targets_T[:3], targets_T[5:8] = torch.tensor([2, 2, 4]), torch.tensor([1, 1, 6])
    token_loss = weighted(torch.linspace(-1, 2, T + 6, dtype=torch.float64), on_entropy)
    found = head_loss(hidden_UH, head, targets_T, 0.7, token_loss, chunk_elements, states_T)
    copied = head_loss(hidden_UH[torch.from_numpy(states_T)], head, targets_T, 0.7, token_loss, chunk_elements)
    for one, other in zip(found, copied, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    gradients = [torch.autograd.grad(loss.total, hidden_UH)[0] for loss in (found, copied)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_a_loss_of_the_entropy_alone_and_a_constant_loss() -> None:
    hidden_TH, head, targets_T = setting()
    (gradient,) = torch.autograd.grad(head_loss(hidden_TH, head, targets_T, 1.0, lambda _, e, part: e, 3 * V).total, hidden_TH)
    (expected,) = torch.autograd.grad(plain(hidden_TH, head, targets_T, 1.0)[1].sum(), hidden_TH)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)
    constant = head_loss(hidden_TH, head, targets_T, 1.0, lambda _, e, part: torch.ones_like(e).detach(), 3 * V).total
    assert constant.item() == T and not torch.autograd.grad(constant, hidden_TH)[0].any()


def test_without_a_gradient_the_values_are_the_same_and_nothing_is_kept() -> None:
    hidden_TH, head, targets_T = setting()
    token_loss = weighted(torch.ones(T, dtype=torch.float64), 0.3)
    learning = head_loss(hidden_TH, head, targets_T, 0.7, token_loss, 3 * V)
    with torch.no_grad():
        measured = head_loss(hidden_TH, head, targets_T, 0.7, token_loss, 3 * V)
    assert not measured.total.requires_grad
    for one, other in zip(learning, measured, strict=True):
        assert torch.equal(one.detach(), other)


def test_no_tokens_give_no_logprobs() -> None:
    hidden_TH, head, targets_T = setting()
    assert [part.shape for part in token_logprobs(hidden_TH[:0], head, targets_T[:0], 1.0)] == [(0,), (0,)]
    empty = head_loss(hidden_TH[:0], head, targets_T[:0], 1.0, weighted(torch.ones(T), 1.0))
    assert empty.total.item() == 0


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
        head_loss(hidden_TH, head, torch.arange(tokens), 1.0, lambda lp, e, part: lp + e, 16 * width).total.backward()
    assert largest <= 16 * width < tokens * width


def test_gradient_is_that_of_weighted_reinforce_plus_entropy_and_divergence() -> None:
    """With ratio 1 the gradient of the loss is -w A grad logp - e grad H + k grad k3."""
    hidden_TH, head, targets_T = setting()
    rng = np.random.default_rng(1)
    advantages_T, weights_T, base_T = (torch.from_numpy(rng.normal(size=T)) for _ in range(3))
    objective = Objective(entropy_bonus=0.1, kl=0.2)

    def losses(logprobs_R: torch.Tensor, entropy_R: torch.Tensor, part: slice) -> torch.Tensor:
        return token_losses(objective, logprobs_R, entropy_R, advantages_T[part], weights_T[part], base_T[part])

    (gradient,) = torch.autograd.grad(head_loss(hidden_TH, head, targets_T, 1.0, losses, 2 * V).total, hidden_TH)
    logprobs_T, entropy_T = plain(hidden_TH, head, targets_T, 1.0)
    divergence = (base_T - logprobs_T).exp() + logprobs_T
    by_hand = (-weights_T * advantages_T * logprobs_T - 0.1 * entropy_T + 0.2 * divergence).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(by_hand, hidden_TH)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("chunk_elements", [2**20, 4 * 31])
@pytest.mark.parametrize("learns", [False, True])
def test_the_head_sees_every_token_once(learns: bool, chunk_elements: int) -> None:
    """With a gradient, too; another product only to learn the vocabulary's size would read the whole head."""
    head, seen = torch.nn.Linear(6, 31), list[tuple[int, ...]]()
    head.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    hidden_TH = torch.randn(10, 6).requires_grad_(learns)
    head_loss(hidden_TH, head, torch.arange(10), 1.0, lambda logprobs, *_: logprobs, chunk_elements)
    assert sum(rows for rows, _ in seen) == 10 and len(seen) == (1 if chunk_elements > 310 else 3)


def test_a_large_chunk_has_a_multiple_of_64_tokens_and_the_result_is_that_of_one_chunk() -> None:
    torch.manual_seed(0)
    head = nn.Linear(H, V, bias=False).double().requires_grad_(False)
    targets_T, factors_T = torch.randint(V, (200,)), torch.rand(200)
    found, chunks = [], list[int]()
    hidden_TH = torch.randn(200, H, dtype=torch.double, requires_grad=True)

    def counted(rows_RH: torch.Tensor) -> torch.Tensor:
        chunks.append(len(rows_RH))
        return head(rows_RH)

    counted.weight = head.weight  # type: ignore[attr-defined]
    for chunk_elements in (2**20, 100 * V):
        loss = head_loss(hidden_TH, counted, targets_T, 0.7, weighted(factors_T, 0.3), chunk_elements)
        found.append([*loss[1:], *torch.autograd.grad(loss.total, hidden_TH)])
    assert chunks == [200, 64, 64, 64, 8]
    for whole, cut in zip(*found, strict=True):
        torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk_elements", [2**20, 4 * 31])
def test_a_token_takes_two_products_with_the_head(chunk_elements: int) -> None:
    """One forward and one for the gradient of the hidden state; computing the logits again would be a third."""

    class Head:  # the counter's hooks on modules do not work inside autograd functions
        weight = torch.randn(31, 6)

        def __call__(self, hidden_TH: torch.Tensor) -> torch.Tensor:
            return F.linear(hidden_TH, self.weight)

    head, hidden_TH = Head(), torch.randn(10, 6).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        head_loss(hidden_TH, head, torch.arange(10), 1.0, lambda logprobs, *_: logprobs, chunk_elements).total.backward()
    assert counter.get_total_flops() == 2 * (2 * 10 * 6 * 31)


def test_chunks_in_bfloat16_equal_full_logits_within_its_precision() -> None:
    rng = torch.Generator().manual_seed(0)
    head = nn.Linear(16, 300, bias=False).bfloat16().requires_grad_(False)
    hidden_TH, targets_T = torch.randn(40, 16, generator=rng).bfloat16().requires_grad_(), torch.arange(40)
    factors_T = torch.linspace(-1, 1, 40)
    found = head_loss(hidden_TH, head, targets_T, 1.0, lambda lp, _, part: lp * factors_T[part], 7 * 300)
    assert found.logprobs_T.dtype == found.entropy_T.dtype == found.total.dtype == torch.float32
    (gradient,) = torch.autograd.grad(found.total, hidden_TH)
    whole_TH = hidden_TH.detach().float().requires_grad_()
    logprobs_T, entropy_T = plain(whole_TH, head.float(), targets_T, 1.0)
    (expected,) = torch.autograd.grad((logprobs_T * factors_T).sum(), whole_TH)
    for chunked, whole in ((found.logprobs_T, logprobs_T), (found.entropy_T, entropy_T), (gradient.float(), expected)):
        torch.testing.assert_close(chunked, whole.detach(), rtol=2e-2, atol=2e-2)
