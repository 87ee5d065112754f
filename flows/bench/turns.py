"""What the benches share: sides that are measured as equals, in turns that no side always begins, each in a memory of its own."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def usable_cores() -> int:
    """Return the cores that this process may use; on macOS, which does not say, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_turns(turns: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """What every side returned, turn by turn. The order is turned round each time: load and heat fall on all alike."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(turns):
        for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(sides[name]())
    return found


def alone(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `work` returns in a process of its own, which begins with torch and PEFT imported and nothing else held."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "peft", "transformers"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments, **named).result()
