"""Drawing by blocks against one sum in double precision over the whole vocabulary."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stages.core.engines.sampling import BLOCK, draw


def whole(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition: one cumulative sum in double precision."""
    logprobs_BV = (logits_BV.float() / temperature).log_softmax(-1)
    cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
    tokens_B = torch.searchsorted(cumulative_BV, (uniforms_B * cumulative_BV[:, -1])[:, None], right=True)[:, 0]
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]


def some(rows: int, vocabulary: int, spread: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(vocabulary)
    return torch.from_numpy(rng.normal(0, spread, (rows, vocabulary)).astype(np.float32)), torch.from_numpy(rng.random(rows))


@pytest.mark.parametrize("vocabulary", [31, BLOCK, BLOCK + 1, 4 * BLOCK, 20011])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_drawn_token_is_the_whole_sums(vocabulary: int, temperature: float) -> None:
    logits_BV, uniforms_B = some(200, vocabulary)
    (tokens_B, logprobs_B), (expected_B, expected_logprobs_B) = (one(logits_BV, uniforms_B, temperature) for one in (draw, whole))
    assert torch.equal(tokens_B, expected_B)
    assert torch.equal(logprobs_B, expected_logprobs_B)


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits_BV = torch.full((4, 3 * BLOCK), -torch.inf)
    logits_BV[:, [BLOCK + 7, 2 * BLOCK + 5]] = 0.0
    tokens_B, _ = draw(logits_BV, torch.tensor([0.0, 0.4999999, 0.5, 1 - 2**-53], dtype=torch.float64), 1.0)
    assert tokens_B.tolist() == [BLOCK + 7, BLOCK + 7, 2 * BLOCK + 5, 2 * BLOCK + 5]


def test_temperature_zero_takes_the_likeliest_token() -> None:
    logits_BV, uniforms_B = some(20, 3000)
    tokens_B, logprobs_B = draw(logits_BV, uniforms_B, 0.0)
    assert torch.equal(tokens_B, logits_BV.argmax(-1))
    assert torch.equal(logprobs_B, logits_BV.log_softmax(-1).max(-1).values)


class DoubleEntries(TorchDispatchMode):
    """Counts the entries of every double-precision result."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.float64 and not out._is_view():
            self.entries += out.numel()
        return out


def test_a_large_vocabulary_is_not_added_up_in_double_precision() -> None:
    logits_BV, uniforms_B = some(4, 150_000)
    with DoubleEntries() as counted:
        draw(logits_BV, uniforms_B, 1.0)
    assert 0 < counted.entries < logits_BV.numel() / 10
