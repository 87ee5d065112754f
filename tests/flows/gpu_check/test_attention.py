"""The check of attention under a mask: this machine's kernels pass, and one that gives NaN or wrong gradients is found."""

import math
from typing import Any

import pytest
import torch

from flows.gpu_check import attention
from stages.core.training.attention_kernels import avoid_cudnn


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_this_machine_s_attention_passes(dtype: str) -> None:
    [finding] = attention.examine("cpu", dtype)
    assert finding.good, finding.detail


@pytest.mark.gpu
def test_the_gpu_s_attention_passes_in_both_kernels() -> None:
    avoid_cudnn()
    [plain], [flex] = attention.examine("cuda", "bfloat16"), attention.examine_flex("cuda", "bfloat16", True)
    assert plain.good and flex.good, (plain, flex)


def test_flex_attention_is_no_part_of_the_check_on_a_cpu() -> None:
    assert list(attention.examine_flex("cpu", "float32", True)) == []


@pytest.mark.parametrize("heads", [attention.PLAIN, attention.GROUPED[0]])
@pytest.mark.parametrize("factor", [float("nan"), 1.1])
def test_a_kernel_with_wrong_gradients_is_found(factor: float, heads: attention.Heads) -> None:
    def wrong(query: torch.Tensor, *rest: Any) -> torch.Tensor:
        query.register_hook(lambda gradient: gradient * factor)
        return attention.masked(query, *rest)

    error = attention.largest_error(wrong, heads, 704, "cpu", "float32")
    assert error == float("inf") if math.isnan(factor) else 0.05 < error < 0.2
    assert attention.largest_error(attention.masked, heads, 704, "cpu", "float32") < attention.BOUNDS["float32"]
