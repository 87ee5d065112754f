"""The check of attention under a mask: this machine's kernels pass, and one that gives NaN or wrong gradients is found."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from flows.gpu_check import attention


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_this_machine_s_attention_passes(dtype: str) -> None:
    [finding] = attention.examine("cpu", dtype)
    assert finding.good, finding.detail
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.gpu
def test_the_gpu_s_attention_passes() -> None:
    [finding] = attention.examine("cuda", "bfloat16")
    assert finding.good, finding.detail


@pytest.mark.parametrize(("factor", "found"), [(float("nan"), "inf"), (1.1, "largest")])
def test_a_kernel_with_wrong_gradients_is_found(factor: float, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = F.scaled_dot_product_attention

    def wrong(query: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        if query.dtype == torch.float32 and query.shape[2] == 704:
            query.register_hook(lambda gradient: gradient * factor)
        return exact(query, *rest, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", wrong)
    [finding] = attention.examine("cpu", "float32")
    assert finding.good is False and "length 704" in finding.detail
    assert (finding.figures["largest_error"] == float("inf")) == (found == "inf")
