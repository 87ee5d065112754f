"""A fork and its parent's retention at the same time: every order of their steps leaves a whole fork, or none."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.audit.fsck import fsck
from flows.run.fork import fork
from flows.run.lease import hold, newest_epoch
from flows.run.retention import RetentionPolicy, pins_of, retire
from flows.run.run import Run
from flows.storage import StoreRefused, open_store
from tests.support import example_run

POLICY = RetentionPolicy(newest=1, optimizer_every=99, adapter_every=99)
CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})
SHARED = ("smoke/.fork-", "smoke/gc/", "smoke/adapters/")
NOTES = "smoke/."  # as retention lists them
TO_ITS_END = 10**6


class Turns:
    """Who takes how many steps, in order. A step is one use of what both share: pins, tombstones and adapters of the parent."""

    def __init__(self, *plan: tuple[str, int]) -> None:
        self._plan = list(plan)
        self._ended: set[str] = set()
        self._changed = threading.Condition()
        self.steps = {"fork": 0, "gc": 0}

    @contextmanager
    def step(self, who: str) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._next() == who)
            yield
            self.steps[who] += 1
            name, left = self._plan[0]
            self._plan[0] = (name, left - 1)
            self._changed.notify_all()

    def end(self, who: str) -> None:
        with self._changed:
            self._ended.add(who)
            self._changed.notify_all()

    def _next(self) -> str:
        while self._plan[0][1] == 0 or self._plan[0][0] in self._ended:
            del self._plan[0]
        return self._plan[0][0]


class Stepping:
    """The store as one of the two sees it: it waits for its turn before each step."""

    def __init__(self, store: Any, turns: Turns, who: str) -> None:
        self._store, self._turns, self._who = store, turns, who
        self.url = store.url

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def stepping(uri: str, *more: Any, **options: Any) -> Any:
            if not uri.startswith(SHARED) and uri != NOTES:
                return method(uri, *more, **options)
            with self._turns.step(self._who):
                return method(uri, *more, **options)

        return stepping


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with hold(open_store(str(folder)), "smoke") as epoch:
        example_run.build(Run(open_store(str(folder)), "smoke", epoch), 2, CONFIG)
    return folder


def race(whole: Path, folder: Path, *plan: tuple[str, int], keep: bool = False) -> tuple[str, Turns]:
    """What became of the fork, `made` or `refused`; both ran in the planned order, and what they left is sound."""
    shutil.copytree(whole, folder)
    store, turns, fate = open_store(str(folder)), Turns(*plan), ["failed"]

    def forking() -> None:
        try:
            fork(Run(Stepping(store, turns, "fork"), "smoke"), "other", 0, [], lambda config: {}, {})  # type: ignore[arg-type]
            fate[0] = "made"
        except StoreRefused as error:
            fate[0] = "refused" if "cannot be forked from generation 0" in str(error) else str(error)
        finally:
            turns.end("fork")

    beside = threading.Thread(target=forking)
    beside.start()
    try:
        retire(Run(Stepping(store, turns, "gc"), "smoke", newest_epoch(store, "smoke")), POLICY, {})  # type: ignore[arg-type]
    finally:
        turns.end("gc")
        beside.join()
    sound(Run(store, "smoke"), fate[0])
    if not keep:
        shutil.rmtree(folder)
    return fate[0], turns


def sound(parent: Run, fate: str) -> None:
    made = Run(parent.store, "other")
    if fate == "made":
        epoch = newest_epoch(parent.store, "smoke")
        retire(Run(parent.store, "smoke", epoch), POLICY, {})  # once more: nothing that the fork stands on goes later either
        for member in example_run.population_of(parent, 0):
            made.read_adapter(member.adapter_id)
    else:
        assert fate == "refused" and pins_of(parent).forked == frozenset() and made.history.description() is None


def steps(whole: Path, folder: Path) -> dict[str, int]:
    """How many steps each takes when nothing is in its way."""
    _, turns = race(whole, folder / "alone", ("fork", TO_ITS_END), ("gc", TO_ITS_END))
    _, late = race(whole, folder / "alone", ("gc", TO_ITS_END), ("fork", TO_ITS_END))
    assert turns.steps["fork"] > 15 and late.steps["gc"] > 15
    return {"fork": turns.steps["fork"], "gc": late.steps["gc"]}


def orders(whole: Path, folder: Path, every: bool) -> Iterator[tuple[tuple[str, int], ...]]:
    """One begins, the other comes in between, and the first ends before the other does; with all numbers of steps, or a sample.

    The sample has all of retention's: a fork that misses a tombstone shows between two of them only.
    """
    most = steps(whole, folder)
    for first, second, stride in (("fork", "gc", 6), ("gc", "fork", 1)):
        for before in range(0, most[first] + 1, 1 if every else stride):
            for between in range(1, most[second] + 1) if every else (most[second],):
                yield (first, before), (second, between), (first, TO_ITS_END), (second, TO_ITS_END)


@pytest.mark.parametrize(
    "every", [pytest.param(False, id="some"), pytest.param(True, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_no_order_of_their_steps_loses_the_base_of_a_fork(whole: Path, tmp_path: Path, every: bool) -> None:
    fates = [race(whole, tmp_path / "run", *plan)[0] for plan in orders(whole, tmp_path, every)]
    print(f"{len(fates)} orders: {fates.count('made')} forks made, {fates.count('refused')} refused")
    assert set(fates) == {"made", "refused"}


def test_a_run_in_which_both_met_is_sound(whole: Path, tmp_path: Path) -> None:
    """The fork comes between retention's plan and its removals: it takes its tombstones back."""
    for before in range(1, 12):
        folder = tmp_path / f"{before}"
        fate, _ = race(whole, folder, ("gc", before), ("fork", TO_ITS_END), ("gc", TO_ITS_END), keep=True)
        store = open_store(str(folder))
        if store.exists("smoke/gc/0002.json"):
            assert fate == "made" and fsck(Run(store, "smoke")) == [] and fsck(Run(store, "other")) == []
            return
    raise AssertionError("they never met")
