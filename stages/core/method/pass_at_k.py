"""Advantages for the best of k answers: a student earns what its answer adds to the best of k, and little for what k find anyway.

With the mean reward as the objective, each right answer of a group is pushed up alike, until the student is certain of one answer
and all of its attempts are the same. The best of k gives no reason for that: where many of a group's answers are right, one more
adds nothing.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

from stages.core.method.advantages import Advantages, group_rows, reinforce_plus_plus_baseline, whiten


def pass_at_k(
    rewards_S: Sequence[float] | np.ndarray,
    group_ids: Sequence[str],
    kinds: Sequence[str],
    roles: Sequence[str],
    lengths_S: Sequence[int] | np.ndarray,
    *,
    k: int,
    lone_by_kind: bool = False,
) -> Advantages:
    """Advantage of a student's answer i in a group of n: (E[max of k | i among them] - E[max of k]) / std, by tokens.

    Both are exact means over the subsets of k of the group's n rewards. For rewards of 0 and 1 this is the analytical advantage
    of Chen et al. 2025 ("Pass@k Training", arXiv 2508.10751), and without its baseline the estimator of Walder and Karkhanis 2025
    (arXiv 2505.15201), which also covers other rewards. Deviations: divided by the standard deviation over the adapter's response
    tokens (`whiten` without shift), not by each group's; equal rewards get equal advantages; a group of at most k answers has
    advantage 0, since its best is the same with any of them. A teacher's proposals get the advantages of
    `reinforce_plus_plus_baseline` without shift: each counts, not the best of some. k = 1 is that estimator for both roles, but
    for groups of one.
    """
    rewards = np.asarray(rewards_S, np.float64)
    lengths = np.asarray(lengths_S)
    by_mean = reinforce_plus_plus_baseline(rewards, group_ids, kinds, roles, lengths, lone_by_kind=lone_by_kind, shift=False)
    centred_S, advantage_S = by_mean.centred_S.copy(), by_mean.advantage_S.copy()
    students = np.array([role == "student" for role in roles])
    for rows in group_rows(list(zip(roles, group_ids, strict=True))):
        if students[rows[0]]:
            centred_S[rows] = added_to_best(rewards[rows], k)
    if students.any():
        advantage_S[students] = whiten(centred_S[students], lengths[students], shift=False)
    return Advantages(rewards - centred_S, centred_S, advantage_S)


def added_to_best(rewards_N: np.ndarray, k: int) -> np.ndarray:
    """Return E[max of k | i among them] - E[max of k] for each i, over all subsets of k of the N rewards; sums to 0.

    Sorted in ascending order, the reward at place j (from 0) is the largest of C(j, k-1) subsets, and of C(j-1, k-2) of those
    that also hold a given reward at an earlier place.
    """
    if (rewards_N == rewards_N[0]).all():
        return np.zeros(len(rewards_N))
    count, k = len(rewards_N), min(k, len(rewards_N))
    order_N = np.argsort(rewards_N, kind="stable")
    sorted_N = rewards_N[order_N]
    expected = sum(sorted_N[j] * comb(j, k - 1) for j in range(count)) / comb(count, k)
    later_N = np.zeros(count)  # what larger rewards contribute where place i is among the k
    if k > 1:
        parts_N = np.array([sorted_N[j] * comb(j - 1, k - 2) if j else 0.0 for j in range(count)])
        later_N[:-1] = np.cumsum(parts_N[::-1])[::-1][1:]
    own_N = np.array([sorted_N[i] * comb(i, k - 1) for i in range(count)])
    added_N = np.empty(count)
    added_N[order_N] = (own_N + later_N) / comb(count - 1, k - 1) - expected
    for rows in group_rows(rewards_N.tolist()):
        added_N[rows] = added_N[rows].mean()  # places among equal rewards are arbitrary, their mean is not
    return added_N
