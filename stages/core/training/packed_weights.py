"""Frozen bfloat16 weights in the layout of the CPU's matrix kernels, for decoding.

torch.nn.functional.linear brings a bfloat16 weight into that layout at every call, which costs more than the product itself
while few rows are decoded. The packed product has the same bits (compared on Zen 4, and on a Xeon with AMX, where only a single
row of some thousand inputs may differ by rounding). An engine decodes in inference mode, and packed weights are used only there:
what a trainer computes must not depend on whether an engine of its process has packed them before. The two operators are those
that torch's own compiler uses for frozen weights. A packed copy takes as much memory as the weight.
"""

import torch
import torch.nn.functional as F
from torch import nn


def can_pack(weight: torch.Tensor) -> bool:
    """Return whether packing this weight was found to be faster: bfloat16 on a CPU with AVX-512 BF16."""
    fits = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and torch.backends.mkldnn.is_available()
    return fits and bool(torch.cpu._is_avx512_bf16_supported())


class PackedWeight:
    """A weight [O, I] that is multiplied without a gradient."""

    def __init__(self, weight_OI: torch.Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), None)

    def linear(self, x: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
        """[..., I] -> [..., O], for [T, I] with the bits of `torch.nn.functional.linear`.

        That function rounds once more where x has more axes and there is a bias.
        """
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, bias_O, "none", [], "")
        return out


class PackedHead(nn.Module):
    """An output head that uses its packed weight in inference mode."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias
        self.in_features, self.out_features = head.in_features, head.out_features
        self._packed = PackedWeight(head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., I] -> [..., O]."""
        decodes = torch.is_inference_mode_enabled()
        return self._packed.linear(x, self.bias) if decodes else F.linear(x, self.weight, self.bias)
