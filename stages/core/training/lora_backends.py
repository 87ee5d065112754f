"""Backends for y_TO = W_OI x_TI + scale * B_OR[n] A_RI[n] x_TI for tokens grouped by adapter (LoRA, Hu et al. 2021, eq. 3).

Axes: N adapters · T tokens (flattened rows) · R rank · I inputs · O outputs. The loop is the reference; all others agree with it
up to rounding. The fastest one depends on device and group sizes: `choose_backend` encodes the measurements.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F

Backend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int]], torch.Tensor]
"""(x_TI, A_NRI, B_NOR, tokens per adapter) -> B A x, [T, O]."""

_PADDED_TOKENS = 128  # below this many tokens per adapter, padding to equal groups was faster than the loop on two CPU cores


def lora_loop(x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: Sequence[int]) -> torch.Tensor:
    """Compute B A x for each adapter's tokens in turn: the reference. Return [T, O]."""
    # unbind instead of indexing: its backward fills the stacked gradient once, not once per adapter
    pairs = zip(x_TI.split(list(tokens_N)), A_NRI.unbind(0), B_NOR.unbind(0), strict=True)
    return torch.cat([F.linear(F.linear(x, A_RI), B_OR) for x, A_RI, B_OR in pairs if len(x)])


def lora_bmm(x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: Sequence[int]) -> torch.Tensor:
    """Compute B A x as two batched products, with unequal groups padded to the longest. Return [T, O]."""
    longest, num_adapters = max(tokens_N), len(tokens_N)
    equal = min(tokens_N) == longest
    if not equal:
        sources, rows_T = _padding(tuple(tokens_N), x_TI.device)
        if torch.is_grad_enabled():  # zeros: infinities of a token must not reach the gradient of another adapter
            x_TI = x_TI.new_zeros(len(sources), x_TI.shape[1]).index_copy(0, rows_T, x_TI)
        else:  # copying rows is faster than writing them into zeros
            x_TI = x_TI.index_select(0, sources)
    hidden = torch.bmm(x_TI.view(num_adapters, longest, -1), A_NRI.transpose(1, 2))
    out = torch.bmm(hidden, B_NOR.transpose(1, 2)).view(num_adapters * longest, -1)
    return out if equal else out.index_select(0, rows_T)


