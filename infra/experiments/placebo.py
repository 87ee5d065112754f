"""A placebo: everything runs as usual, but within each group the rewards are dealt out anew, so that they say nothing."""

import zlib
from collections.abc import Sequence

import numpy as np

from stages.core.method.advantages import Advantages, reinforce_plus_plus_baseline


def permuted(
    rewards_S: np.ndarray, group_ids: Sequence[str], kinds: Sequence[str], roles: Sequence[str], lengths_S: np.ndarray
) -> Advantages:
    """REINFORCE++-baseline on rewards permuted within each group (one prompt's proposals, one task's attempts).

    The draw is keyed by the group's id, which names its place in the run, so equal runs deal equally. The table of samples keeps
    the reward that was earned; `centred` and `advantage` are of the one that was dealt.
    """
    dealt_S = np.array(rewards_S, np.float64)
    for group in sorted(set(zip(roles, group_ids, strict=True))):
        rows = [row for row, key in enumerate(zip(roles, group_ids, strict=True)) if key == group]
        rng = np.random.default_rng(zlib.crc32(" ".join(group).encode()))
        dealt_S[rows] = dealt_S[rng.permutation(rows)]
    return reinforce_plus_plus_baseline(dealt_S, group_ids, kinds, roles, lengths_S, lone_by_kind=True)
