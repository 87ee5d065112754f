"""What a stage asks about earlier tasks: the same whoever asks, in a few requests whatever came before."""

from pathlib import Path
from typing import Any

import pytest

from flows.run.earlier_reader import EarlierReader
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import Store, open_store
from stages.core.earlier_tasks import SeenTasks, StoredTasks
from tests.support import example_run
from tests.support.counted import CountingStore

GENERATIONS = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    opened = open_store(str(tmp_path_factory.mktemp("store")))
    for run_id, generations, unindexed in (("r", GENERATIONS, 0), ("shorter", 3, 0), ("old", GENERATIONS, 9), ("mixed", 6, 3)):
        with hold(opened, run_id) as epoch:
            example_run.build(Run(opened, run_id, epoch), generations, unindexed=unindexed)
    return opened


def asked(store: Any, stage: str, generation: int, run_id: str = "r") -> StageIO:
    """The storage of a step as a worker opens it: nothing of the run is known yet."""
    return StageIO(Run(store, run_id), stage, generation, None, "seed", 2.0)


def state(seen: SeenTasks, stored: StoredTasks) -> tuple[Any, ...]:
    snapshots = [{kind: list(rows) for kind, rows in one.items()} for one in (stored.snapshot(99), stored.snapshot(2, "t1"))]
    return seen.keys, seen.valid, seen.texts, seen.programs, seen.cells, snapshots


def known(reader: EarlierReader, io: StageIO) -> tuple[Any, ...]:
    return state(reader.seen(io), reader.stored(io))


def from_the_tables(run: Run, generation: int) -> tuple[Any, ...]:
    seeds, tasks = run.read_table(None, "seeds"), [run.read_table(number, "tasks") for number in range(generation)]
    return state(SeenTasks(seeds, tasks), StoredTasks(seeds, tasks))


def test_a_warm_process_asks_for_the_same_number_of_artifacts_in_every_generation(store: Store) -> None:
    counting: Any = CountingStore(store)
    reader = EarlierReader()
    reads = []
    for generation in range(GENERATIONS):
        counting.requests.clear()
        for stage in ("propose", "verify", "solve", "update"):
            known(reader, asked(counting, stage, generation))
        reads.append(counting.requests["read"])
    assert reads[3] == reads[5] and max(reads) <= reads[3] + 4, reads


@pytest.mark.parametrize("run_id", ["r", "old", "mixed"])
def test_the_answers_and_the_inputs_are_those_of_a_process_that_begins_at_any_generation(store: Store, run_id: str) -> None:
    kept = EarlierReader()
    for generation in range(GENERATIONS):
        run = Run(store, run_id)
        inputs = []
        for reader in (kept, EarlierReader()):
            io = asked(store, "verify", generation, run_id)
            assert known(reader, io) == from_the_tables(run, generation)
            inputs.append(io.inputs())
            io = asked(store, "update", generation, run_id)
            reader.seen(io, seeds=False)
            assert all(not ref.uri.startswith("start/") for ref in io.inputs())
        assert inputs[0] == inputs[1]
        assert inputs[0][0] == run.history.find("start/seeds.parquet")


def test_the_inputs_are_the_segments_that_cover_the_past(store: Store) -> None:
    io = asked(store, "verify", 5)
    EarlierReader().seen(io)
    segments = [f"generation=000{number}/earlier_keys.parquet" for number in (3, 4)]  # 5 is 101 in binary: 0 to 3, and 4
    assert [ref.uri for ref in io.inputs()] == ["start/seeds.parquet", *segments]
    io = asked(store, "verify", 5, "old")
    EarlierReader().seen(io)
    tables = [f"generation=000{number}/tasks.parquet" for number in range(5)]
    assert [ref.uri for ref in io.inputs()] == ["start/seeds.parquet", *tables]


def test_another_run_and_an_earlier_generation_are_read_again(store: Store) -> None:
    reader = EarlierReader()
    for run_id, generation in (("r", 5), ("shorter", 2), ("r", 2), ("r", 4), ("mixed", 4), ("mixed", 6)):
        io = asked(store, "verify", generation, run_id)
        assert known(reader, io) == from_the_tables(io.run, generation)


@pytest.mark.parametrize("adapter_id", ["t0-start", "s0-g0001"])
def test_an_adapter_is_found_without_a_search_through_the_run(store: Store, adapter_id: str) -> None:
    """A frozen member plays with the weights of the start in every generation."""
    uri, requests = f"adapters/{adapter_id}/adapter_model.safetensors", []
    for run_id in ("r", "shorter"):
        counting: Any = CountingStore(store)
        assert Run(counting, run_id).history.find(uri).uri == uri
        requests.append(counting.requests)
    assert requests[0] == requests[1]


def test_a_table_is_found_with_one_request(store: Store) -> None:
    counting: Any = CountingStore(store)
    Run(counting, "r").history.find("generation=0004/ratings.parquet")
    assert counting.requests == {"read": 1}


def test_a_table_that_cannot_be_read_leaves_no_half_read_index(tmp_path: Path) -> None:
    broken = open_store(str(tmp_path))
    with hold(broken, "r") as epoch:
        example_run.build(Run(broken, "r", epoch), 4)
    reader = EarlierReader()
    known(reader, asked(broken, "verify", 1))
    file = tmp_path / "r" / "generation=0002" / "earlier_keys.parquet"
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(Exception, match="earlier_keys"):
        reader.seen(asked(broken, "verify", 3))
    file.write_bytes(data)
    io = asked(broken, "verify", 3)
    assert known(reader, io) == from_the_tables(io.run, 3)
