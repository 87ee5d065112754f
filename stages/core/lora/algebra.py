"""Algebra of the evolution operators: adapters as products, their thin SVDs, and children rebuilt from them.

For an adapter (B, A), or two concatenated ones, and a small matrix K, the product B K A has the Gram matrices B^T B = W L W^T and
A A^T = Z M Z^T, and

    B K A = Q_B (L^1/2 W^T K Z M^1/2) Q_A^T,    Q_B = B W L^-1/2,    Q_A^T = M^-1/2 Z^T A,

so its thin SVD U S V^T has U = B X and V^T = Y A with small X and Y from one small SVD; no d x d matrix is formed. The Gram
matrices and all small algebra are float64, which resolves float32 factors to their last bit. A child's error is that of one
float32 product, about sqrt(r) * 6e-8 * |B| |A|. Householder QR of the tall factors gives the same result in twice the time.

Axes: N adapted matrices, R rank, P rank times parents, I inputs, O outputs.
"""

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stages.core.lora.adapter import Weights
from stages.core.lora.delta import A_SUFFIX, B_SUFFIX, modules

_NEGLIGIBLE = 1e-14  # eigenvalues of a Gram matrix below this share of the largest are rounding errors
_NOTHING = 1e-12  # singular values below this share of |B| |A| are rounding errors of the small algebra
_DEAD = 1e-7  # singular values below this share of the largest are rounding errors of float32 factors
_WHOLE = slice(None)
_spare: dict[int, np.ndarray] = {}  # by size: unused memory, at most that of one adapter (all A and all B)


@dataclass(frozen=True)
class Factors:
    """An adapter on a device: for each adapted matrix, in the order of `names`, A_RI and B_OR. Read-only."""

    names: tuple[str, ...]
    A: tuple[Tensor, ...]
    B: tuple[Tensor, ...]

    @property
    def rank(self) -> int:
        """The LoRA rank, common to all matrices."""
        return self.A[0].shape[0]


@dataclass(frozen=True)
class GramMatrices:
    """B^T B and A A^T of every matrix. For concatenated parents, P is the sum of their ranks."""

    B_NPP: Tensor
    A_NPP: Tensor


@dataclass(frozen=True)
class ThinSVD:
    """Thin SVDs of all matrices at once: U = B_OP @ left_NPR, V^T = right_NRP @ A_PI, singular values descending."""

    left_NPR: Tensor
    values_NR: Tensor
    right_NRP: Tensor


def load(weights: Weights, device: str = "cpu") -> Factors:
    """Return weights as tensors; memory is shared if NumPy and torch allow it."""
    names = tuple(modules(weights))
    A, B = ([_tensor(weights[name + suffix], device) for name in names] for suffix in (A_SUFFIX, B_SUFFIX))
    return Factors(names, tuple(A), tuple(B))


def dump(factors: Factors) -> Weights:
    """Return tensors as weights."""
    weights = {name + A_SUFFIX: A_RI.cpu().numpy() for name, A_RI in zip(factors.names, factors.A, strict=True)}
    return weights | {name + B_SUFFIX: B_OR.cpu().numpy() for name, B_OR in zip(factors.names, factors.B, strict=True)}


