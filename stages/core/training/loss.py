"""The loss of one adapter's tokens: the clipped policy gradient, with entropy and divergence.

L = sum_T w_T [ -m_T min(r_T A_T, clip(r_T, 1 - c, 1 + c) A_T) - e H_T + k D_T ] / (response tokens of the adapter in the step)

with r = pi / pi_old (PPO, Schulman et al. 2017, eq. 7), A the sample's advantage, H the entropy, D the k3 estimate of
KL(pi || base) (Schulman 2020; off by default), and m the truncated importance weight min(pi_old / pi_engine, cap) (TIS, Yao et
al. 2025; off for an engine that computes the same as the trainer). pi_old is the trainer's own detached log-probability, so with
one step per adapter and generation r = 1 and the clip is inactive. The denominator is veRL's token mean, per adapter, so that
other samples in the pass never change an update. Deviations from veRL: no dual clip; the mean is over the step, not the
micro-batch.

Axes: T response tokens.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Objective:
    """Coefficients of the loss; 0 disables a term. `temperature` is the sampling temperature: logits are divided by it."""

    clip_range: float = 0.2
    entropy_bonus: float = 0.001
    kl: float = 0.0
    importance_cap: float = 0.0
    temperature: float = 1.0


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
    """Return exp(base - logprob) - (base - logprob) - 1: an unbiased, non-negative estimate of KL(pi || base) per token.

    That holds for its value. Differentiated as a loss, as in GRPO and veRL, its expected gradient is that of KL(base || pi).
    """
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
