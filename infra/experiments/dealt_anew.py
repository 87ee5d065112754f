"""The placebo of placebo.py in the main arms' terms: rewards are dealt out anew, and a group of equal rewards has advantage 0."""

import zlib
from collections.abc import Sequence

import numpy as np

from stages.core.method.advantages import Advantages, reinforce_plus_plus_baseline


def dealt_anew(
    rewards_S: np.ndarray, group_ids: Sequence[str], kinds: Sequence[str], roles: Sequence[str], lengths_S: np.ndarray
) -> Advantages:
    """REINFORCE++-baseline without the whitening's shift, on rewards permuted within each group.

    It differs from the estimator of `reasoner` (`learning.whiten_shift = false`) in the permutation alone, whose draw is keyed by
    the group's id: equal runs deal equally.
    """
    rewards = np.asarray(rewards_S, np.float64)
    groups: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(roles, group_ids, strict=True)):
        groups.setdefault(key, []).append(row)
    dealt_S = rewards.copy()
    for key, rows in groups.items():
        dealt_S[rows] = rewards[np.random.default_rng(zlib.crc32(" ".join(key).encode())).permutation(rows)]
    return reinforce_plus_plus_baseline(dealt_S, group_ids, kinds, roles, lengths_S, lone_by_kind=True, shift=False)
