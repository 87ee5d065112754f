"""Memory that a process has freed goes back to the system between stages, once there is much of it."""

import json
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import json
import torch
from flows.execution.freed_memory import give_back_freed_memory
from stages.core.training.cpu import use_cpu


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) << 12


use_cpu(1)
held = [torch.ones(300_000) for _ in range(400)]
del held[:-1]  # the last one keeps the others from the end of the heap
before = resident()
small = give_back_freed_memory(kept=2 << 30)
kept = resident()
large = give_back_freed_memory(kept=100 << 20)
print(json.dumps([before, kept, resident(), small, large]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep what is freed")
def test_much_freed_memory_is_given_back_and_little_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, kept, after, small, large = json.loads(done.stdout)
    assert abs(kept - before) < 50 << 20, "less than the limit stays with the process"
    assert small > 400 << 20 and large > 400 << 20
    assert after < before - (400 << 20)
