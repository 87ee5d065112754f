"""The rank that vLLM is told to reserve."""

import pytest

from stages.core.engines.vllm_ranks import reserved_rank


@pytest.mark.parametrize(("rank", "reserved"), [(1, 1), (2, 8), (8, 8), (12, 16), (100, 128), (512, 512), (600, 600)])
def test_the_smallest_rank_that_vllm_takes(rank: int, reserved: int) -> None:
    assert reserved_rank(rank) == reserved
