"""The step of one adapter from its gradient: clipping, AdamW and what is measured. Needs no model and no samples.

The gradient is clipped by its own norm, and AdamW (Loshchilov & Hutter 2019, as torch.optim.AdamW) updates the adapter with its
own step count. An adapter takes no step if its gradient is not finite, or if weights or moments would not be after it: weights,
moments and step count are unchanged. Master weights and moments are fp32. The gradient comes whole from one pass, or as a sum
over the parts of an update cut by rows.

Axes: P parameters of one adapter · T response tokens.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from stages.core.lora.adapter import Adapter, Gradient, Weights
from stages.core.training.loss import Objective
from stages.core.training.protocol import Update
from stages.core.training.settings import Settings

NORM_PART = 1 << 20  # parameters
EPSILON = 1e-8  # of AdamW


class SumStepper:
    """Implements `Stepper` on the CPU."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def step(self, adapter: Adapter, gradients: Iterable[Gradient], tokens: pa.Table, counts: Mapping[str, float]) -> Update:
        """Step on g_P = sum over parts of g_P, added in this order in fp32. Holds one part's gradient beside the sum.

        A part with a gradient that is not finite makes the sum not finite, so that the adapter takes no step.
        """
        names = sorted(adapter.weights)
        total_P, budgets = np.zeros(sum(adapter.weights[name].size for name in names), np.float32), []
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below, by the norm
            for gradient in gradients:
                total_P += _flat(gradient.values, names)
                budgets.append(gradient.micro_batch_tokens)
        gradient_P = torch.from_numpy(total_P)
        values = {name: tokens[name].to_numpy().astype(np.float64) for name in ("loss", "entropy", "drift")}
        norm = gradient_norm(gradient_P)
        budget = min(budgets, default=self._settings.pass_tokens)  # no part, if all its groups were skipped
        return finished(adapter, names, gradient_P, norm, values, counts, budget, self._settings)


def gradient_norm(gradient_P: torch.Tensor) -> float:
    """Return the Euclidean norm; beyond the range of the gradient's own type it is infinite.

    Added in fp64: fp32 loses digits over millions of squares. In parts, since the CPU copies what it converts.
    """
    parts = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in gradient_P.split(NORM_PART)]
    norm = float(torch.linalg.vector_norm(torch.stack(parts)))
    return math.inf if norm > torch.finfo(gradient_P.dtype).max else norm


def finished(
    adapter: Adapter,
    names: Sequence[str],
    gradient_P: torch.Tensor,
    norm: float,
    values: Mapping[str, np.ndarray],
    counts: Mapping[str, float],
    budget: int,
    settings: Settings,
) -> Update:
    """Return the adapter after its step, with its metrics; unchanged if the gradient's `norm` or what it would be is not finite.

    `names` are the parameters in the order of `gradient_P`; `values` the loss, entropy and drift of every token.
    """
    stepped = adamw(adapter, names, gradient_P, norm, settings) if np.isfinite(norm) else adapter
    finite = bool(np.isfinite(norm)) and stepped.finite()
    metrics = dict(counts) | measures(values, settings.objective)
    metrics |= {"grad_norm": norm, "nonfinite": float(not finite), "micro_batch_tokens": float(budget)}
    return Update(stepped if finite else adapter, finite, metrics)


def adamw(adapter: Adapter, names: Sequence[str], gradient_P: torch.Tensor, norm: float, settings: Settings) -> Adapter:
    """Apply AdamW to one adapter, fp32 on the gradient's device: m and v decay, bias-corrected by its own step count.

    The count begins with the moments: an adapter that an evolution strategy has moved has steps and none.
    """
    step, device = (adapter.step if adapter.moments else 0) + 1, gradient_P.device
    learning_rate = settings.learning_rate * min(1.0, step / max(1, settings.warmup))
    beta1, beta2 = settings.betas
    weights_P, mean_P, square_P = (
        torch.from_numpy(_flat(arrays, names, prefix)).to(device) if arrays else torch.zeros(len(gradient_P), device=device)
        for arrays, prefix in ((adapter.weights, ""), (adapter.moments, "exp_avg."), (adapter.moments, "exp_avg_sq."))
    )
    gradient_P = gradient_P.float() * min(1.0, settings.max_grad_norm / (norm + 1e-6))
    mean_P = beta1 * mean_P + (1 - beta1) * gradient_P
    square_P = beta2 * square_P + (1 - beta2) * gradient_P.square()
    denominator_P = (square_P / (1 - beta2**step)).sqrt() + EPSILON
    weights_P = weights_P * (1 - learning_rate * settings.weight_decay)
    weights_P = weights_P - learning_rate / (1 - beta1**step) * mean_P / denominator_P
    shapes = {name: adapter.weights[name].shape for name in names}
    moments = _named(mean_P, shapes, "exp_avg.") | _named(square_P, shapes, "exp_avg_sq.")
    return replace(adapter, weights=_named(weights_P, shapes, ""), moments=moments, step=step)


def measures(tokens: Mapping[str, np.ndarray], objective: Objective) -> dict[str, float]:
    """Return metrics of one adapter from its tokens. Drift: log-probability of the trainer minus that of the engine, in nats.

    Without tokens, because all its groups were skipped, there is nothing to measure.
    """
    if not len(tokens["loss"]):
        return {"loss": 0.0}
    drift_T, ratio_T = np.abs(tokens["drift"]), np.exp(tokens["drift"])
    low, middle, high = np.quantile(ratio_T, [0.01, 0.5, 0.99])
    return {
        "loss": float(tokens["loss"].sum()),
        "entropy": float(tokens["entropy"].mean()),
        "drift_mean": float(drift_T.mean()),
        "drift_max": float(drift_T.max()),
        "ratio_p01": float(low),
        "ratio_p50": float(middle),
        "ratio_p99": float(high),
        "truncated_share": float((ratio_T > objective.importance_cap).mean()) if objective.importance_cap else 0.0,
        "masked_share": 0.0,  # no sample is masked; stored so that the metrics of all versions have the same rows
        "clip_share": 0.0,  # one step per update: the ratio to the old policy is 1
    }


def _flat(arrays: Weights, names: Sequence[str], prefix: str = "") -> np.ndarray:
    """Return named arrays as one row [P]."""
    return np.concatenate([arrays[prefix + name].reshape(-1) for name in names])


def _named(flat_P: torch.Tensor, shapes: Mapping[str, tuple[int, ...]], prefix: str) -> Weights:
    """Return a row [P] as named arrays: views of it, since all of them live as long as their adapter."""
    row_P, found, start = flat_P.cpu().numpy(), {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[prefix + name] = row_P[start : start + size].reshape(shape)
        start += size
    return found
