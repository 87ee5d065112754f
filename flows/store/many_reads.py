"""Many small reads of a store: one after another while they only compute, several at a time where they wait."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

READERS = 8  # threads
TRIED = 4  # reads that tell whether the store makes one wait

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def read_each(read: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Return what `read` returns for each item, in their order. Raises what it raises.

    A bucket or a network folder answers each read after milliseconds, so threads wait together. A folder of this machine answers
    at once: threads would only take the interpreter from each other, which doubles the time. The first reads tell which it is.
    """
    began, computed = time.perf_counter(), time.thread_time()
    found = [read(item) for item in items[:TRIED]]
    computed = time.thread_time() - computed
    waited = time.perf_counter() - began - computed
    rest = items[TRIED:]
    if waited <= computed:
        return found + [read(item) for item in rest]
    with ThreadPoolExecutor(READERS) as pool:
        return found + list(pool.map(read, rest))
