"""The loss of one adapter's tokens: log-probabilities without full logits, and the clipped policy gradient.

L = sum_T w_T [ -m_T min(r_T A_T, clip(r_T, 1 - c, 1 + c) A_T) - e H_T + k D_T ] / (response tokens of the adapter in the step)

with r = pi / pi_old (PPO, Schulman et al. 2017, eq. 7), A the sample's advantage, H the entropy, D the k3 estimate of
KL(pi || base) (Schulman 2020; off by default), and m the truncated importance weight min(pi_old / pi_engine, cap) (TIS, Yao et
al. 2025; off for an engine that computes the same as the trainer). pi_old is the trainer's own detached log-probability, so with
one step per adapter and generation r = 1 and the clip is inactive. The denominator is veRL's token mean, per adapter, so that
other samples in the pass never change an update. Deviations from veRL: no dual clip; the mean is over the step, not the
micro-batch.

Axes: T response tokens · H width · V vocabulary · S samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Head = Callable[[torch.Tensor], torch.Tensor]

CHUNK_ELEMENTS = 2**26  # elements of a [tokens, V] block; in fp32 256 MiB
BLOCK_ELEMENTS = 2**18  # of a chunk, in fp32 at once on a CPU: 1 MiB, which a core keeps in its cache


@dataclass(frozen=True)
class Objective:
    """Coefficients of the loss; 0 disables a term. `temperature` is the sampling temperature: logits are divided by it."""

    clip_range: float = 0.2
    entropy_bonus: float = 0.001
    kl: float = 0.0
    importance_cap: float = 0.0
    temperature: float = 1.0


def token_logprobs(
    hidden_TH: torch.Tensor, head: Head, targets_T: torch.Tensor, temperature: float, chunk_elements: int = CHUNK_ELEMENTS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each target and the entropy (nats) of each distribution, both [T], at least fp32.

    Tokens are processed in chunks of at most `chunk_elements` logits. With more than one chunk the backward pass recomputes
    the logits, so that only one chunk of them exists at any time; the head's own weights then get no gradient.
    """
    num_tokens = hidden_TH.shape[0]
    width = _vocabulary(head, hidden_TH) if num_tokens else 1
    size = max(1, chunk_elements // width)
    parts = []
    for start in range(0, num_tokens, size):
        arguments = (hidden_TH[start : start + size], head, targets_T[start : start + size], temperature)
        parts.append(_chunk(*arguments) if size >= num_tokens else _RecomputedChunk.apply(*arguments))  # type: ignore[no-untyped-call]
    if not parts:
        empty = hidden_TH.new_zeros(0, dtype=torch.promote_types(torch.float32, hidden_TH.dtype))
        return empty, empty
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _vocabulary(head: Head, hidden_TH: torch.Tensor) -> int:
    """Return the number of logits of a token, if possible without a product: reading the whole head takes a CPU 50 ms."""
    weight = getattr(head, "weight", None)
    return int((head(hidden_TH[:1].detach()).shape[-1]) if weight is None else weight.shape[0])


def _chunk(hidden_TH: torch.Tensor, head: Head, targets_T: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_TV = _scaled(head(hidden_TH), temperature).log_softmax(-1)
    entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprobs_TV.gather(1, targets_T[:, None])[:, 0], entropy_T


class _RecomputedChunk(torch.autograd.Function):
    """`_chunk` whose backward pass computes the logits again, and which never holds them in fp32 all at once.

    With z the logits over the temperature, p = softmax(z) and H the entropy: d logprob / dz = onehot - p and
    dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: torch.Tensor, head: Head, targets_T: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(hidden_TH, targets_T)
        ctx.head, ctx.temperature = head, temperature
        ctx.set_materialize_grads(False)  # None, without asking the device, for an output that the loss does not use
        logits_TV = head(hidden_TH)
        parts = []
        for rows in _blocks(logits_TV):
            logprobs_RV = _scaled(logits_TV[rows], temperature).log_softmax(-1)
            chosen_R = logprobs_RV.gather(1, targets_T[rows, None])[:, 0]
            parts.append((chosen_R, -(logprobs_RV.exp().mul_(logprobs_RV)).sum(-1)))
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])

    @staticmethod
    def backward(ctx: Any, logprob_grads_T: torch.Tensor | None, entropy_grads_T: torch.Tensor | None) -> tuple[Any, ...]:
        hidden_TH, targets_T = ctx.saved_tensors
        if logprob_grads_T is None:
            logprob_grads_T = torch.zeros_like(targets_T, dtype=torch.promote_types(torch.float32, hidden_TH.dtype))
        with torch.enable_grad():
            hidden_TH = hidden_TH.detach().requires_grad_()
            logits_TV = ctx.head(hidden_TH)
        # in blocks and over the logits themselves: the gradient has their type, and nothing else needs them now
        grads_TV = logits_TV.detach()
        for rows in _blocks(grads_TV):
            logprobs_RV = _scaled(grads_TV[rows], ctx.temperature).log_softmax(-1)
            grads_TV[rows] = _logit_gradient(
                logprobs_RV,
                targets_T[rows],
                logprob_grads_T[rows] / ctx.temperature,
                None if entropy_grads_T is None else entropy_grads_T[rows] / ctx.temperature,
            )
        return torch.autograd.grad(logits_TV, hidden_TH, grads_TV)[0], None, None, None


def _logit_gradient(
    logprobs_RV: torch.Tensor, targets_R: torch.Tensor, logprob_grads_R: torch.Tensor, entropy_grads_R: torch.Tensor | None
) -> torch.Tensor:
    """Return the gradient with respect to the scaled logits [R, V]; the log-probabilities are overwritten."""
    probabilities_RV = logprobs_RV.exp()
    if entropy_grads_R is not None:
        entropy_R1 = -(probabilities_RV * logprobs_RV).sum(-1, keepdim=True)
        factors_RV = logprobs_RV.add_(entropy_R1).mul_(entropy_grads_R[:, None]).add_(logprob_grads_R[:, None])
        grads_RV = probabilities_RV.mul_(factors_RV).neg_()
    else:
        grads_RV = probabilities_RV.mul_(-logprob_grads_R[:, None])
    return grads_RV.scatter_add_(1, targets_R[:, None], logprob_grads_R[:, None])


def _scaled(logits_RV: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits_RV.to(torch.promote_types(torch.float32, logits_RV.dtype)) / temperature


def _blocks(logits_TV: torch.Tensor) -> Iterator[slice]:
    """Yield slices of rows: on a CPU so few that the passes over a block stay in its caches, on a GPU all."""
    count, width = logits_TV.shape
    size = max(1, BLOCK_ELEMENTS // width) if logits_TV.device.type == "cpu" else count
    yield from (slice(start, start + size) for start in range(0, count, size))


def surrogate(logprobs_T: torch.Tensor, old_T: torch.Tensor, advantages_T: torch.Tensor, clip_range: float) -> torch.Tensor:
    """Return -min(r A, clip(r, 1 - c, 1 + c) A) with r = exp(logprob - old), per token."""
    ratio_T = (logprobs_T - old_T).exp()
    clipped_T = ratio_T.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio_T * advantages_T, clipped_T * advantages_T)


def importance_weights(old_T: torch.Tensor, engine_T: torch.Tensor, cap: float) -> torch.Tensor:
    """Return min(pi_old / pi_engine, cap) per token, without gradient; ones if `cap` is 0."""
    if cap == 0:
        return torch.ones_like(old_T)
    return (old_T - engine_T).detach().exp().clamp(max=cap)


def k3_divergence(logprobs_T: torch.Tensor, base_T: torch.Tensor) -> torch.Tensor:
    """Return exp(base - logprob) - (base - logprob) - 1: an unbiased, non-negative estimate of KL(pi || base) per token."""
    difference_T = base_T - logprobs_T
    return difference_T.exp() - difference_T - 1


def token_losses(
    objective: Objective,
    logprobs_T: torch.Tensor,
    entropy_T: torch.Tensor,
    advantages_T: torch.Tensor,
    weights_T: torch.Tensor,
    base_T: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the bracket of the formula per token. `weights_T` are importance weights; KL requires `base_T`."""
    losses_T = weights_T * surrogate(logprobs_T, logprobs_T.detach(), advantages_T, objective.clip_range)
    if objective.entropy_bonus:
        losses_T = losses_T - objective.entropy_bonus * entropy_T
    if objective.kl and base_T is not None:
        losses_T = losses_T + objective.kl * k3_divergence(logprobs_T, base_T)
    return losses_T
