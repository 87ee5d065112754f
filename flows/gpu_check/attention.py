"""The attention of packed rows on this device against float64: values and gradients, at a length and logits known to be hard."""

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from flows.gpu_check.finding import CheckFinding
from flows.gpu_check.kernels import BOUNDS
from stages.core.training.attention import grouped_query_attention
from stages.core.training.row_masks import block_mask, dense_mask

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(query, key, value [rows, heads, length, width], `ends_BL` of the rows as packing has them) -> attention, of the same shape."""
LENGTHS = (600, 704)
"""Of rows. cuDNN's gradients under a mask were NaN where the length is 64 more than a multiple of 128 (pytorch issue 196678)."""
ROWS, HEADS, WIDTH = 2, 4, 64
PROMPT = 96
LOW = -120.0
"""Logits of one query in every head: so low that the kernels' sums of exponentials underflow unless they shift them."""
TIMED = (1, 28, 4096, 128)
"""A row of `paper`: heads of a 7B, a prompt of 1,024 tokens and three completions as long."""


def examine(device: str, dtype: str) -> Iterator[CheckFinding]:
    """Yield a finding for torch's attention as this process has it: load the model first, which chooses the kernels.

    And one for FlexAttention on a GPU: whether it is right, and how fast it is beside the other.
    """
    yield _judged("attention", masked, device, dtype)
    if device.startswith("cuda"):
        found = _judged("flex attention", flexible, device, dtype)
        seconds = {name: _seconds(attention, device, dtype) for name, attention in (("masked", masked), ("flex", flexible))}
        ratio = seconds["masked"] / seconds["flex"]
        rate = f"{ratio:.2f} times the rate of the masked kernel at a row of {TIMED[2]:,} tokens (learning.attention=flex)"
        figures = found.figures | {f"{name}_s": value for name, value in seconds.items()}
        yield CheckFinding(found.name, found.good, f"{found.detail}; {rate}", figures)


def masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends_BL: torch.Tensor) -> torch.Tensor:
    """Return torch's attention under an additive mask."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=dense_mask(ends_BL, query.dtype))


def flexible(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends_BL: torch.Tensor) -> torch.Tensor:
    """Return FlexAttention under the same mask in blocks."""
    found, _ = grouped_query_attention(torch.nn.Module(), query, key, value, block_mask(ends_BL, query.dtype))
    return found.transpose(1, 2)


def largest_error(attention: Attention, length: int, device: str, dtype: str) -> float:
    """Return the largest difference from float64, as a share of the largest reference value; infinite if one is not finite."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, HEADS, length, WIDTH)
    query, key, value, upward = (torch.randn(shape, generator=generator) for _ in range(4))
    key[..., 0], query[..., 0] = 8.0, 0.0
    query[:, :, length // 2] = 0.0
    query[:, :, length // 2, 0] = LOW * math.sqrt(WIDTH) / 8.0
    drawn = [one.to(getattr(torch, dtype)) for one in (query, key, value, upward)]
    exact = _values(masked, [one.double() for one in drawn], "cpu")
    errors = [
        float((ours.double().cpu() - reference).abs().max() / reference.abs().max())
        for ours, reference in zip(_values(attention, drawn, device), exact, strict=True)
    ]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def _judged(name: str, attention: Attention, device: str, dtype: str) -> CheckFinding:
    errors = {length: largest_error(attention, length, device, dtype) for length in LENGTHS}
    worst = max(errors, key=lambda length: errors[length])
    detail = f"at most {errors[worst]:.1e} of the reference (length {worst}), {dtype}, values and gradients under a mask"
    figures = {"largest_error": errors[worst], "bound": BOUNDS[dtype]}
    return CheckFinding(name, errors[worst] <= BOUNDS[dtype], detail, figures)


def _values(attention: Attention, drawn: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Return attention and the gradients of query, key and value."""
    query, key, value = (one.detach().to(device, copy=True).requires_grad_() for one in drawn[:3])
    out = attention(query, key, value, _two_completions(query.shape[0], query.shape[2]).to(device))
    out.backward(drawn[3].to(device))
    return [out.detach(), *(leaf.grad for leaf in (query, key, value) if leaf.grad is not None)]


def _two_completions(rows: int, length: int) -> torch.Tensor:
    """Return `ends_BL` of rows with a prompt and two completions, which do not see each other."""
    places = torch.arange(length)
    first_end = torch.linspace(PROMPT + 8, length - 8, rows).long()[:, None]
    return torch.where((places >= PROMPT) & (places < first_end), first_end, length)


def _seconds(attention: Attention, device: str, dtype: str) -> float:
    """Return the median seconds of values and gradients of the TIMED row, the mask included; the first call compiles."""
    rows, _, length, _ = TIMED
    ends_L = torch.full((length,), length)
    for start in range(length // 4, length, length // 4):
        ends_L[start : start + length // 4] = start + length // 4
    ends_BL = ends_L.expand(rows, -1).to(device)
    query, key, value = (torch.randn(TIMED, dtype=getattr(torch, dtype), device=device).requires_grad_() for _ in range(3))
    taken = []
    for _ in range(4):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        attention(query, key, value, ends_BL).sum().backward()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return sorted(taken[1:])[1]
