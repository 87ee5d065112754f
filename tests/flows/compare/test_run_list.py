"""The list of runs: states, progress, scores and sizes of real stores, damaged ones included."""

import json
from pathlib import Path

import pytest

from flows.compare.run_list import BYTES_SECONDS, RunList
from flows.monitoring.run_state import RunState
from flows.monitoring.status import stored_bytes
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.errors import AccessRefused
from flows.store.file_store import FileStore
from tests.support import compared_runs, malformed
from tests.support.report_run import made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    root = tmp_path_factory.mktemp("store")
    store = FileStore(root)
    compared_runs.build(store, "scored", 2, {0: lambda number: number < 2, 1: lambda number: number < 6})
    with made(root, "half", 2, until="solve"):
        pass
    with hold(store, "begun") as epoch:
        Run(store, "begun", epoch).describe({"generations": 3}, {}, {"started": 12.5})
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    (root / "notes").mkdir()
    (root / "Not-A-Run").mkdir()
    return store


def test_each_run_says_how_far_it_has_come(store: FileStore) -> None:
    found = {entry.run_id: entry for entry in RunList(store).entries()}
    assert list(found) == ["begun", "broken", "half", "scored"]
    begun, broken, half, scored = found.values()
    assert (begun.state, begun.done, begun.planned, begun.upcoming, begun.began) == (RunState.STOPPED, 0, 3, "start", 12.5)
    assert (half.state, half.newest, half.done, half.planned) == (RunState.STOPPED, 1, 1, 2)
    assert half.upcoming == "grade of generation 1"
    assert (scored.state, scored.newest, scored.done, scored.planned) == (RunState.STOPPED, 1, 2, 3)
    assert scored.settings["population.teachers"] == 2 and scored.share == 2 / 3
    assert broken.state == RunState.UNREADABLE and broken.fault.startswith("its run.json cannot be read: ")


@pytest.mark.parametrize("part", malformed.RUN_JSON)
def test_a_malformed_run_does_not_take_the_list_down(part: dict[str, object], tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with hold(store, "good") as epoch:
        Run(store, "good", epoch).describe({"generations": 3}, {}, {"started": 1.0})
    store.create("odd/run.json", json.dumps({"schema": 1, "config": {"generations": 3}} | part).encode())
    good, odd = RunList(store).entries()
    assert (good.state, odd.state) == (RunState.STOPPED, RunState.UNREADABLE)
    assert odd.fault.startswith("its run.json cannot be read: odd/run.json: ")


def test_a_run_at_work_and_one_that_takes_an_old_name_are_seen_at_once(store: FileStore, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    listing = RunList(store)
    with hold(store, "one") as epoch:
        Run(store, "one", epoch).describe({"generations": 3}, {}, {"started": 1.0})
        (entry,) = listing.entries()
        assert entry.state == RunState.RUNNING and entry.who.startswith("process ")
    (tmp_path / "one" / "run.json").unlink()
    assert listing.entries() == []
    with hold(store, "one") as epoch:
        Run(store, "one", epoch).describe({"generations": 5}, {}, {"started": 2.0})
    assert [(entry.planned, entry.began) for entry in listing.entries()] == [(5, 2.0)]


class Closed(FileStore):
    """A store whose artifacts may not be read while `closed`."""

    closed = False

    def read(self, uri: str) -> bytes:
        """Return the artifact, or refuse."""
        if self.closed:
            raise AccessRefused(f"{uri}: Permission denied")
        return super().read(uri)


def test_refused_access_is_not_kept(tmp_path: Path) -> None:
    store = Closed(tmp_path)
    with hold(store, "one") as epoch:
        Run(store, "one", epoch).describe({"generations": 3}, {}, {"started": 1.0})
    listing, store.closed = RunList(store), True
    (entry,) = listing.entries()
    assert entry.fault == "its run.json cannot be read: one/run.json: Permission denied"
    store.closed = False
    (entry,) = listing.entries()
    assert (entry.fault, entry.planned) == ("", 3)


def test_the_score_is_that_of_the_newest_benchmark_of_the_run_itself(store: FileStore) -> None:
    listing = RunList(store)
    entries = listing.entries()
    # The configuration benchmarks the last generation only, and generation 1 is not the last of three.
    assert listing.scores(entries) == {}
    raw = json.loads(store.read("scored/run.json"))
    path = Path(store.root / "scored" / "run.json")
    path.write_text(json.dumps(raw | {"config": raw["config"] | {"benchmark": raw["config"]["benchmark"] | {"every": 1}}}))
    found = listing.scores(listing.entries())
    assert list(found) == ["scored"]
    score = found["scored"]
    assert (score.suite, score.trained, score.measure, score.score, score.members) == ("probe-dev", 2, "pass@1 greedy", 0.75, 2)
    assert (score.problems, score.lowest, score.highest) == (8, 0.75, 0.75) and score.stderr == pytest.approx(0.1637, abs=1e-4)


def test_the_start_s_score_is_not_that_of_the_population(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    compared_runs.build(store, "one", 1, {}, compared_runs.configured(generations=1))
    with hold(store, "one") as epoch:
        run = Run(store, "one", epoch)
        start = compared_runs._written(run, "probe-dev/start", 0, lambda number: False)
        own = compared_runs._written(run, "probe-dev/generation=0000", 0, lambda number: True)
        run.commit("benchmark", 0, [], [*start, *own], {}, {"suite": "1" * 64})
    listing = RunList(store)
    assert [(one.trained, one.score) for one in listing.scores(listing.entries()).values()] == [(1, 1.0)]


def test_sizes_are_counted_again_after_a_minute(tmp_path: Path) -> None:
    store, now = FileStore(tmp_path), [0.0]
    with hold(store, "one") as epoch:
        run = Run(store, "one", epoch)
        run.describe({"generations": 3}, {}, {})
        listing = RunList(store, clock=lambda: now[0])
        entries = listing.entries()
        first = sum(stored_bytes(run).values())
        assert listing.sizes(entries) == {"one": first}
        run.write_blob("adapters/a/x", b"12345")
        assert listing.sizes(entries) == {"one": first}
        now[0] = BYTES_SECONDS + 1
        assert listing.sizes(entries) == {"one": first + 5}
