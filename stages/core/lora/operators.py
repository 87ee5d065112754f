"""Evolution operators on delta W (arXiv 2605.16727): mutations M1..M5, crossovers X1..X4, controls C1 and C2.

An adapter's delta W = (alpha / r) B A is unchanged if (B, A) becomes (B G, G^-1 A). Operators on the raw factors (`paper.py`)
therefore depend on an arbitrary choice of basis. Here BA = U S V^T by thin SVD, which has no gauge; children are written with
B' = U' sqrt(S') and A' = sqrt(S') V'^T, and then scaled so that rows of A' are as long as the parent's: children learn at the
rate of copies. Rank, shapes and alpha are unchanged.

Deviations (the paper names the operators; their formulas and numbers come from a third-party port of it):
1. M1 rotates by Cayley's orthogonal (I - K/2)^-1 (I + K/2), K = eps skew, not by I + K, which inflates the norm by 17 %.
2. M2, M4 and M5 add noise to the balanced factors; singular vectors are oriented by a fixed rule, so that the child does not
   depend on the gauge (except between equal singular values, where the SVD itself is free).
3. M5's noise is relative to the rows of A'; the port's alpha = 10 is absolute and overwhelms A.
4. X1 drops singular triplets, not entries: like DARE's (arXiv 2311.03099), its expectation is the mean of the parents, but no
   d x d matrix is formed and no full-rank noise is added.
5. X1, X4 and C2 restore the norm of the parents, matrix by matrix.
6. Matrices whose delta is 0 (before any training B = 0) are copied from the first parent; see `algebra.rebuild`.

To add an operator, write one function (parents, generator) -> (child, parameters) and one line in OPERATORS.
Axes: N adapted matrices, R rank, P rank times parents, I inputs, O outputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.core.lora.adapter import Weights
from stages.core.lora.algebra import (
    Factors,
    GramMatrices,
    ThinSVD,
    copies,
    dump,
    grams,
    load,
    norms,
    oriented,
    part,
    rebuild,
    scaled_as,
    thin_svd,
)
from stages.core.lora.delta import AdapterChange, change

Parameters = dict[str, Any]
Result = tuple[Factors, Parameters]
FactorOperator = Callable[[Sequence[Factors], np.random.Generator], Result]
WeightOperator = Callable[[Sequence[Weights], np.random.Generator], tuple[Weights, Parameters]]


# ---- mutations: one parent ----------------------------------------------------------------------------------------------------


def svd_structured(parents: Sequence[Factors], rng: np.random.Generator, eps: float = 0.1) -> Result:
    """M1: S' = S exp(eps z), U' = U Q, V' = V Q' with Q, Q' orthogonal and near I + eps skew(M), z and M standard normal."""
    (parent,) = parents
    thin = oriented(thin_svd(grams(parents), parent.rank), parent)
    shape = tuple(thin.left_NPR.shape)
    values_NR = thin.values_NR * torch.exp(eps * normal(rng, shape[:2], thin.values_NR))
    left_NPR = thin.left_NPR @ rotation(normal(rng, shape, thin.left_NPR), eps)
    right_NRP = rotation(normal(rng, shape, thin.left_NPR), eps).mT @ thin.right_NRP
    return scaled_as(rebuild(parents, ThinSVD(left_NPR, values_NR, right_NRP)), parent), {"eps": eps}


def layer_selective_gaussian(
    parents: Sequence[Factors], rng: np.random.Generator, eps: float = 0.1, share: float = 0.33
) -> Result:
    """M2: W += eps rms(W) N(0, 1) on both balanced factors of a random share of the matrices."""
    (parent,) = parents
    count = max(1, int(share * len(parent.names)))
    chosen = sorted(rng.choice(len(parent.names), size=count, replace=False).tolist())
    return _noisy(parent, rng, eps, chosen), {"eps": eps, "share": share, "matrices": count}


def component_masking(parents: Sequence[Factors], rng: np.random.Generator, share: float = 0.3) -> Result:
    """M3: ceil(share r) random singular values of every matrix become 0, but never all."""
    (parent,) = parents
    count = min(math.ceil(share * parent.rank), parent.rank - 1)
    thin = thin_svd(grams(parents), parent.rank)
    rank_NR = rng.random(thin.values_NR.shape).argsort(axis=1).argsort(axis=1)
    kept_NR = torch.from_numpy(rank_NR >= count).to(thin.values_NR.device)
    child = rebuild(parents, ThinSVD(thin.left_NPR, thin.values_NR * kept_NR, thin.right_NRP))
    return scaled_as(child, parent), {"share": share, "components": count}


