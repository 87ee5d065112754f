"""What torch frees stays with the process, so that its next tensors need no new pages."""

import json
import subprocess
import sys

SCRIPT = """
import json, resource, sys
import torch
from stages.core.training.cpu import use_cpu

use_cpu(1)


def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (300_000, 3_000_000, 12_000_000):
        torch.ones(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


counts = [faults() for _ in range(12)]
print(json.dumps([torch.get_num_threads(), sum(counts[:6]), sum(counts[6:])]))
"""


def test_memory_once_touched_is_not_touched_anew() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    threads, first, second = json.loads(done.stdout)
    assert threads == 1
    assert first > 10_000 and second < first / 10, (first, second)  # glibc may place a few beside what is free at first
