"""The peak of a step is that of the step, not of the process that has run others before."""

import mmap
from pathlib import Path

import pytest
import torch

from flows.execution.peak_memory import forget_peaks, peaks

SIZE = 256 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can begin a peak anew")
def test_a_peak_is_of_what_came_since_and_not_of_an_earlier_step() -> None:
    forget_peaks()
    before = peaks()["peak_memory_mb"]
    held = mmap.mmap(-1, SIZE)
    for page in range(0, SIZE, mmap.PAGESIZE):
        held[page] = 1
    held.close()
    assert peaks()["peak_memory_mb"] >= before + 240
    forget_peaks()
    assert peaks()["peak_memory_mb"] < before + 100


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="another test uses the GPU")
def test_without_a_gpu_only_the_process_is_measured() -> None:
    assert peaks().keys() == {"peak_memory_mb"}
