"""A kernel that is wrong anywhere, an empty group's gradient included, is found; the CPU's own are right."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from flows.gpu_check import kernels
from stages.core.training.lora_backends import lora_bmm


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cpu_s_kernels_agree_with_the_reference(dtype: str) -> None:
    found = list(kernels.examine("cpu", dtype, 16, 256, 768))
    assert [(finding.name, finding.good) for finding in found] == [("kernel lora_loop", True), ("kernel lora_bmm", True)]


def scaled(x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: Sequence[int]) -> torch.Tensor:
    return lora_bmm(x_TI, A_NRI, B_NOR, tokens_N) * 1.01


def careless(x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: Sequence[int]) -> torch.Tensor:
    """Right in value, with a gradient for adapters without tokens."""
    return lora_bmm(x_TI, A_NRI, B_NOR, tokens_N) + 1e-6 * (B_NOR.sum() - B_NOR.detach().sum())


class Unwritten(torch.autograd.Function):
    """Right in value; the gradient of the last adapter's B was never written."""

    @staticmethod
    def forward(ctx: Any, B_NOR: torch.Tensor) -> torch.Tensor:
        return B_NOR.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (grad,) = (one.clone() for one in grads)
        grad[-1] = torch.nan
        return grad


def unwritten(x_TI: torch.Tensor, A_NRI: torch.Tensor, B_NOR: torch.Tensor, tokens_N: Sequence[int]) -> torch.Tensor:
    return lora_bmm(x_TI, A_NRI, Unwritten.apply(B_NOR), tokens_N)


def test_a_gradient_that_is_not_a_number_is_found() -> None:
    assert kernels.apart(unwritten, (8, 8), "cpu", "float32", 8, 32, 32)[0] == float("inf")


def test_a_wrong_kernel_is_found() -> None:
    error, stray = kernels.apart(scaled, (8, 8, 8, 8), "cpu", "float32", 8, 32, 32)
    assert error > kernels.BOUNDS["float32"]
    assert not stray
    assert kernels.apart(careless, (8, 0, 8), "cpu", "float32", 8, 32, 32)[1]
    assert not kernels.apart(careless, (8, 8, 8), "cpu", "float32", 8, 32, 32)[1]


@pytest.mark.gpu
def test_the_gpu_s_kernels_agree_with_the_reference() -> None:
    found = list(kernels.examine("cuda", "bfloat16", 16, 3584, 18944))
    assert [finding for finding in found if not finding.good] == []
