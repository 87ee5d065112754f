"""The attention of packed rows on this device against float64: values and gradients, at a length and logits known to be hard."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

from flows.gpu_check.finding import CheckFinding
from stages.core.training.attention import grouped_query_attention
from stages.core.training.row_masks import block_mask, dense_mask

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(query, key, value [rows, heads, length, width], `ends_BL` of the rows as packing has them) -> attention, of the same shape."""
LENGTHS = (600, 704)
"""Of rows. cuDNN's gradients under a mask were NaN where the length is 64 more than a multiple of 128 (pytorch issue 196678)."""
Heads = tuple[int, int, int]
"""Query heads, key-value heads, width of a head."""
PLAIN: Heads = (4, 4, 64)
GROUPED: tuple[Heads, ...] = ((14, 2, 64), (28, 4, 128))
"""Those of Qwen2.5-Coder with 0.5 and 7 billion parameters."""
ROWS, PROMPT, PADDING = 2, 96, 8
BOUNDS = {"float32": 1e-4, "bfloat16": 0.03}
"""Of errors. In bfloat16, the gradient of a key that seven heads share rounds seven times: 0.023 with torch's CPU kernel."""
LOW = -120.0
"""Logits of one query in every head: so low that the kernels' sums of exponentials underflow unless they shift them."""
TIMED = 4096
"""Positions of a row of `paper`: a prompt of 1,024 tokens and three completions as long."""


def examine(device: str, dtype: str) -> Iterator[CheckFinding]:
    """Yield a finding for torch's attention as this process has it: load the model first, which chooses the kernels."""
    yield _judged("attention", masked, (PLAIN, *GROUPED), device, dtype)


def examine_flex(device: str, dtype: str, chosen: bool) -> Iterator[CheckFinding]:
    """Yield whether FlexAttention is right on a GPU, and its rate beside the masked kernel's; judged only if the run uses it."""
    if not device.startswith("cuda"):
        return
    found = _judged("flex attention", flexible, GROUPED, device, dtype)
    seconds = {name: _seconds(attention, device, dtype) for name, attention in (("masked", masked), ("flex", flexible))}
    rate = f"{seconds['masked'] / seconds['flex']:.2f} times the rate of the masked kernel at a row of {TIMED:,} positions"
    how = "" if chosen else " (--set learning.attention=flex --set model.device=cuda)"
    figures = found.figures | {f"{name}_s": value for name, value in seconds.items()}
    yield CheckFinding(found.name, found.good if chosen else None, f"{found.detail}; {rate}{how}", figures)


def masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends_BL: torch.Tensor) -> torch.Tensor:
    """Return torch's attention under an additive mask."""
    mask = dense_mask(ends_BL, query.dtype)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=query.shape[1] != key.shape[1])


def flexible(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends_BL: torch.Tensor) -> torch.Tensor:
    """Return FlexAttention under the same mask in blocks."""
    found, _ = grouped_query_attention(torch.nn.Module(), query, key, value, block_mask(ends_BL, query.dtype))
    return found.transpose(1, 2)


def largest_error(attention: Attention, heads: Heads, length: int, device: str, dtype: str) -> float:
    """Return the largest difference from float64, as a share of the largest reference value; infinite if one is not finite."""
    generator = torch.Generator().manual_seed(0)
    queries, groups, width = heads
    shapes = [(ROWS, count, length, width) for count in (queries, groups, groups, queries)]
    query, key, value, upward = (torch.randn(shape, generator=generator) for shape in shapes)
    key[..., 0], query[..., 0] = 8.0, 0.0
    query[:, :, length // 2] = 0.0
    query[:, :, length // 2, 0] = LOW * math.sqrt(width) / 8.0
    drawn = [one.to(getattr(torch, dtype)) for one in (query, key, value, upward)]
    exact = _values(masked, [one.double() for one in drawn], "cpu")
    errors = [
        float((ours.double().cpu() - reference).abs().max() / reference.abs().max())
        for ours, reference in zip(_values(attention, drawn, device), exact, strict=True)
    ]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def _judged(name: str, attention: Attention, models: Sequence[Heads], device: str, dtype: str) -> CheckFinding:
    cases = [(heads, length) for heads in models for length in LENGTHS]
    errors = {case: largest_error(attention, *case, device, dtype) for case in cases}
    (heads, length), worst = max(errors.items(), key=lambda found: found[1])
    where = f"{heads[0]} heads, length {length}"
    detail = f"at most {worst:.1e} of the reference ({where}), {dtype}, values and gradients under a mask"
    return CheckFinding(name, worst <= BOUNDS[dtype], detail, {"largest_error": worst, "bound": BOUNDS[dtype]})


def _values(attention: Attention, drawn: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Return attention and the gradients of query, key and value."""
    query, key, value = (one.detach().to(device, copy=True).requires_grad_() for one in drawn[:3])
    out = attention(query, key, value, _two_completions(query.shape[0], query.shape[2]).to(device))
    out.backward(drawn[3].to(device))
    return [out.detach(), *(leaf.grad for leaf in (query, key, value) if leaf.grad is not None)]


def _two_completions(rows: int, length: int) -> torch.Tensor:
    """Return `ends_BL` of rows with a prompt, two completions that do not see each other, and padding that sees itself."""
    places, end = torch.arange(length), length - PADDING
    first_end = torch.linspace(PROMPT + 8, end - 8, rows).long()[:, None]
    ends_BL = torch.where((places >= PROMPT) & (places < first_end), first_end, end)
    return torch.where(places < end, ends_BL, places + 1)


def _seconds(attention: Attention, device: str, dtype: str) -> float:
    """Return the median seconds of values and gradients of a TIMED row of a 7B, mask included; the first call compiles."""
    queries, groups, width = GROUPED[-1]
    quarter = TIMED // 4
    ends_L = torch.cat([torch.full((quarter,), TIMED), *(torch.full((quarter,), quarter * part) for part in (2, 3, 4))])
    drawn = [
        torch.randn(1, count, TIMED, width, dtype=getattr(torch, dtype), device=device).requires_grad_()
        for count in (queries, groups, groups)
    ]
    query, key, value = drawn
    taken = []
    for _ in range(4):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        attention(query, key, value, ends_L[None].to(device)).sum().backward()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return sorted(taken[1:])[1]
