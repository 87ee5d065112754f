"""Clusters of prompts with a common beginning."""

import numpy as np

from stages.core.engines.prefixes import shared_prefixes


def kind(instructions: tuple[int, ...], count: int, length: int = 5) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(len(instructions))
    return [(*instructions, 100 + index, *rng.integers(0, 9, length).tolist()) for index in range(count)]


def test_prompts_of_a_kind_share_their_instructions() -> None:
    system = tuple(range(20))
    deduction, abduction = kind((*system, *[31] * 30), 3), kind((*system, *[32] * 40), 4)
    lone = [(*system, 77, 78), (5,), (6, 7)]
    prompts = [deduction[0], lone[0], *abduction, *deduction[1:], lone[1], lone[2]]
    assert shared_prefixes(prompts) == [50, 0, 60, 60, 60, 60, 50, 50, 0, 0]


def test_one_cluster_where_apart_saves_less() -> None:
    system = tuple(range(40))
    prompts = [(*system, place // 2, place) for place in range(4)]
    assert shared_prefixes(prompts) == [40] * 4


def test_a_prompt_that_others_continue_keeps_a_token_to_compute() -> None:
    long = tuple(range(30))
    assert shared_prefixes([long, (*long, 1, 2), (*long, 3)]) == [29, 29, 29]
    assert shared_prefixes([long, long]) == [29, 29]
    assert shared_prefixes([(1,) * 17, (1,) * 40]) == [16, 16]
    assert shared_prefixes([(1,) * 16, (1,) * 40]) == [0, 0]
    assert shared_prefixes([(1, 2)]) == [0] and shared_prefixes([]) == []


def test_clusters_are_told_apart_by_their_tokens() -> None:
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, 2, rng.integers(1, 30)).tolist()) for _ in range(200)]
    lengths = shared_prefixes(prompts, shortest=3)
    assert sum(length > 0 for length in lengths) > 0
    for prompt, length in zip(prompts, lengths, strict=True):
        assert length == 0 or 3 <= length < len(prompt)
        alike = [
            other for other, same in zip(prompts, lengths, strict=True) if same == length and other[:length] == prompt[:length]
        ]
        assert length == 0 or len(alike) > 1
