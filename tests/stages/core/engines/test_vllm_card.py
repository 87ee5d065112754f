"""What vLLM is given on a GPU."""

import pytest
import torch

from stages.core.engines.vllm_card import MEMORY, START, card_settings

DEFAULTS = {START: "spawn", MEMORY: "pinned_max_cached_size_mb:16"}


def test_the_engine_process_is_spawned_and_large_pinned_blocks_are_neither_rounded_nor_kept() -> None:
    assert card_settings({}, "2.13.0+cu130") == DEFAULTS
    assert card_settings({MEMORY: "", START: ""}, "2.13.0") == DEFAULTS


@pytest.mark.parametrize("name", [MEMORY, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_what_the_user_has_set_stays(name: str) -> None:
    assert card_settings({name: "expandable_segments:True"}, "2.13.0") == {START: "spawn"}
    assert card_settings({name: "expandable_segments:True", START: "fork"}, "2.13.0") == {}


def test_a_torch_that_does_not_know_the_option_is_not_given_it() -> None:
    assert card_settings({}, "2.11.0+cu130") == {START: "spawn"}


def test_torch_knows_the_option() -> None:
    """An option that it does not know is ignored on a CPU; of one that it knows, the value must be a number."""
    option = DEFAULTS[MEMORY].partition(":")[0]
    torch._C._accelerator_setAllocatorSettings("no_such_option:many")
    with pytest.raises(ValueError):
        torch._C._accelerator_setAllocatorSettings(f"{option}:many")
    torch._C._accelerator_setAllocatorSettings("")
