"""The runs that the pages have opened: kept for whoever visits all of them in turn, until they are gone from the store."""

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flows.monitoring.telemetry import StoreMetrics
from flows.pages.library import Library
from flows.pages.live_page import Followers
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import NotStored
from flows.store.file_store import FileStore
from tests.support import example_run
from tests.support.counted import CountingStore

RUNS = 70


def write(root: Path, run_id: str, generations: int) -> None:
    with hold(FileStore(root), run_id) as epoch:
        example_run.build(Run(FileStore(root), run_id, epoch), generations)


def counted(root: Path) -> tuple[Library, CountingStore]:
    counting = CountingStore(FileStore(root))
    return Library(cast(Any, counting)), counting


def test_a_second_scrape_of_many_runs_reads_one_small_file_each(tmp_path: Path) -> None:
    write(tmp_path, "run00", 1)
    for number in range(1, RUNS):
        shutil.copytree(tmp_path / "run00", tmp_path / f"run{number:02d}")
    library, counting = counted(tmp_path)
    registry = CollectorRegistry(auto_describe=False)
    metrics = StoreMetrics(library.store, library.states, library.run_ids, lambda run_id: library.watch(library.run(run_id)))
    registry.register(metrics)
    reads = []
    for _ in range(2):
        counting.requests.clear()
        text = generate_latest(registry).decode()
        assert text.count("\npopulora_generations_done{") == RUNS and "\npopulora_unreadable_runs 0.0" in text
        reads.append(counting.requests["read"])
    assert reads[0] > 10 * RUNS and reads[1] <= RUNS, "the second one reads run.json alone"


def test_a_run_that_is_gone_is_forgotten_and_one_that_took_its_name_is_read(tmp_path: Path) -> None:
    write(tmp_path, "stays", 1)
    write(tmp_path, "again", 2)
    library, counting = counted(tmp_path)
    before = {name: library.run(name) for name in library.run_ids()}
    assert library.watch(before["again"]).generations == [0, 1]
    shutil.rmtree(tmp_path / "again")
    write(tmp_path, "again", 1)
    assert library.run_ids() == ["again", "stays"] and library.run("stays") is before["stays"]
    after = library.run("again")
    assert after is not before["again"] and library.watch(after).generations == [0]
    counting.requests.clear()
    library.watch(after)
    assert counting.requests["read"] == 0
    shutil.rmtree(tmp_path / "again")
    assert library.run_ids() == ["stays"]


def test_a_run_that_took_the_name_of_another_is_opened_without_a_look_at_the_list(tmp_path: Path) -> None:
    write(tmp_path, "again", 2)
    library, _ = counted(tmp_path)
    followers = Followers(library)
    before = library.run("again")
    assert library.watch(before).generations == [0, 1] and library.run("again") is before
    assert followers.state("again").newest == 1
    shutil.rmtree(tmp_path / "again")
    with pytest.raises(NotStored, match="There is no run again"):
        library.run("again")
    write(tmp_path, "again", 1)
    after = library.run("again")
    assert after is not before and library.run("again") is after
    assert library.watch(after).generations == [0] and library.watch(after).faults == []
    state = followers.state("again")
    assert (state.newest, state.faults) == (0, ())
