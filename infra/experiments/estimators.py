"""Estimators that weight right answers by how rare they are in their group: compared with the method's own in docs/evidence.md.

With `a` = 1 for a reward above 0 and 0 otherwise, and `p` the mean of `a` in a group, that is one task's attempts or one prompt's
proposals:

- `by_likelihood`: (a - p) / p, and 0 where p = 0. It estimates the gradient of log p where the usual baseline estimates that of
  p, so that a task that is rarely solved weighs more. The estimate is biased, because p comes from the same attempts.
- `by_rarity`: a (1 - p): the right answers alone, the rare ones more.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stages.core.method.advantages import Advantages


def by_likelihood(
    rewards_S: np.ndarray, group_ids: Sequence[str], kinds: Sequence[str], roles: Sequence[str], lengths_S: np.ndarray
) -> Advantages:
    """Return (a - p) / p; 0 in a group without a right answer."""
    accepted_S, share_S = _accepted(rewards_S, group_ids, roles)
    return _advantages(rewards_S, np.divide(accepted_S - share_S, share_S, out=np.zeros_like(share_S), where=share_S > 0))


def by_rarity(
    rewards_S: np.ndarray, group_ids: Sequence[str], kinds: Sequence[str], roles: Sequence[str], lengths_S: np.ndarray
) -> Advantages:
    """Return a (1 - p)."""
    accepted_S, share_S = _accepted(rewards_S, group_ids, roles)
    return _advantages(rewards_S, accepted_S * (1 - share_S))


def _accepted(rewards_S: np.ndarray, group_ids: Sequence[str], roles: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return `a` of each sample, and `p` of its group."""
    accepted_S = (np.asarray(rewards_S, np.float64) > 0).astype(np.float64)
    groups = defaultdict[tuple[str, str], list[int]](list)
    for row, key in enumerate(zip(roles, group_ids, strict=True)):
        groups[key].append(row)
    share_S = np.empty_like(accepted_S)
    for rows in groups.values():
        share_S[rows] = accepted_S[rows].mean()
    return accepted_S, share_S


def _advantages(rewards_S: np.ndarray, advantage_S: np.ndarray) -> Advantages:
    return Advantages(np.asarray(rewards_S, np.float64) - advantage_S, advantage_S, advantage_S)