def full_gaussian(parents: Sequence[Factors], rng: np.random.Generator, eps: float = 0.15) -> Result:
    """M4: W += eps rms(W) N(0, 1) on both balanced factors of every matrix."""
    (parent,) = parents
    return _noisy(parent, rng, eps, list(range(len(parent.names)))), {"eps": eps}


def neftune(parents: Sequence[Factors], rng: np.random.Generator, alpha: float = 1.0) -> Result:
    """M5: A' += U(-1, 1) alpha / sqrt(numel A') times the root mean square norm of a row of A'; B' untouched.

    After NEFTune (arXiv 2310.05914), whose rows are embeddings of norm near 1.
    """
    (parent,) = parents
    child = rebuild(parents, oriented(thin_svd(grams(parents), parent.rank), parent))
    source = torch_source(rng, child)
    A = []
    for A_RI, B_OR in zip(child.A, child.B, strict=True):
        step = alpha / math.sqrt(A_RI.numel()) * float(A_RI.norm()) / math.sqrt(A_RI.shape[0])
        noise_RI = torch.rand(A_RI.shape, generator=source, device=A_RI.device) * 2.0 - 1.0
        A.append(A_RI.add(noise_RI, alpha=step if B_OR.any() else 0.0))
    return scaled_as(Factors(child.names, tuple(A), child.B), parent), {"alpha": alpha}


# ---- crossovers: two parents, the better one first ----------------------------------------------------------------------------


def dare(parents: Sequence[Factors], rng: np.random.Generator, p: float = 0.5, keep_norm: bool = True) -> Result:
    """X1: drop every triplet of both parents with probability p, divide the rest by 1 - p, and take the mean of the two."""
    both = grams(parents)
    cores = []
    for thin in _alone(both, parents):
        kept_NR = torch.from_numpy(rng.random(thin.values_NR.shape) >= p).to(thin.values_NR.device)
        weight_NR = 0.5 * thin.values_NR * kept_NR / (1.0 - p)
        cores.append(thin.left_NPR @ (weight_NR[..., None] * thin.right_NRP))
    return _combined(parents, both, cores, (0.5, 0.5) if keep_norm else None), {"p": p}


def layer_modular(parents: Sequence[Factors], rng: np.random.Generator) -> Result:
    """X2: copy every matrix whole from one of the two parents, each with probability 1/2."""
    first, second = parents
    coins = rng.random(len(first.names)) < 0.5
    chosen = [first if coin else second for coin in coins]
    A = copies([parent.A[index] for index, parent in enumerate(chosen)])
    B = copies([parent.B[index] for index, parent in enumerate(chosen)])
    return Factors(first.names, A, B), {"first": int(coins.sum()), "second": int((~coins).sum())}


def svd_subspace(parents: Sequence[Factors], rng: np.random.Generator) -> Result:
    """X3: the leading k triplets of the first parent and the triplets k+1..r of the second, k uniform over 1..r-1."""
    rank = parents[0].rank
    k = int(rng.integers(1, max(rank, 2)))
    both = grams(parents)
    cores = []
    for thin, span in zip(_alone(both, parents), (slice(0, k), slice(k, rank)), strict=True):
        cores.append(thin.left_NPR[..., span] @ (thin.values_NR[:, span, None] * thin.right_NRP[:, span]))
    return _combined(parents, both, cores, None), {"k": k}


def extrapolative(parents: Sequence[Factors], rng: np.random.Generator, low: float = 1.0, high: float = 1.5) -> Result:
    """X4: worse + eta (better - worse), eta uniform over [low, high]; the norm is the better parent's."""
    eta = float(rng.uniform(low, high))
    return _linear(parents, (eta, 1.0 - eta), (1.0, 0.0)), {"eta": eta}


# ---- controls -----------------------------------------------------------------------------------------------------------------


def copy_parent(parents: Sequence[Factors], rng: np.random.Generator) -> Result:
    """C1: the parent's weights, unchanged."""
    parent = parents[0]
    return Factors(parent.names, copies(parent.A), copies(parent.B)), {}


def midpoint(parents: Sequence[Factors], rng: np.random.Generator) -> Result:
    """C2: the mean of the two parents, at the mean of their norms."""
    return _linear(parents, (0.5, 0.5), (0.5, 0.5)), {"share": 0.5}


# ---- what they are built from -------------------------------------------------------------------------------------------------


def rotation(noise_NRR: Tensor, eps: float) -> Tensor:
    """Return orthogonal matrices near I + eps skew(M), skew(M) = (M - M^T) / 2, by Cayley's transform; identity at eps = 0."""
    half_NRR = 0.25 * eps * (noise_NRR - noise_NRR.mT)
    identity_RR = torch.eye(noise_NRR.shape[-1], dtype=noise_NRR.dtype, device=noise_NRR.device)
    turned_NRR: Tensor = torch.linalg.solve(identity_RR - half_NRR, identity_RR + half_NRR)
    return turned_NRR


