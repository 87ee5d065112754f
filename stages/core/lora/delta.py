"""The effect of a LoRA adapter on its base, measured from the factors alone: norms, cosines, spectra. NumPy only.

An adapter adds delta W = (alpha / r) B A to each adapted matrix. Any invertible G turns (B, A) into (B G, G^-1 A) and leaves
delta W unchanged, so only delta W is meaningful, and nothing here depends on G. Inner products need no d x d matrix:
<B1 A1, B2 A2> = sum((B1^T B2) * (A1 A2^T)). The factor alpha / r is common to all members of a run and drops out of ratios.

Axes: R rank, I inputs, O outputs, so A_RI and B_OR.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stages.core.lora.adapter import Weights

A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True)
class AdapterChange:
    """How far an adapter is from another: |delta - delta'| / |delta'| and the cosine between the two; 0 where undefined."""

    relative: float
    cosine: float


def modules(weights: Mapping[str, np.ndarray]) -> list[str]:
    """Return the adapted matrices, by name without suffix, sorted."""
    names = sorted(name.removesuffix(A_SUFFIX) for name in weights if name.endswith(A_SUFFIX))
    if sorted(name + suffix for name in names for suffix in (A_SUFFIX, B_SUFFIX)) != sorted(weights):
        raise ValueError(f"not pairs of lora_A and lora_B: {sorted(weights)[:4]} ...")
    return names


def factors(weights: Weights) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (module, A_RI, B_OR) of every adapted matrix."""
    for name in modules(weights):
        yield name, weights[name + A_SUFFIX], weights[name + B_SUFFIX]


def compare(child: Weights, parent: Weights) -> AdapterChange:
    """Return the change from `parent` to `child` over all adapted matrices together."""
    own = both = base = 0.0
    for (_, child_A_RI, child_B_OR), (_, parent_A_RI, parent_B_OR) in zip(factors(child), factors(parent), strict=True):
        rank = child_A_RI.shape[0]
        # concatenated and in float64: the difference of two nearly equal adapters would be lost in float32 rounding
        outputs_PP = _gram(np.hstack([child_B_OR, parent_B_OR]))
        inputs_PP = _gram(np.vstack([child_A_RI, parent_A_RI]).T)
        products = outputs_PP * inputs_PP
        own += float(products[:rank, :rank].sum())
        both += float(products[:rank, rank:].sum())
        base += float(products[rank:, rank:].sum())
    return change(own, both, base)


def change(own: float, both: float, base: float) -> AdapterChange:
    """Compute the change from the inner products <child, child>, <child, parent> and <parent, parent>."""
    cosine = both / np.sqrt(own * base) if own > 0 and base > 0 else 0.0
    relative = np.sqrt(max(own - 2 * both + base, 0.0) / base) if base > 0 else 0.0
    return AdapterChange(float(relative), float(np.clip(cosine, -1.0, 1.0)))


def spectrum(A_RI: np.ndarray, B_OR: np.ndarray) -> np.ndarray:
    """Return the singular values of B A, largest first."""
    upper_of_B = np.asarray(np.linalg.qr(B_OR.astype(np.float64), mode="r"))
    upper_of_A = np.asarray(np.linalg.qr(A_RI.T.astype(np.float64), mode="r"))
    return np.linalg.svd(upper_of_B @ upper_of_A.T, compute_uv=False)


def _gram(tall: np.ndarray) -> np.ndarray:
    rows = tall.astype(np.float64)
    return rows.T @ rows


def check_alike(named: Mapping[str, Weights]) -> None:
    """Raise ValueError, naming both sides, unless all adapters adapt the same matrices with equal shapes, in finite float32."""
    if not named:
        return
    (first_name, first), *others = named.items()
    for name, weights in named.items():
        _check_values(name, weights)
    for name, weights in others:
        if modules(first) != modules(weights):
            odd = sorted(set(modules(first)) ^ set(modules(weights)))[0]
            raise ValueError(f"adapters {first_name} and {name} have different targets: only one of them adapts {odd}")
        for key, values in first.items():
            if values.shape != weights[key].shape:
                shapes = f"{values.shape} in {first_name} and {weights[key].shape} in {name}"
                raise ValueError(f"adapters {first_name} and {name} differ in rank or size: {key} is {shapes}")


def _check_values(name: str, weights: Weights) -> None:
    for key, values in weights.items():
        if values.dtype != np.float32:
            raise ValueError(f"adapter {name}: {key} is {values.dtype}, not float32")
        if not np.isfinite(values).all():
            raise ValueError(f"adapter {name}: {key} contains non-finite values")
