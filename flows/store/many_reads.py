"""Many small reads of a store: one after another while they only compute, several at a time where they wait."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

READERS = 8  # threads
Clock = Callable[[], float]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def read_each(
    read: Callable[[Item], Answer], items: Sequence[Item], clock: Clock = time.perf_counter, own: Clock = time.thread_time
) -> list[Answer]:
    """Return what `read` returns for each item, in their order. Raises what it raises.

    A bucket or a network folder answers each read after milliseconds, so threads wait together. A folder of this machine answers
    at once: threads would only take the interpreter from each other. The first read tells which it is, by the seconds that pass
    (`clock`) and those that this thread computes (`own`).
    """
    began, computed = clock(), own()
    found = [read(item) for item in items[:1]]
    computed = own() - computed
    waited = clock() - began - computed
    rest = items[1:]
    if waited <= computed:
        return found + [read(item) for item in rest]
    with ThreadPoolExecutor(READERS) as pool:
        return found + list(pool.map(read, rest))
