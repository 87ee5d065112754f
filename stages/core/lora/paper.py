"""The operators as published: on the raw factors, with the published numbers.

Names are from arXiv 2605.16727, formulas and numbers from a third-party port of it. All operators except M1, M3 and X3, which
start from an SVD, and the copies X2 and C1, depend on the gauge: (B G, G^-1 A) is the same adapter as (B, A), but has a different
child. The midpoint of two unrelated parents' factors is not the midpoint of their effects (it contains the cross terms B1 A2 and
B2 A1); members that share their A at the start are little affected. M1 rotates by I + eps skew(M), which increases the norm; M3
leaves components that no gradient can revive. Norms are not restored. M1, M3 and X3 split the singular values evenly between both
factors, as published, and do not scale them like the parent's (`scaled_as`): at first, their children learn more slowly than
copies. These operators serve comparison with the literature: runs
use `operators` unless `evolution.space` is `paper`.

Axes: N adapted matrices, R rank, I inputs, O outputs.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from stages.core.lora.algebra import Factors, ThinSVD, copies, grams, oriented, rebuild, room, thin_svd
from stages.core.lora.operators import FactorOperator, Result, copy_parent, layer_modular, normal, torch_source


def svd_structured(parents: Sequence[Factors], rng: np.random.Generator, eps: float = 0.1) -> Result:
    """M1: S' = S exp(eps z), U' = U (I + eps skew(M)), V' likewise, skew(M) = (M - M^T) / 2."""
    (parent,) = parents
    thin = oriented(thin_svd(grams(parents), parent.rank), parent)
    shape = tuple(thin.left_NPR.shape)
    values_NR = thin.values_NR * torch.exp(eps * normal(rng, shape[:2], thin.values_NR))
    left_NPR = thin.left_NPR @ _turn(normal(rng, shape, thin.left_NPR), eps)
    right_NRP = _turn(normal(rng, shape, thin.left_NPR), eps).mT @ thin.right_NRP
    return rebuild(parents, ThinSVD(left_NPR, values_NR, right_NRP), revive=False), {"eps": eps}


def layer_selective_gaussian(
    parents: Sequence[Factors], rng: np.random.Generator, eps: float = 0.1, share: float = 0.33
) -> Result:
    """M2: W += eps std(W) N(0, 1) on both factors of a random share of the matrices."""
    (parent,) = parents
    count = max(1, int(share * len(parent.names)))
    chosen = set(rng.choice(len(parent.names), size=count, replace=False).tolist())
    return _noisy(parent, rng, eps, chosen), {"eps": eps, "share": share, "matrices": count}


def component_masking(parents: Sequence[Factors], rng: np.random.Generator, share: float = 0.3) -> Result:
    """M3: ceil(share r) random singular values of every matrix become 0, along with their part of both factors."""
    (parent,) = parents
    count = math.ceil(share * parent.rank)
    thin = thin_svd(grams(parents), parent.rank)
    rank_NR = rng.random(thin.values_NR.shape).argsort(axis=1).argsort(axis=1)
    kept_NR = torch.from_numpy(rank_NR >= count).to(thin.values_NR.device)
    masked = ThinSVD(thin.left_NPR, thin.values_NR * kept_NR, thin.right_NRP)
    return rebuild(parents, masked, revive=False), {"share": share, "components": count}


def full_gaussian(parents: Sequence[Factors], rng: np.random.Generator, eps: float = 0.15) -> Result:
    """M4: W += eps std(W) N(0, 1) on every factor."""
    (parent,) = parents
    return _noisy(parent, rng, eps, set(range(len(parent.names)))), {"eps": eps}


def neftune(parents: Sequence[Factors], rng: np.random.Generator, alpha: float = 10.0) -> Result:
    """M5: A += U(-1, 1) alpha / sqrt(numel A), B untouched."""
    (parent,) = parents
    source = torch_source(rng, parent)

    def noisy(place_RI: Tensor, A_RI: Tensor) -> Tensor:
        bound = alpha / math.sqrt(A_RI.numel())
        return place_RI.uniform_(-bound, bound, generator=source).add_(A_RI)

    A = tuple(noisy(*pair) for pair in zip(room(parent.A), parent.A, strict=True))
    return Factors(parent.names, A, copies(parent.B)), {"alpha": alpha}