def room(like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return uninitialised tensors of these shapes, contiguous in one allocation."""
    sizes = [values.numel() for values in like]
    if like[0].device.type == "cpu" and like[0].dtype == torch.float32:
        flat = torch.from_numpy(_memory(sum(sizes)))
    else:
        flat = torch.empty(sum(sizes), dtype=like[0].dtype, device=like[0].device)
    return tuple(part.view(values.shape) for part, values in zip(flat.split(sizes), like, strict=True))


def forget_spare() -> None:
    """Release the memory that is kept for the next adapter."""
    _spare.clear()


def _memory(count: int) -> np.ndarray:
    """Return memory for `count` float32 numbers. Once unused, it is kept for the next call of the same size.

    Siblings are made one after another, and touching fresh memory takes longer than writing to it (many times longer on a
    virtual machine). NumPy asks the kernel for huge pages for large allocations.
    """
    kept = _spare.pop(count, None)
    flat = np.empty(count, np.float32) if kept is None else kept
    handed = flat[:]
    weakref.finalize(handed, _keep, flat).atexit = False
    return handed


def _keep(flat: np.ndarray) -> None:
    _spare[flat.size] = flat
    for size in list(_spare)[:-2]:
        _spare.pop(size, None)


def copies(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return copies of the tensors in separate memory."""
    return tuple(place.copy_(values) for place, values in zip(room(tensors), tensors, strict=True))


def grams(parents: Sequence[Factors]) -> GramMatrices:
    """Return the Gram matrices of the concatenated parents."""
    count = range(len(parents[0].names))
    return GramMatrices(
        torch.stack([_gram([parent.B[index] for parent in parents]) for index in count]),
        torch.stack([_gram([parent.A[index].T for parent in parents]) for index in count]),
    )


def part(both: GramMatrices, index: int, rank: int) -> GramMatrices:
    """Return the Gram matrices of one parent alone."""
    span = slice(index * rank, (index + 1) * rank)
    return GramMatrices(both.B_NPP[:, span, span], both.A_NPP[:, span, span])


def norms(single: GramMatrices) -> Tensor:
    """Return |BA| of every matrix: |BA|^2 = sum(B^T B * A A^T)."""
    return (single.B_NPP * single.A_NPP).sum((1, 2)).clamp(min=0.0).sqrt()


def thin_svd(products: GramMatrices, rank: int, core_NPP: Tensor | None = None) -> ThinSVD:
    """Return the leading `rank` triplets of B K A, the best approximation of that rank; K defaults to the identity."""
    root_B, inverse_B = _roots(products.B_NPP)
    root_A, inverse_A = _roots(products.A_NPP)
    middle = root_B @ root_A.mT if core_NPP is None else root_B @ core_NPP @ root_A.mT
    u_NPP, values_NP, vt_NPP = torch.linalg.svd(middle)
    size_N = root_B.square().sum((1, 2)).sqrt() * root_A.square().sum((1, 2)).sqrt()
    values_NP = torch.where(values_NP > _NOTHING * size_N[:, None], values_NP, 0.0)
    return ThinSVD(inverse_B @ u_NPP[:, :, :rank], values_NP[:, :rank], vt_NPP[:, :rank] @ inverse_A.mT)


def oriented(thin: ThinSVD, parent: Factors) -> ThinSVD:
    """Orient every pair (u, v) so that u's product with a fixed vector is positive: the SVD leaves the sign free."""
    probes = [torch.cos(torch.arange(B_OR.shape[0], device=B_OR.device, dtype=torch.float32)) @ B_OR for B_OR in parent.B]
    along_NR = (torch.stack(probes).double()[:, None, :] @ thin.left_NPR)[:, 0]
    sign_NR = torch.where(along_NR < 0, -1.0, 1.0).double()
    return ThinSVD(thin.left_NPR * sign_NR[:, None, :], thin.values_NR, thin.right_NRP * sign_NR[..., None])


def rebuild(
    parents: Sequence[Factors],
    thin: ThinSVD,
    noise: float = 0.0,
    source: torch.Generator | None = None,
    revive: bool = True,
    span: slice = _WHOLE,
) -> Factors:
    """Return balanced factors U sqrt(S) and sqrt(S) V^T, plus normal noise of `noise` times each factor's root mean square.

    Only the components in `span` are made, which is much cheaper than making all and dropping some. A component whose
    singular value is 0 keeps its row of A next to a zero column of B, as at LoRA's start: with both zero (as without `revive`) no
    gradient could ever revive it. A matrix whose singular values are all 0 is copied from the first parent (before any
    training B = 0).
    """
    first = parents[0]
    sides_B_NR, sides_A_NR = _balanced(thin.values_NR, revive)
    left_NPR = (thin.left_NPR * sides_B_NR[:, None, :])[..., span].float()
    right_NRP = (sides_A_NR[..., None] * thin.right_NRP)[:, span].float()
    size_B, size_A = (noise * sides_NR.square().sum(1).sqrt() for sides_NR in (sides_B_NR, sides_A_NR))
    alive = (thin.values_NR > 0).any(1).tolist()
    A, B = room([A_RI[span] for A_RI in first.A]), room([B_OR[:, span] for B_OR in first.B])
    for index, (step_B, step_A) in enumerate(zip(size_B.tolist(), size_A.tolist(), strict=True)):
        if not alive[index]:
            A[index].copy_(first.A[index][span])
            B[index].copy_(first.B[index][:, span])
            continue
        B_OP, A_PI = torch.cat([parent.B[index] for parent in parents], 1), torch.cat([parent.A[index] for parent in parents])
        _product(B_OP, left_NPR[index], step_B / math.sqrt(first.B[index].numel()), source, B[index])
        _product(right_NRP[index], A_PI, step_A / math.sqrt(first.A[index].numel()), source, A[index])
        if revive:
            _fill_lost_rows(A[index], first.A[index][span], sides_A_NR[index, span], thin.values_NR[index, span])
    return Factors(first.names, A, B)


def scaled_as(child: Factors, parent: Factors) -> Factors:
    """Scale every component of the child, in place, so that its row of A is as long as the parent's; delta W stays.

    Adam moves each entry by much the same length, so a step changes delta W by some |A| + |B|. In balanced factors both are
    small, and the child of an adapter whose rows of A still have their first length would learn at a fraction of its parent's
    rate. Matrices that are copies of the parent's stay.
    """
    for A_RI, B_OR, first_RI, first_OR in zip(child.A, child.B, parent.A, parent.B, strict=True):
        lengths_R, goal = A_RI.norm(dim=1), float(first_RI.norm()) / math.sqrt(first_RI.shape[0])
        if goal and not torch.equal(B_OR, first_OR):
            scale_R = torch.where(lengths_R > 0, goal / lengths_R, 1.0)
            A_RI.mul_(scale_R[:, None])
            B_OR.div_(scale_R)
    return child


def _fill_lost_rows(A_RI: Tensor, first_RI: Tensor, sides_R: Tensor, values_R: Tensor) -> None:
    """Give dead components without a row of A the first parent's row, as long as the row would have been.

    A dead component's right vector is arbitrary, and one that the rows of A map to 0 makes no row where these are dependent.
    """
    lost_R = (values_R == 0) & (A_RI.norm(dim=1) <= _DEAD * sides_R)
    if lost_R.any():
        A_RI[lost_R] = torch.nn.functional.normalize(first_RI[lost_R], dim=1) * sides_R[lost_R, None].float()


def _product(left: Tensor, right: Tensor, noise: float, source: torch.Generator | None, out: Tensor) -> None:
    """Write left @ right plus noise into `out`."""
    if not noise:
        torch.matmul(left, right, out=out)
        return
    draws = torch.randn(left.shape[0], right.shape[1], generator=source, device=left.device)
    torch.addmm(draws, left, right, beta=noise, out=out)


def _balanced(values_NR: Tensor, revive: bool) -> tuple[Tensor, Tensor]:
    """Return the factors of each component of U and of V^T: square roots of S, or 0 and a nonzero row if S is 0."""
    roots_NR = values_NR.sqrt()
    dead_NR = values_NR <= _DEAD * values_NR.amax(1, keepdim=True)
    typical_N1 = values_NR.mean(1, keepdim=True).sqrt() if revive else 0.0
    return torch.where(dead_NR, 0.0, roots_NR), torch.where(dead_NR, typical_N1, roots_NR)


def _roots(gram_NPP: Tensor) -> tuple[Tensor, Tensor]:
    """Return F with F^T F = G, and the inverse that makes the tall factor orthonormal; zero-length directions give 0."""
    lengths_NP, axes_NPP = torch.linalg.eigh(gram_NPP)
    known_NP = lengths_NP > _NEGLIGIBLE * lengths_NP[:, -1:]
    lengths_NP = torch.where(known_NP, lengths_NP, 0.0).sqrt()
    inverse_NP = torch.where(known_NP, 1.0 / torch.where(known_NP, lengths_NP, 1.0), 0.0)
    return lengths_NP[..., None] * axes_NPP.mT, axes_NPP * inverse_NP[:, None, :]


def _gram(tall: Sequence[Tensor]) -> Tensor:
    """Return X^T X in float64 of the concatenated tall matrices."""
    rows = torch.cat(list(tall), 1).double()
    return rows.T @ rows


def _tensor(values: np.ndarray, device: str) -> Tensor:
    # torch warns about read-only memory, though nothing here writes to it
    return torch.from_numpy(values if values.flags.writeable else values.copy()).to(device)
