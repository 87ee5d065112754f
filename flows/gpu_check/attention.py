"""The attention of packed rows on this device against float64: values and gradients, at a length and logits known to be hard."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from flows.gpu_check.finding import CheckFinding
from flows.gpu_check.kernels import BOUNDS

Attention = Callable[..., torch.Tensor]
"""As torch.nn.functional.scaled_dot_product_attention."""
LENGTHS = (600, 704)
"""Of rows. cuDNN's gradients under a mask were NaN where the length is 64 more than a multiple of 128 (pytorch issue 196678)."""
ROWS, HEADS, WIDTH = 2, 4, 64
PROMPT = 96
LOW = -120.0
"""Logits of one query in every head: so low that the kernels' sums of exponentials underflow unless they shift them."""


def examine(device: str, dtype: str) -> Iterator[CheckFinding]:
    """Yield a finding for torch's attention as this process has it: load the model first, which chooses the kernels."""
    errors = {length: largest_error(F.scaled_dot_product_attention, length, device, dtype) for length in LENGTHS}
    worst = max(errors, key=lambda length: errors[length])
    good = errors[worst] <= BOUNDS[dtype]
    detail = f"at most {errors[worst]:.1e} of the reference (length {worst}), {dtype}, values and gradients under a mask"
    yield CheckFinding("attention", good, detail, {"largest_error": errors[worst], "bound": BOUNDS[dtype]})


def largest_error(attention: Attention, length: int, device: str, dtype: str) -> float:
    """Return the largest difference from float64, as a share of the largest reference value; infinite if one is not finite."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, HEADS, length, WIDTH)
    query, key, value, upward = (torch.randn(shape, generator=generator) for _ in range(4))
    key[..., 0], query[..., 0] = 8.0, 0.0
    query[:, :, length // 2] = 0.0
    query[:, :, length // 2, 0] = LOW * math.sqrt(WIDTH) / 8.0
    drawn = [one.to(getattr(torch, dtype)) for one in (query, key, value, upward)]
    exact = _values(F.scaled_dot_product_attention, [one.double() for one in drawn], "cpu")
    errors = [
        float((ours.double().cpu() - reference).abs().max() / reference.abs().max())
        for ours, reference in zip(_values(attention, drawn, device), exact, strict=True)
    ]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def _values(attention: Attention, drawn: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Return attention and the gradients of query, key and value."""
    query, key, value = (one.detach().to(device, copy=True).requires_grad_() for one in drawn[:3])
    out = attention(query, key, value, attn_mask=_mask(query))
    out.backward(drawn[3].to(device))
    return [out.detach(), *(leaf.grad for leaf in (query, key, value) if leaf.grad is not None)]


def _mask(query: torch.Tensor) -> torch.Tensor:
    """Return the masks of rows with a prompt and two completions, which do not see each other: [rows, 1, length, length]."""
    length = query.shape[2]
    places = torch.arange(length)
    ends = torch.linspace(PROMPT + 8, length - 8, query.shape[0]).long()[:, None]  # of the first completion
    segments = (places >= PROMPT).long() + (places >= ends).long()
    seen = (places[:, None] >= places) & ((segments[:, :, None] == segments[:, None]) | (segments[:, None] == 0))
    mask = torch.zeros(seen.shape, dtype=query.dtype).masked_fill_(~seen, torch.finfo(query.dtype).min)
    return mask[:, None].to(query.device)
