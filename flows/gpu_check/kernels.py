"""The grouped LoRA kernels of this device against the reference loop: values and gradients, empty groups included."""

import math
from collections.abc import Iterator

import torch

from flows.gpu_check.finding import CheckFinding
from stages.core.training.lora_backends import Backend, groups_natively, lora_bmm, lora_grouped_mm, lora_loop

LAYOUTS = {
    "equal": (8, 8, 8, 8),
    "empty first": (0, 16, 8, 8),
    "empty in the middle": (8, 0, 0, 24),
    "empty last": (16, 8, 8, 0),
    "one group": (0, 0, 32, 0),
    "single tokens": (1, 1, 1, 29),
}
"""Tokens of each adapter."""
BOUNDS = {"float32": 1e-4, "bfloat16": 0.02}
"""Largest difference, as a share of the largest reference value: rounding of inputs and of the intermediate product."""


def examine(device: str, dtype: str, rank: int, inputs: int, outputs: int) -> Iterator[CheckFinding]:
    """Yield a finding for every backend that this device can use, at these widths."""
    for name, backend in _backends(device, dtype, (rank, inputs, outputs)).items():
        worst, where, stray = 0.0, "", []
        for layout, tokens_N in LAYOUTS.items():
            error, empty = apart(backend, tokens_N, device, dtype, rank, inputs, outputs)
            if error > worst:
                worst, where = error, layout
            if empty:
                stray.append(layout)
        good = worst <= BOUNDS[dtype] and not stray
        detail = f"at most {worst:.1e} of the reference{f' ({where})' if where else ''}, {len(LAYOUTS)} layouts, {dtype}"
        if stray:
            detail += f"; gradients of adapters without tokens are not zero: {', '.join(stray)}"
        yield CheckFinding(f"kernel {name}", good, detail, {"largest_error": worst, "bound": BOUNDS[dtype]})


def _backends(device: str, dtype: str, axes: tuple[int, ...]) -> dict[str, Backend]:
    found: dict[str, Backend] = {"lora_loop": lora_loop, "lora_bmm": lora_bmm}
    native = device.startswith("cuda") and groups_natively(torch.cuda.get_device_capability(device))
    if native and dtype == "bfloat16" and all(axis % 8 == 0 for axis in axes):
        found["lora_grouped_mm"] = lora_grouped_mm
    return found


def apart(
    backend: Backend, tokens_N: tuple[int, ...], device: str, dtype: str, rank: int, inputs: int, outputs: int
) -> tuple[float, bool]:
    """Return the largest difference from the float64 loop over value and gradients, and whether an empty group has a gradient."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((sum(tokens_N), inputs), (len(tokens_N), rank, inputs), (len(tokens_N), outputs, rank))
    # rounded first, so that both sides compute with the same numbers
    drawn = [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes]
    upward = torch.randn((sum(tokens_N), outputs), generator=generator).to(getattr(torch, dtype))
    found = _values(backend, drawn, upward, tokens_N, device)
    exact = _values(lora_loop, [one.double() for one in drawn], upward.double(), tokens_N, "cpu")
    errors = [
        float((ours.double().cpu() - reference).abs().max() / reference.abs().max())
        for ours, reference in zip(found, exact, strict=True)
    ]
    error = max(errors) if all(map(math.isfinite, errors)) else math.inf  # memory that nobody wrote may hold anything
    empty = [n for n, count in enumerate(tokens_N) if not count]
    return error, any(bool((gradient[empty] != 0).any()) for gradient in found[2:])


def _values(
    backend: Backend, drawn: list[torch.Tensor], upward: torch.Tensor, tokens_N: tuple[int, ...], device: str
) -> list[torch.Tensor]:
    """Return B A x and the gradients of x, A and B."""
    x_TI, A_NRI, B_NOR = (one.detach().to(device, copy=True).requires_grad_() for one in drawn)
    out = backend(x_TI, A_NRI, B_NOR, tokens_N)
    out.backward(upward.to(device))
    gradients = [leaf.grad for leaf in (x_TI, A_NRI, B_NOR) if leaf.grad is not None]
    return [out.detach(), *gradients]