@lru_cache(maxsize=64)
def _padding(tokens_N: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token of each row when every group is padded to the longest, and the row of each token.

    Padding repeats the first token: without a gradient, nothing reads what comes of it.
    """
    longest = max(tokens_N)
    groups = [(stop - count, count) for stop, count in zip(accumulate(tokens_N), tokens_N, strict=True)]
    sources = [start + place if place < count else 0 for start, count in groups for place in range(longest)]
    rows_T = [n * longest + place for n, count in enumerate(tokens_N) for place in range(count)]
    return _kept(sources, torch.int64, device), _kept(rows_T, torch.int64, device)


def lora_grouped_mm(x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: Sequence[int]) -> torch.Tensor:
    """Compute B A x as two grouped matrix products over segment ends (CUDA, bfloat16, axes divisible by 8). Return [T, O].

    Empty groups are left out: some kernels leave their gradient uninitialized (pytorch issue 172439). Selecting the others
    gives empty groups a gradient of exactly zero.
    """
    active = tuple(n for n, count in enumerate(tokens_N) if count)
    if len(active) < len(tokens_N):
        rows_N = _indices(active, x_TI.device)
        A_NRI, B_NOR = A_NRI.index_select(0, rows_N), B_NOR.index_select(0, rows_N)
    ends_N = _indices(tuple(accumulate(tokens_N[n] for n in active)), x_TI.device)
    hidden = F.grouped_mm(x_TI, A_NRI.transpose(1, 2), offs=ends_N)
    return F.grouped_mm(hidden, B_NOR.transpose(1, 2), offs=ends_N)


@lru_cache(maxsize=64)
def _indices(values: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return small integers on the device, copied there once instead of once per layer."""
    return _kept(values, torch.int32, device)


def _kept(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor that a backward pass may save even if decoding requests it first: the caches outlive inference mode."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def add_equal_groups(
    out_TO: torch.Tensor, x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add scale * B A x to `out_TO` in place, for groups of equal length.

    Return x and A x by group: [N, T / N, I] and [N, T / N, R].
    """
    x_NTI = x_TI.view(A_NRI.shape[0], -1, x_TI.shape[1])
    hidden_NTR = torch.bmm(x_NTI, A_NRI.transpose(1, 2))
    out_TO.view(A_NRI.shape[0], -1, out_TO.shape[1]).baddbmm_(hidden_NTR, B_NOR.transpose(1, 2), alpha=scale)
    return x_NTI, hidden_NTR


class EqualGroups(torch.autograd.Function):
    """The whole layer for groups of equal length, with in-place sums: on a CPU the additions cost as much as the products."""

    @staticmethod
    def forward(ctx: Any, x_TI: Any, weight_OI: Any, bias_O: Any, A_NRI: Any, B_NOR: Any, scale: float) -> torch.Tensor:
        """[T, I] -> [T, O], T divisible by N."""
        out_TO = F.linear(x_TI, weight_OI, bias_O)
        x_NTI, hidden_NTR = add_equal_groups(out_TO, x_TI, A_NRI, B_NOR, scale)
        ctx.save_for_backward(x_NTI, hidden_NTR, weight_OI, A_NRI, B_NOR)
        ctx.scale = scale
        return out_TO

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of x, A and B; the base is frozen."""
        x_NTI, hidden_NTR, weight_OI, A_NRI, B_NOR = ctx.saved_tensors
        grad_TO = grads[0].contiguous()
        grad_NTO = grad_TO.view(A_NRI.shape[0], -1, grad_TO.shape[1])
        grad_NTR = torch.bmm(grad_NTO, B_NOR).mul_(ctx.scale)
        grad_B = torch.bmm(grad_NTO.transpose(1, 2), hidden_NTR).mul_(ctx.scale)
        grad_A = torch.bmm(grad_NTR.transpose(1, 2), x_NTI)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_TO @ weight_OI
            grad_x.view_as(x_NTI).baddbmm_(grad_NTR, A_NRI)
        return grad_x, None, None, grad_A, grad_B, None


def add_segments(
    out_TO: torch.Tensor, x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: Sequence[int], scale: float
) -> torch.Tensor:
    """Add scale * B A x to `out_TO` in place, one adapter after the other. Return A x, [T, R]."""
    hidden_TR = x_TI.new_empty(len(x_TI), A_NRI.shape[1])
    for n, rows in _segments(tokens_N):
        torch.mm(x_TI[rows], A_NRI[n].T, out=hidden_TR[rows])
        out_TO[rows].addmm_(hidden_TR[rows], B_NOR[n].T, alpha=scale)
    return hidden_TR


class Segments(torch.autograd.Function):
    """The whole layer for groups of any lengths, one after the other, with in-place sums in place of `lora_loop`'s copies."""

    @staticmethod
    def forward(
        ctx: Any, x_TI: Any, weight_OI: Any, bias_O: Any, A_NRI: Any, B_NOR: Any, tokens_N: Sequence[int], scale: float
    ) -> torch.Tensor:
        """[T, I] -> [T, O]."""
        out_TO = F.linear(x_TI, weight_OI, bias_O)
        hidden_TR = add_segments(out_TO, x_TI, A_NRI, B_NOR, tokens_N, scale)
        ctx.save_for_backward(x_TI, hidden_TR, weight_OI, A_NRI, B_NOR)
        ctx.tokens_N, ctx.scale = tokens_N, scale
        return out_TO

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of x, A and B (zero for an empty group); the base is frozen."""
        x_TI, hidden_TR, weight_OI, A_NRI, B_NOR = ctx.saved_tensors
        grad_TO = grads[0].contiguous()
        grad_x = grad_TO @ weight_OI if ctx.needs_input_grad[0] else None
        grad_A, grad_B = torch.zeros_like(A_NRI), torch.zeros_like(B_NOR)
        for n, rows in _segments(ctx.tokens_N):
            own_TR = torch.mm(grad_TO[rows], B_NOR[n]).mul_(ctx.scale)
            torch.mm(own_TR.T, x_TI[rows], out=grad_A[n])
            torch.mm(grad_TO[rows].T, hidden_TR[rows], out=grad_B[n])
            if grad_x is not None:
                grad_x[rows].addmm_(own_TR, A_NRI[n])
        return grad_x, None, None, grad_A, grad_B.mul_(ctx.scale), None, None


def _segments(tokens_N: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield each adapter that has rows, with its rows."""
    start = 0
    for n, count in enumerate(tokens_N):
        if count:
            yield n, slice(start, start + count)
        start += count


def choose_backend(
    x_TI: torch.Tensor,
    A_NRI: torch.Tensor,
    B_NOR: torch.Tensor,
    tokens_N: Sequence[int],
    capability: tuple[int, int] | None = None,
) -> Backend:
    """Return the fastest applicable backend: grouped products on Hopper, batched ones for (nearly) equal groups, else the loop.

    Equal groups, above all a single one, are batched on every device: they are fused with the base layer (EqualGroups), which
    spares tensors as large as the layer's output. `capability` is the GPU's compute capability; None means that of the GPU that
    holds `x_TI`.
    """
    longest, total, num_adapters = max(tokens_N), sum(tokens_N), len(tokens_N)
    if min(tokens_N) == longest:
        return lora_bmm
    if capability is None and x_TI.is_cuda:
        capability = _capability(x_TI.device)
    axes = (x_TI.shape[1], A_NRI.shape[1], B_NOR.shape[1])
    if capability is not None and groups_natively(capability) and x_TI.dtype == torch.bfloat16 and all(n % 8 == 0 for n in axes):
        return lora_grouped_mm
    return lora_bmm if longest * num_adapters <= 2 * total and total <= _PADDED_TOKENS * num_adapters else lora_loop


def groups_natively(capability: tuple[int, int]) -> bool:
    """Return whether torch's grouped product is a single, correct kernel on this compute capability: Hopper (sm_90) only.

    Blackwell's backward pass is wrong (pytorch issues 172439 and 193633). On other GPUs torch loops over the groups and waits
    for the device in every call, unlike our own loop.
    """
    return hasattr(F, "grouped_mm") and capability == (9, 0)


@lru_cache(maxsize=8)
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
