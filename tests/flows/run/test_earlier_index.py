"""The index of earlier tasks: made from the tables alone, the same after every accident, and never trusted more than they are."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.audit.fsck import fsck
from flows.config import dump
from flows.run import earlier_index
from flows.run.earlier_index import BEGIN, segments
from flows.run.earlier_reader import EarlierReader
from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.manifest import digest
from flows.run.resume import first_generation
from flows.run.retention import RetentionPolicy, retire
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import Damaged, open_store
from stages.core.earlier_tasks import SeenTasks, keys_of, rows_of
from tests.support import example_run

CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})
LAST = 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six generations with an index, without one, and with one from the fifth on. Tests work on copies."""
    folder = tmp_path_factory.mktemp("whole")
    store = open_store(str(folder))
    for run_id, unindexed in (("new", 0), ("old", 9), ("mixed", 4)):
        with hold(store, run_id) as epoch:
            example_run.build(Run(store, run_id, epoch), LAST + 1, CONFIG, unindexed)
    return folder


@pytest.fixture
def runs(whole: Path, tmp_path: Path) -> Iterator[dict[str, Run]]:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    store = open_store(str(tmp_path))
    with hold(store, "new") as one, hold(store, "old") as two, hold(store, "mixed") as three:
        yield {name: Run(store, name, epoch) for name, epoch in (("new", one), ("old", two), ("mixed", three))}


def again(run: Run) -> Run:
    return Run(run.store, run.run_id, run.epoch)


def begins(run: Run) -> list[Any]:
    return [run.manifest("verify", number).counts.get(BEGIN) for number in run.history.generations()]  # type: ignore[union-attr]


def seen(run: Run, generation: int) -> set[str]:
    return EarlierReader().seen(StageIO(run, "verify", generation, None, "seed", 2.0)).keys


def from_the_tables(run: Run, generation: int) -> set[str]:
    return SeenTasks(run.read_table(None, "seeds"), [run.read_table(number, "tasks") for number in range(generation)]).keys


def test_a_segment_covers_what_its_number_says(runs: dict[str, Run]) -> None:
    assert begins(runs["new"]) == [0, 0, 2, 0, 4, 4]
    assert [(one.begin, one.end) for one in segments(runs["new"], 0, 5)] == [(0, 4), (4, 5)]
    assert len(segments(runs["new"], 0, 3)) == 2


def test_the_first_generation_of_this_version_covers_a_run_that_began_without_an_index(runs: dict[str, Run]) -> None:
    assert begins(runs["mixed"]) == [None] * 4 + [0, 0]
    assert len(segments(runs["old"], 0, 5)) == 5
    assert [(one.begin, one.end) for one in segments(runs["mixed"], 0, 5)] == [(0, 5)], "computed once"
    assert seen(runs["mixed"], 6) == seen(runs["old"], 6) == from_the_tables(runs["new"], 6)


def test_generations_that_an_older_version_verified_in_between_are_covered(tmp_path: Path) -> None:
    """Two versions took turns: generations 8 and 9 have no index, 10 covers them all, and 11 may not begin inside that."""
    config = example_run.CONFIG.model_copy(update={"generations": 13})
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        run.describe(dump(config), {"base_model": "0" * 64}, example_run.CLOCK)
        population = example_run.start(run)
        for generation in range(12):
            population = example_run.one_generation(run, population, generation, False, indexed=generation not in (8, 9))
    run = Run(store, "r")
    assert begins(run) == [0, 0, 2, 0, 4, 4, 6, 0, None, None, 0, 0]
    assert all(seen(run, generation) == from_the_tables(run, generation) for generation in range(13))
    assert fsck(Run(store, "r")) == []


@pytest.mark.parametrize("name", ["new", "old", "mixed"])
@pytest.mark.parametrize("generation", [0, 2, 3, LAST])
def test_a_manifest_that_is_made_again_is_the_same(runs: dict[str, Run], name: str, generation: int) -> None:
    """Also one that an older version made: it gets no index, and names the tables that it named."""
    if (name, generation) == ("old", LAST):
        pytest.skip("the newest generation of an older version: nothing tells any more that it had no index")
    run = runs[name]
    before, tasks = run.manifest("verify", generation), run.read_table(generation, "tasks")
    assert before is not None
    folder = f"generation={generation:04d}"
    for uri in ("verify.json", "tasks.parquet", "earlier_keys.parquet", "earlier_rows.parquet"):
        run.remove(f"{folder}/{uri}")
    made = example_run.verify(again(run), generation, tasks)
    assert digest(made) == digest(before)
    assert first_generation(again(run)) == LAST


@pytest.mark.parametrize("kept", range(5))
def test_a_stage_killed_between_any_two_writes_comes_out_the_same(runs: dict[str, Run], kept: int) -> None:
    run = runs["new"]
    before, tasks = run.manifest("verify", LAST), run.read_table(LAST, "tasks")
    assert before is not None
    uris = [f"generation={LAST:04d}/{name}" for name in ("tasks.parquet", "earlier_keys.parquet", "earlier_rows.parquet")]
    bytes_before = {uri: run.store.read(f"new/{uri}") for uri in uris}
    run.remove(f"generation={LAST:04d}/verify.json")
    for uri in uris[kept:] if kept < 4 else ():
        run.remove(uri)
    if kept == 4:  # debris with other bytes
        run.remove(uris[1])
        run.store.create(f"new/{uris[1]}", b"half")
    with pytest.raises(Killed):
        example_run.verify(Run(Killing(run.store), "new", run.epoch), LAST, tasks)  # type: ignore[arg-type]
    assert digest(example_run.verify(again(run), LAST, tasks)) == digest(before)
    assert {uri: run.store.read(f"new/{uri}") for uri in uris} == bytes_before
    assert fsck(again(run)) == []


