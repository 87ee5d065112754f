"""Advantages: how much better than expected each sample of one adapter was.

Every estimator takes the samples of ONE adapter in one generation and returns what the SAMPLES table stores. An advantage is
one number per sample; the loss applies it to every response token. Groups, kinds and roles never mix adapters, because separate
policies must not leak scale into each other (design: whitening per adapter and role).

Axes: S samples of one adapter. Rewards have no unit; lengths are response tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

WHITEN_EPSILON = 1e-8  # veRL, `masked_whiten` and `masked_mean`
GRPO_EPSILON = 1e-6  # veRL, `compute_grpo_outcome_advantage`


@dataclass(frozen=True)
class Advantages:
    """`centred_S` = reward - `baseline_S`; `advantage_S` is the factor in the loss."""

    baseline_S: np.ndarray
    centred_S: np.ndarray
    advantage_S: np.ndarray


def reinforce_plus_plus_baseline(
    rewards_S: Sequence[float] | np.ndarray,
    group_ids: Sequence[str],
    kinds: Sequence[str],
    roles: Sequence[str],
    lengths_S: Sequence[int] | np.ndarray,
    *,
    lone_by_kind: bool = False,
    shift: bool = True,
) -> Advantages:
    """REINFORCE++-baseline: advantage = whiten(reward - mean of its group), per role, weighted by response tokens.

    Source: veRL `compute_reinforce_plus_plus_baseline_outcome_advantage`. A group of one subtracts 0 as in veRL, or with
    `lone_by_kind` the mean of its role and kind. Deviations: whitening per adapter and role, not per batch; float64;
    `shift=False` only divides by the standard deviation, so that a group of equal rewards keeps advantage 0.
    """
    rewards = np.asarray(rewards_S, np.float64)
    kind_keys = list(zip(roles, kinds, strict=True)) if lone_by_kind else None
    baseline_S = _group_baseline(rewards, list(zip(roles, group_ids, strict=True)), kind_keys)
    centred_S = rewards - baseline_S
    advantage_S = np.zeros_like(rewards)
    lengths = np.asarray(lengths_S)
    for rows in group_rows(roles):
        advantage_S[rows] = whiten(centred_S[rows], lengths[rows], shift=shift)
    return Advantages(baseline_S, centred_S, advantage_S)


def trr_plus_plus(
    rewards_S: Sequence[float] | np.ndarray,
    group_ids: Sequence[str],
    kinds: Sequence[str],
    roles: Sequence[str],
    lengths_S: Sequence[int] | np.ndarray,
) -> Advantages:
    """TRR++ of Absolute Zero Reasoner: advantage = (reward - mu) / sqrt(var + 1e-8) within each of six groups, kind x role.

    Source: AZR paper, section 3.3.5; mu and var are taken over all response tokens of the group, Bessel-corrected. Prompt
    groups are not used. The baseline is mu, so `centred` sums to zero weighted by tokens. Deviation: float64.
    """
    rewards, lengths = np.asarray(rewards_S, np.float64), np.asarray(lengths_S)
    baseline_S, advantage_S = np.zeros_like(rewards), np.zeros_like(rewards)
    for rows in group_rows(list(zip(kinds, roles, strict=True))):
        baseline_S[rows] = _mean(rewards[rows], lengths[rows])
        advantage_S[rows] = whiten(rewards[rows], lengths[rows], shift=True)
    return Advantages(baseline_S, rewards - baseline_S, advantage_S)


def grpo(
    rewards_S: Sequence[float] | np.ndarray,
    group_ids: Sequence[str],
    kinds: Sequence[str],
    roles: Sequence[str],
    lengths_S: Sequence[int] | np.ndarray,
) -> Advantages:
    """GRPO: advantage = (reward - group mean) / (group std + 1e-6), std Bessel-corrected; a group of one has mean 0, std 1.

    Source: Shao et al. 2024 (DeepSeekMath), as veRL `compute_grpo_outcome_advantage`. Deviation: the loss stays a token mean.
    """
    rewards = np.asarray(rewards_S, np.float64)
    keys = list(zip(roles, group_ids, strict=True))
    baseline_S = _group_baseline(rewards, keys, None)
    centred_S = rewards - baseline_S
    scale_S = np.ones_like(rewards)
    for rows in group_rows(keys):
        if len(rows) > 1:
            scale_S[rows] = rewards[rows].std(ddof=1)
    return Advantages(baseline_S, centred_S, centred_S / (scale_S + GRPO_EPSILON))


def dr_grpo(
    rewards_S: Sequence[float] | np.ndarray,
    group_ids: Sequence[str],
    kinds: Sequence[str],
    roles: Sequence[str],
    lengths_S: Sequence[int] | np.ndarray,
) -> Advantages:
    """Dr. GRPO: advantage = reward - group mean, no division (which favours groups that are too easy or too hard).

    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training", eq. 3. Deviation: its constant length normaliser is our
    token constant (the adapter's response tokens of the step), the same for all samples, so the direction is the paper's. A
    group of one has no baseline, as in veRL: its advantage is its reward.
    """
    rewards = np.asarray(rewards_S, np.float64)
    baseline_S = _group_baseline(rewards, list(zip(roles, group_ids, strict=True)), None)
    return Advantages(baseline_S, rewards - baseline_S, rewards - baseline_S)


def positive_only(
    rewards_S: Sequence[float] | np.ndarray,
    group_ids: Sequence[str],
    kinds: Sequence[str],
    roles: Sequence[str],
    lengths_S: Sequence[int] | np.ndarray,
) -> Advantages:
    """Supervised training on the accepted rollouts: advantage = 1 for a reward above 0, and 0 for every other; no baseline.

    With PopuLoRA's reward, a student's correct answers are accepted, as in expert iteration and STaR (Zelikman et al. 2022). With
    one step a generation the ratio to the sampling policy is 1, so the gradient is that of the accepted tokens' negative
    log-likelihood, divided by all tokens of the adapter. `centred` is the advantage: every accepted answer moves the adapter.
    """
    accepted_S = (np.asarray(rewards_S, np.float64) > 0).astype(np.float64)
    return Advantages(np.asarray(rewards_S, np.float64) - accepted_S, accepted_S, accepted_S)


def whiten(values_S: np.ndarray, lengths_S: np.ndarray, shift: bool) -> np.ndarray:
    """Return (value - mean) / sqrt(var + 1e-8) over response tokens: each sample is weighted by its number of tokens.

    Source: veRL `masked_whiten`: var Bessel-corrected over tokens. With `shift=False` the mean is not subtracted from the
    result (veRL adds it back after the division; we divide the value itself, so that 0 stays 0). Equal values give 0: without
    shift, division by their standard deviation would blow them up.
    """
    if (values_S == values_S[0]).all():
        return np.zeros_like(values_S)
    mean = _mean(values_S, lengths_S)
    num_tokens = float(lengths_S.sum())
    variance = float((lengths_S * (values_S - mean) ** 2).sum()) / (num_tokens + WHITEN_EPSILON)
    variance *= num_tokens / max(num_tokens - 1.0, 1.0)
    return np.asarray((values_S - mean if shift else values_S) / np.sqrt(variance + WHITEN_EPSILON))


def _mean(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the mean; exactly the common value if all are equal, so that constant groups centre to an exact zero."""
    if (values == values[0]).all():
        return float(values[0])
    if weights is None:
        return float(values.mean())
    return float((weights * values).sum() / (float(weights.sum()) + WHITEN_EPSILON))


def group_rows(keys: Iterable[object]) -> list[np.ndarray]:
    """Return the row numbers of each distinct key, keys in order of first appearance."""
    found: dict[object, list[int]] = {}
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    return [np.array(rows) for rows in found.values()]


def _mean_of(rewards_S: np.ndarray, keys: Sequence[object]) -> np.ndarray:
    baseline_S = np.zeros_like(rewards_S)
    for rows in group_rows(keys):
        baseline_S[rows] = _mean(rewards_S[rows])
    return baseline_S


def _group_baseline(rewards_S: np.ndarray, keys: Sequence[object], lone_keys: Sequence[object] | None) -> np.ndarray:
    """Return the mean of each group; for a group of one 0, or the mean over its `lone_keys` key."""
    baseline_S = _mean_of(rewards_S, keys)
    fallback_S = np.zeros_like(rewards_S) if lone_keys is None else _mean_of(rewards_S, lone_keys)
    for rows in group_rows(keys):
        if len(rows) == 1:
            baseline_S[rows] = fallback_S[rows]
    return baseline_S