def dare(parents: Sequence[Factors], rng: np.random.Generator, p: float = 0.7) -> Result:
    """X1: drop every entry of every factor with probability p, divide the rest by 1 - p, and take the mean of the two parents."""
    source = torch_source(rng, parents[0])

    def kept(W: Tensor) -> Tensor:
        return W * (torch.rand(W.shape, generator=source, device=W.device) >= p) / (1.0 - p)

    return _pairwise(parents, lambda first, second: 0.5 * (kept(first) + kept(second))), {"p": p}


def svd_subspace(parents: Sequence[Factors], rng: np.random.Generator) -> Result:
    """X3: the leading k triplets of the first parent and the triplets k+1..r of the second, k uniform over 1..r-1."""
    rank = parents[0].rank
    k = int(rng.integers(1, max(rank, 2)))
    halves = []
    for parent, span in zip(parents, (slice(0, k), slice(k, rank)), strict=True):
        halves.append(rebuild([parent], thin_svd(grams([parent]), rank), revive=False, span=span))
    leading, trailing = halves
    A = tuple(torch.cat(rows) for rows in zip(leading.A, trailing.A, strict=True))
    B = tuple(torch.cat(columns, 1) for columns in zip(leading.B, trailing.B, strict=True))
    return Factors(parents[0].names, A, B), {"k": k}


def extrapolative(parents: Sequence[Factors], rng: np.random.Generator, low: float = 1.0, high: float = 1.5) -> Result:
    """X4: worse + eta (better - worse) factor by factor, eta uniform over [low, high]."""
    eta = float(rng.uniform(low, high))
    return _between(parents, 1.0 - eta), {"eta": eta}


def midpoint(parents: Sequence[Factors], rng: np.random.Generator) -> Result:
    """C2: the mean of the two parents, factor by factor."""
    return _between(parents, 0.5), {"share": 0.5}


PAPER_OPERATORS: dict[str, FactorOperator] = {
    "M1": svd_structured,
    "M2": layer_selective_gaussian,
    "M3": component_masking,
    "M4": full_gaussian,
    "M5": neftune,
    "X1": dare,
    "X2": layer_modular,
    "X3": svd_subspace,
    "X4": extrapolative,
    "C1": copy_parent,
    "C2": midpoint,
}


def _turn(noise_NRR: Tensor, eps: float) -> Tensor:
    identity_RR = torch.eye(noise_NRR.shape[-1], dtype=noise_NRR.dtype, device=noise_NRR.device)
    return identity_RR + 0.5 * eps * (noise_NRR - noise_NRR.mT)


def _noisy(parent: Factors, rng: np.random.Generator, eps: float, chosen: set[int]) -> Factors:
    source = torch_source(rng, parent)

    def noisy(index: int, W: Tensor) -> Tensor:
        if index not in chosen:
            return W.clone()
        return W + eps * W.std() * torch.randn(W.shape, generator=source, device=W.device)

    A = tuple(noisy(index, A_RI) for index, A_RI in enumerate(parent.A))
    return Factors(parent.names, A, tuple(noisy(index, B_OR) for index, B_OR in enumerate(parent.B)))


def _between(parents: Sequence[Factors], share: float) -> Factors:
    """Return first + share (second - first), factor by factor."""
    first, second = parents

    def sides(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        pairs = zip(room(ours), ours, theirs, strict=True)
        return tuple(torch.lerp(own, other, share, out=place) for place, own, other in pairs)

    return Factors(first.names, sides(first.A, second.A), sides(first.B, second.B))


def _pairwise(parents: Sequence[Factors], mix: Callable[[Tensor, Tensor], Tensor]) -> Factors:
    first, second = parents
    A = tuple(mix(*pair) for pair in zip(first.A, second.A, strict=True))
    return Factors(first.names, A, tuple(mix(*pair) for pair in zip(first.B, second.B, strict=True)))