def _combined(parents: Sequence[Factors], both: GramMatrices, cores: Sequence[Tensor], shares: Sequence[float] | None) -> Factors:
    """Return the best rank-r approximation of sum B_p K_p A_p, scaled to the parents' norms in `shares` if given."""
    rank = parents[0].rank
    core_NPP = torch.zeros_like(both.B_NPP)
    for index, core_NRR in enumerate(cores):
        span = slice(index * rank, (index + 1) * rank)
        core_NPP[:, span, span] = core_NRR
    thin = thin_svd(both, rank, core_NPP)
    if shares is not None:
        length_N = torch.linalg.vector_norm(thin.values_NR, dim=1)
        goal_N = sum(share * norms(part(both, index, rank)) for index, share in enumerate(shares))
        factor_N = torch.where(length_N > 0, goal_N / length_N.clamp(min=1e-300), 0.0)
        thin = ThinSVD(thin.left_NPR, thin.values_NR * factor_N[:, None], thin.right_NRP)
    return scaled_as(rebuild(parents, thin), parents[0])


def _linear(parents: Sequence[Factors], multiples: Sequence[float], shares: Sequence[float]) -> Factors:
    both = grams(parents)
    identity_RR = torch.eye(parents[0].rank, dtype=both.B_NPP.dtype, device=both.B_NPP.device)
    return _combined(parents, both, [multiple * identity_RR for multiple in multiples], shares)


def _alone(both: GramMatrices, parents: Sequence[Factors]) -> list[ThinSVD]:
    """Return the thin SVD of each parent from the Gram matrices of all."""
    return [thin_svd(part(both, index, parent.rank), parent.rank) for index, parent in enumerate(parents)]


def _noisy(parent: Factors, rng: np.random.Generator, eps: float, chosen: Sequence[int]) -> Factors:
    """Add noise to the balanced factors of the chosen matrices; copy the others."""
    some = Factors(
        tuple(parent.names[index] for index in chosen),
        tuple(parent.A[index] for index in chosen),
        tuple(parent.B[index] for index in chosen),
    )
    thin = oriented(thin_svd(grams([some]), parent.rank), some)
    moved = scaled_as(rebuild([some], thin, eps, torch_source(rng, parent)), some)
    place = {index: position for position, index in enumerate(chosen)}
    everything = range(len(parent.names))
    A = tuple(moved.A[place[index]] if index in place else parent.A[index].clone() for index in everything)
    B = tuple(moved.B[place[index]] if index in place else parent.B[index].clone() for index in everything)
    return Factors(parent.names, A, B)


def normal(rng: np.random.Generator, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return standard normal draws in float64, the same on every device."""
    return torch.from_numpy(rng.standard_normal(shape)).to(like.device)


def torch_source(rng: np.random.Generator, where: Factors) -> torch.Generator:
    """Return a torch generator keyed by the next draw of `rng`; its draws differ between device types."""
    return torch.Generator(where.A[0].device).manual_seed(int(rng.integers(2**63)))


OPERATORS: dict[str, FactorOperator] = {
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


def on_weights(operator: FactorOperator, device: str = "cpu") -> WeightOperator:
    """Wrap an operator for the stages: NumPy weights in and out, computed on `device`."""

    def apply(parents: Sequence[Weights], rng: np.random.Generator) -> tuple[Weights, Parameters]:
        with _one_thread():
            child, parameters = operator([load(weights, device) for weights in parents], rng)
            return dump(child), parameters

    return apply


def compare(child: Weights, parent: Weights) -> AdapterChange:
    """Like `delta.compare`, on one thread: on a busy machine NumPy's threads wait for each other for minutes at 7B shapes."""
    with _one_thread():
        made = load(child)
        products_NPP = (both := grams([made, load(parent)])).B_NPP * both.A_NPP
        rank = made.rank
        own, base = (float(products_NPP[:, span, span].sum()) for span in (slice(0, rank), slice(rank, None)))
        return change(own, float(products_NPP[:, :rank, rank:].sum()), base)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run on one thread inside the block.

    The work is hundreds of short, memory-bound steps: threads would wait for each other longer than they save (a hundred times
    longer on a busy machine), and one thread gives the same bytes whatever number is configured.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def operators(device: str = "cpu", known: Mapping[str, FactorOperator] = OPERATORS) -> dict[str, WeightOperator]:
    """Return the operators by name, wrapped for the stages: those on delta W, or `paper.PAPER_OPERATORS`."""
    return {name: on_weights(operator, device) for name, operator in known.items()}