class Killed(BaseException):
    """The process ends here."""


class Killing:
    """A store whose process is killed right after it has stored something new."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, uri: str, data: bytes) -> str | None:
        """Write, and be killed."""
        if self._store.create(uri, data) is not None:
            raise Killed
        return None


def test_two_processes_that_verify_one_generation_agree(runs: dict[str, Run]) -> None:
    run = runs["new"]
    tasks = run.read_table(LAST, "tasks")
    run.remove(f"generation={LAST:04d}/verify.json")
    slow = StageIO(again(run), "verify", LAST, None, "seed", 2.0)
    EarlierReader().seen(slow)
    slow.table("proposals")
    slow.write_table("tasks", tasks)
    earlier_index.write_segment(slow, tasks)
    first = example_run.verify(again(run), LAST, tasks)
    assert digest(slow.commit(example_run.CLOCK)) == digest(first)


def test_a_fork_goes_on_with_the_index_of_a_parent_that_retired_its_adapters(runs: dict[str, Run]) -> None:
    parent = runs["new"]
    retire(parent, RetentionPolicy(newest=1, optimizer_every=90, adapter_every=90), {})
    made = fork(parent, "child", LAST, ["seed=9"], lambda config: {"base_model": "0" * 64}, {})
    with hold(parent.store, "child") as epoch:
        run = Run(parent.store, "child", epoch)
        example_run.one_generation(run, example_run.population_of(made, LAST), LAST + 1, last=False)
        manifest = run.manifest("verify", LAST + 1)
        assert manifest is not None and manifest.counts[BEGIN] == 6
        earlier = [ref for ref in manifest.inputs if "earlier_" in ref.uri]
        assert [(ref.origin, ref.uri[:15]) for ref in earlier] == [("new", "generation=0003"), ("new", "generation=0005")]
        assert seen(run, LAST + 2) == from_the_tables(run, LAST + 2)
        example_run.one_generation(run, example_run.population_of(run, LAST + 1), LAST + 2, last=True)
        manifest = run.manifest("verify", LAST + 2)
        assert manifest is not None and manifest.counts[BEGIN] == 0, "joined from the parent's segments and its own"
        assert fsck(Run(parent.store, "child")) == []


@pytest.mark.parametrize("name", ["earlier_keys", "earlier_rows"])
def test_a_damaged_segment_is_refused_and_made_again_from_the_tables(runs: dict[str, Run], tmp_path: Path, name: str) -> None:
    run = runs["new"]
    tasks = run.read_table(3, "tasks")
    file = tmp_path / "new" / "generation=0003" / f"{name}.parquet"
    sound = file.read_bytes()
    file.unlink()
    file.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    io = StageIO(again(run), "propose", 4, None, "seed", 2.0)
    with pytest.raises(Damaged, match=name):
        (EarlierReader().seen if name == "earlier_keys" else EarlierReader().stored)(io)
    (finding,) = fsck(again(run))
    assert finding.uri == f"generation=0003/{name}.parquet" and "populora run --resume new" in finding.command
    assert name == "earlier_rows" or "generation=0004/verify" in finding.dependents
    assert first_generation(again(run)) == 3
    example_run.verify(again(run), 3, tasks)
    assert file.read_bytes() == sound and fsck(again(run)) == []


def test_fsck_compares_the_index_with_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    rows_of = earlier_index.rows_of
    with hold(store, "r") as epoch, monkeypatch.context() as patch:
        patch.setattr(earlier_index, "rows_of", lambda tasks: rows_of(tasks).slice(1))
        example_run.build(Run(store, "r", epoch), 3)
    assert [(one.uri, one.problem) for one in fsck(Run(store, "r"))] == [
        ("generation=0000/earlier_rows.parquet", "it is not the index of the tasks of generations 0 to 0"),
        ("generation=0001/earlier_rows.parquet", "it is not the index of the tasks of generations 0 to 1"),
        ("generation=0002/earlier_rows.parquet", "it is not the index of the tasks of generations 2 to 2"),
    ]


def test_fsck_reports_a_segment_with_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gapped(io: StageIO, tasks: Any) -> None:
        """Claim generations 1 and 2 and hold only 2, after a segment of 0 and 1."""
        io.write_table("earlier_keys", keys_of(tasks))
        io.write_table("earlier_rows", rows_of(tasks))
        io.count(**{BEGIN: 1})

    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        population = example_run.population_of(example_run.build(run, 2), 1)
        monkeypatch.setattr(example_run, "write_segment", gapped)
        example_run.one_generation(run, population, 2, last=True)
    (finding,) = fsck(Run(store, "r"))
    assert finding.uri == "generation=0002/earlier_keys.parquet" and "inside an earlier segment" in finding.problem


def test_what_was_made_from_a_damaged_table_includes_what_the_index_passed_on(runs: dict[str, Run], tmp_path: Path) -> None:
    file = tmp_path / "new" / "generation=0001" / "tasks.parquet"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    (finding,) = fsck(again(runs["new"]))
    assert "generation=0005/verify" in finding.dependents
