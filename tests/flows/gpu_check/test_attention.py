"""The check of attention under a mask: this machine's kernels pass, and one that gives NaN or wrong gradients is found."""

import math
from typing import Any

import pytest
import torch

from flows.gpu_check import attention
from flows.gpu_check.kernels import BOUNDS
from stages.core.training.attention_kernels import avoid_cudnn


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_this_machine_s_attention_passes(dtype: str) -> None:
    [finding] = attention.examine("cpu", dtype)
    assert finding.good, finding.detail


@pytest.mark.gpu
def test_the_gpu_s_attention_passes_in_both_kernels() -> None:
    avoid_cudnn()
    findings = list(attention.examine("cuda", "bfloat16"))
    assert [finding.name for finding in findings] == ["attention", "flex attention"]
    assert all(finding.good for finding in findings), findings


@pytest.mark.parametrize("factor", [float("nan"), 1.1])
def test_a_kernel_with_wrong_gradients_is_found(factor: float) -> None:
    def wrong(query: torch.Tensor, *rest: Any) -> torch.Tensor:
        query.register_hook(lambda gradient: gradient * factor)
        return attention.masked(query, *rest)

    error = attention.largest_error(wrong, 704, "cpu", "float32")
    assert error == float("inf") if math.isnan(factor) else 0.05 < error < 0.2
    assert attention.largest_error(attention.masked, 704, "cpu", "float32") < BOUNDS["float32"]
