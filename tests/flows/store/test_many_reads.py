"""Many small reads: by turns where they compute, at the same time where they wait."""

import threading
from itertools import count
from types import SimpleNamespace

import pytest

from flows.store import many_reads
from flows.store.many_reads import READERS, TRIED, read_each


def of_times(monkeypatch: pytest.MonkeyPatch, passed: float, computed: float) -> None:
    """Let the clocks advance by so much between two looks at them."""
    wall, own = count(0.0, passed), count(0.0, computed)
    monkeypatch.setattr(many_reads, "time", SimpleNamespace(perf_counter=lambda: next(wall), thread_time=lambda: next(own)))


def test_reads_that_only_compute_share_one_thread_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    of_times(monkeypatch, passed=1.1, computed=1.0)
    threads = set()

    def read(number: int) -> int:
        threads.add(threading.get_ident())
        return number

    assert read_each(read, list(range(40))) == list(range(40))
    assert threads == {threading.get_ident()}


def test_reads_that_wait_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    of_times(monkeypatch, passed=2.1, computed=1.0)
    together = threading.Barrier(READERS, timeout=30)

    def read(number: int) -> int:
        if number >= TRIED:
            together.wait()  # passes only if as many reads are under way
        return number

    items = list(range(TRIED + 2 * READERS))
    assert read_each(read, items) == items


@pytest.mark.parametrize("items", [[], [7], list(range(TRIED))])
def test_few_items_are_all_read(items: list[int]) -> None:
    assert read_each(str, items) == [str(item) for item in items]


@pytest.mark.parametrize("bad", [0, TRIED + 3])
@pytest.mark.parametrize("passed", [1.1, 2.1])
def test_a_fault_is_the_caller_s(bad: int, passed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    of_times(monkeypatch, passed, computed=1.0)
    with pytest.raises(ZeroDivisionError):
        read_each(lambda number: 1 // (number - bad), list(range(20)))
