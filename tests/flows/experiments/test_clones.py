"""Evolution against its clone: what a fork of an event shares and changes, and which scores of child and clone are paired."""

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scipy import stats

from flows.audit.fsck import fsck
from flows.config import ConfigError, parse
from flows.experiments.clones import CloneEvent, ClonePair, clone_events, clone_fork, clone_pairs
from flows.experiments.clones_text import pairs_text, write_pairs
from flows.run.lease import hold
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Store, open_store
from stages.core import tables
from stages.core.population import population_after
from stages.core.suites.scores import Contestant
from stages.figures.comparison import clones
from tests.support import example_run
from tests.support.compared_runs import _answers as answers

AGES = (0, 1, 2)


def versions(_config: object) -> dict[str, str]:
    return {"code": "x"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A run of three generations: s2 is born after generation 0, s3 after generation 1."""
    opened = open_store(str(tmp_path))
    with hold(opened, "smoke") as epoch:
        example_run.build(Run(opened, "smoke", epoch), 3)
    return opened


def scored(run: Run, folder: str, right: dict[str, Callable[[int], bool]], version: str = "", limit: int = 0) -> None:
    """Store answers of adapters as `populora benchmark` would."""
    found = []
    for adapter_id, correct in right.items():
        who = Contestant(adapter_id.rpartition("-")[0], "student", adapter_id, "0" * 64)
        found.append(answers([who], correct))
    place = f"probe-dev/asked/{folder}-n{limit}-k0"
    ref = run.write_table_at(f"benchmarks/{place}/answers.parquet", tables.join(found, tables.ANSWERS), tables.ANSWERS)
    run.commit_benchmark(place, [], [ref], {}, {"suite": version} if version else {}, {})


def cloned(store: Store) -> CloneEvent:
    """The first event with its fork, whose rest was written by hand: the copy is born, and trains for a generation."""
    event = clone_events(Run(store, "smoke"))[0]
    made = clone_fork(event, AGES, versions, {})
    with hold(store, made.run_id) as epoch:
        run = Run(store, made.run_id, epoch)
        trained = population_after(run.read_table(0, "ratings"), tables.OFFSPRING.empty_table(), 0)
        rows, refs = example_run._offspring(run, trained, 0)
        table = tables.table([row | {"operator": "C1"} for row in rows], tables.OFFSPRING)
        run.commit("evolve", 0, [], [*refs, run.write_table(0, "offspring", table)], {}, {}, {})
        example_run.one_generation(run, example_run.population_of(run, 0), 1, True)
    return event


def test_every_event_is_found_and_named(store: Store) -> None:
    run = Run(store, "smoke")
    assert [(one.generation, one.fork_id) for one in clone_events(run)] == [(0, "smoke-c0"), (1, "smoke-c1")]
    assert [one.generation for one in clone_events(run, [1])] == [1]
    with pytest.raises(ConfigError, match="run smoke has no finished evolution event at generation 2"):
        clone_events(run, [2])


def test_the_fork_shares_all_but_the_event_and_copies_there_only(store: Store) -> None:
    before = {uri: store.read(uri) for uri in store.list("smoke/")}
    made = clone_fork(clone_events(Run(store, "smoke"))[1], AGES, versions, {})
    description = made.history.description()
    assert description is not None
    config = parse(description["config"])
    assert (config.evolution.copies_at, config.generations) == ((1,), 3), "it ends where the run does"
    assert (config.benchmark.children_at, config.benchmark.every) == (AGES, 0)
    assert made.manifest("evolve", 0) is not None and made.manifest("evolve", 1) is None
    assert [one.stage for one in made.history.of_generation(1)] == [name for name in STAGE_NAMES[:-1] if name != "benchmark"]
    assert {uri: store.read(uri) for uri in store.list("smoke/")} == before
    assert clone_fork(clone_events(Run(store, "smoke"))[1], AGES, versions, {}).run_id == made.run_id, "it is completed"
    again = clone_fork(clone_events(Run(store, "smoke"))[1], (0, 2), versions, {})
    assert again.history.description() == description, "other ages find the fork as it is"


def test_a_fork_stops_where_its_run_left_out_an_event(tmp_path: Path) -> None:
    """The run was planned for two generations and then extended: it has no offspring after generation 1, a fork would have."""
    opened = open_store(str(tmp_path))
    with hold(opened, "smoke") as epoch:
        run = example_run.build(Run(opened, "smoke", epoch), 2)
        example_run.one_generation(run, example_run.population_of(run, 1), 2, True)
    description = clone_fork(clone_events(Run(opened, "smoke"))[0], (0, 2), versions, {}).history.description()
    assert description is not None and description["config"]["generations"] == 2


def test_child_and_clone_are_paired_by_problem_at_every_age_that_both_reached(store: Store, tmp_path: Path) -> None:
    event = cloned(store)
    assert fsck(Run(store, "smoke-c0")) == []
    scored(Run(store, "smoke"), "children", {"s2-start": lambda n: n < 4, "s2-g0001": lambda n: n < 6})
    scored(Run(store, "smoke-c0"), "copies", {"s2-start": lambda n: n < 3, "s2-g0001": lambda n: n in (0, 7)})
    birth, one, two = clone_pairs(event, AGES)
    assert (birth.child, birth.clone, birth.difference, birth.problems) == (0.5, 0.375, 0.125, 8)
    assert (one.child_adapter, one.clone_adapter, one.difference) == ("s2-g0001", "s2-g0001", 0.5)
    assert birth.stderr == pytest.approx(0.125)
    assert (two.difference, two.note) == (None, "the child was replaced, or the run ended before")
    text = pairs_text([birth, one, two])
    assert re.search(r"smoke +0 s2 +M1 +1 +75\.00 +25\.00 +\+50\.00 +\d+\.\d\d +8\n", text)
    assert "age   1: +50.00, n = 1 run; 1 of 1 pair, both survived" in text and "age   2: no pair has scores" in text
    written = write_pairs([birth, one, two], tmp_path / "out")
    assert [Path(path).name for path in written] == ["pairs.parquet", "pairs.csv", "clones.svg"]
    assert pq.read_table(written[0])["difference"].to_pylist() == [0.125, 0.5, None]


def test_pairs_of_one_run_are_averaged_before_chance_is_estimated() -> None:
    def pair(run: str, generation: int, difference: float | None) -> ClonePair:
        return ClonePair(run, generation, "s2", "M1", 10, "s2-g", "s2-g", 0.5, 0.5, difference, 0.01, 8)

    five = [pair("a", event, 0.01 * event) for event in range(5)]
    assert pairs_text(five).splitlines()[-1] == "age  10: +2.00, n = 1 run; 5 of 5 pairs, both survived"
    three = [*five, pair("b", 0, 0.06), pair("b", 1, None), pair("c", 0, 0.10)]
    means = stats.ttest_1samp([0.02, 0.06, 0.10], 0)
    last = pairs_text(three).splitlines()[-1]
    assert last.startswith("age  10: +6.00 ± 2.31 points, 95 % ")
    assert last.endswith(f", p = {means.pvalue:.3g}, n = 3 runs; 7 of 8 pairs, both survived")
    caption = clones([asdict(one) for one in three], 0.05).caption
    assert "n = runs at each age: 3; pairs of which both survived: 7 of 8." in caption


def test_weights_that_were_retired_leave_a_pair_without_scores(store: Store) -> None:
    event = cloned(store)
    scored(Run(store, "smoke"), "children", {"s2-start": lambda n: n < 4})
    scored(Run(store, "smoke-c0"), "copies", {"s2-start": lambda n: n < 4})
    for run in ("smoke", "smoke-c0"):
        store.delete(f"{run}/adapters/s2-g0001/adapter_model.safetensors")
    birth, one = clone_pairs(event, (0, 1))
    assert (birth.difference, one.note) == (0.0, "the weights s2-g0001 of the child were retired")


def test_child_and_clone_are_paired_only_on_one_version_of_the_suite(store: Store) -> None:
    event = cloned(store)
    scored(Run(store, "smoke"), "old", {"s2-start": lambda n: n < 4, "s2-g0001": lambda n: n < 4}, "old")
    scored(Run(store, "smoke"), "new", {"s2-start": lambda n: n < 6}, "new")
    scored(Run(store, "smoke-c0"), "new", {"s2-start": lambda n: n < 5, "s2-g0001": lambda n: n < 4}, "new")
    scored(Run(store, "smoke"), "part-n0-k1", {"s2-g0001": lambda n: True}, "new", limit=7)  # another question
    for run in ("smoke", "smoke-c0"):
        store.delete(f"{run}/adapters/s2-g0001/adapter_model.safetensors")
    birth, one = clone_pairs(event, (0, 1))
    assert (birth.child, birth.clone) == (0.75, 0.625)
    assert one.difference is None
    assert one.note == "the two were scored on different versions of the suite, and weights were retired since"
