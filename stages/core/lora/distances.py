"""Distances between adapters in delta W space, all pairs at once, from the factors alone. NumPy only.

With <a, b> = sum over matrices of sum((B_a^T B_b) * (A_a A_b^T)), one Gram matrix of all adapters' concatenated factors gives all
inner products. No d x d matrix is formed, and the gauge of the factors cancels. float64, since close adapters nearly cancel.

Axes: N adapters, R rank, P = N R, I inputs, O outputs.
"""

from collections.abc import Sequence

import numpy as np

from stages.core.lora.adapter import Weights
from stages.core.lora.delta import factors


def inner_products(adapters: Sequence[Weights]) -> np.ndarray:
    """Return <delta W_a, delta W_b> of all pairs, [N, N], without the common factor (alpha / r)^2."""
    count = len(adapters)
    products = np.zeros((count, count))
    for matrices in zip(*(factors(weights) for weights in adapters), strict=True):
        assert len({name for name, _, _ in matrices}) == 1, [name for name, _, _ in matrices]
        rank = matrices[0][1].shape[0]
        inputs_PI = np.vstack([A_RI for _, A_RI, _ in matrices]).astype(np.float64)
        outputs_OP = np.hstack([B_OR for _, _, B_OR in matrices]).astype(np.float64)
        blocks = (inputs_PI @ inputs_PI.T) * (outputs_OP.T @ outputs_OP)
        products += blocks.reshape(count, rank, count, rank).sum((1, 3))
    return products


def distances(products: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (norms [N], |a - b| [N, N], cosines [N, N]) from inner products; the cosine with a zero-norm adapter is NaN."""
    squares = np.diag(products)
    apart = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0))
    norms = np.sqrt(np.maximum(squares, 0.0))
    scale = norms[:, None] * norms[None, :]
    cosines = np.divide(products, scale, out=np.full_like(products, np.nan), where=scale > 0)
    return norms, apart, np.clip(cosines, -1.0, 1.0)
