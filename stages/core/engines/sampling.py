"""Draw a token per row by inverting the cumulative distribution, without adding up the whole vocabulary in double precision.

token = min {v : sum_{w <= v} p_w > u sum_w p_w}, with u the row's own uniform. The vocabulary is cut into blocks:
single-precision sums of the blocks find the block, then a double-precision sum inside it finds the token. A vocabulary of one
block is added up in double precision as a whole. Temperature 0 takes the likeliest token.

Axes: B rows · V vocabulary · N blocks · W entries of a block.
"""

import torch
import torch.nn.functional as F

BLOCK = 512
"""Entries of a block: large enough that there are few blocks, small enough that their sums are exact to 1e-6."""

BYTES = 12
"""Memory per entry of a distribution at the peak: logits divided by the temperature, their normalised copy, probabilities."""


def draw(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one token per row and its log-probability. `uniforms_B` are in double precision. Nothing is truncated."""
    logits_BV = logits_BV.float()
    if temperature not in (0.0, 1.0):
        logits_BV = logits_BV / temperature
    logprobs_BV = logits_BV.log_softmax(-1)
    if temperature == 0:
        tokens_B = logprobs_BV.argmax(-1)
    elif logprobs_BV.shape[1] <= BLOCK:
        tokens_B = _invert(logprobs_BV.double().exp(), uniforms_B)
    else:
        tokens_B = _invert_by_blocks(logprobs_BV, uniforms_B)
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]


def _invert(weights_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """Return the first entry of each row whose cumulative weight exceeds the uniform's share of the total."""
    cumulative_BV = weights_BV.cumsum(-1)
    targets_B = uniforms_B * cumulative_BV[:, -1]
    # right=True skips entries of weight zero
    return torch.searchsorted(cumulative_BV, targets_B[:, None], right=True)[:, 0].clamp(max=weights_BV.shape[1] - 1)


def _invert_by_blocks(logprobs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    num_rows, vocabulary = logprobs_BV.shape
    whole = vocabulary // BLOCK * BLOCK
    weights_BV = logprobs_BV.exp()
    sums_BN = weights_BV[:, :whole].view(num_rows, -1, BLOCK).sum(-1)
    sums_BN = torch.cat([sums_BN, weights_BV[:, whole:].sum(-1, keepdim=True)], dim=1).double()
    blocks_B = _invert(sums_BN, uniforms_B)
    edges_BN = F.pad(sums_BN.cumsum(-1), (1, 0))
    before_B, own_B = edges_BN.gather(1, blocks_B[:, None])[:, 0], sums_BN.gather(1, blocks_B[:, None])[:, 0]
    rest_B = ((uniforms_B * edges_BN[:, -1] - before_B) / own_B).clamp(0, 1)
    places_BW = (blocks_B * BLOCK)[:, None] + torch.arange(BLOCK, device=logprobs_BV.device)
    inside_BW = logprobs_BV.gather(1, places_BW.clamp(max=vocabulary - 1)).double().exp()
    inside_BW = inside_BW.masked_fill(places_BW >= vocabulary, 0.0)
    return (blocks_B * BLOCK + _invert(inside_BW, rest_B)).clamp(max=vocabulary - 1)
