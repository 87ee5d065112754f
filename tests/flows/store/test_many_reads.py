"""Many small reads: by turns where they compute, at the same time where they wait."""

import threading
from functools import partial
from itertools import count

import pytest

from flows.store.many_reads import READERS, read_each


def read_where(passed: float, computed: float):
    """Return read_each with clocks that advance by so much between two looks at them."""
    wall, own = count(0.0, passed), count(0.0, computed)
    return partial(read_each, clock=lambda: next(wall), own=lambda: next(own))


def test_reads_that_only_compute_share_one_thread_and_keep_their_order() -> None:
    threads = set()

    def read(number: int) -> int:
        threads.add(threading.get_ident())
        return number

    assert read_where(passed=1.1, computed=1.0)(read, list(range(40))) == list(range(40))
    assert threads == {threading.get_ident()}


def test_reads_that_wait_wait_together() -> None:
    together = threading.Barrier(READERS, timeout=30)

    def read(number: int) -> int:
        if number > 0:
            together.wait()  # passes only if as many reads are under way
        return number

    items = list(range(1 + 2 * READERS))
    assert read_where(passed=2.1, computed=1.0)(read, items) == items


@pytest.mark.parametrize("items", [[], [7], [1, 2, 3]])
def test_few_items_are_all_read(items: list[int]) -> None:
    assert read_each(str, items) == [str(item) for item in items]


@pytest.mark.parametrize("bad", [0, 7])
@pytest.mark.parametrize("passed", [1.1, 2.1])
def test_a_fault_is_the_caller_s(bad: int, passed: float) -> None:
    with pytest.raises(ZeroDivisionError):
        read_where(passed, computed=1.0)(lambda number: 1 // (number - bad), list(range(20)))
