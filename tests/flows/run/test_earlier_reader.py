"""What a stage asks about earlier tasks: the same whoever asks, and each earlier table is read from the store once."""

from pathlib import Path
from typing import Any

import pytest

from flows.run.earlier_reader import EarlierReader
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import Store, open_store
from stages.core.earlier_tasks import EarlierTasks
from tests.support import example_run
from tests.support.counted import CountingStore

GENERATIONS = 6
STAGES = ("propose", "verify", "solve", "update")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    opened = open_store(str(tmp_path_factory.mktemp("store")))
    for run_id, generations in (("r", GENERATIONS), ("shorter", 3)):
        with hold(opened, run_id) as epoch:
            example_run.build(Run(opened, run_id, epoch), generations)
    return opened


def asked(store: Any, stage: str, generation: int, run_id: str = "r") -> StageIO:
    """The storage of a step as a worker opens it: nothing of the run is known yet."""
    return StageIO(Run(store, run_id), stage, generation, None, "seed", 2.0)


def state(index: EarlierTasks) -> tuple[Any, ...]:
    return index.keys, index.valid, index.texts, index.programs, index.cells, index.snapshot(99), index.snapshot(2, "t1")


def from_the_tables(run: Run, generation: int) -> EarlierTasks:
    return EarlierTasks(run.read_table(None, "seeds"), [run.read_table(number, "tasks") for number in range(generation)])


def test_requests_of_a_generation_do_not_grow_with_its_number(store: Store) -> None:
    counting: Any = CountingStore(store)
    reader = EarlierReader()
    reads, requests = [], []
    for generation in range(GENERATIONS):
        counting.requests.clear()
        for stage in STAGES:
            reader.tasks(asked(counting, stage, generation))
        reads.append(counting.requests["read"])
        requests.append(counting.requests.total())
    assert len(set(requests[2:])) == 1 and len(set(reads[2:])) == 1, (reads, requests)
    counting.requests.clear()
    for stage in STAGES:
        EarlierReader().tasks(asked(counting, stage, GENERATIONS - 1))
    assert counting.requests["read"] > 2 * reads[-1], "a reader that forgets reads every earlier generation again"


def test_the_index_and_the_inputs_are_those_of_a_process_that_begins_at_any_generation(store: Store) -> None:
    kept = EarlierReader()
    for generation in range(GENERATIONS):
        run = Run(store, "r")
        expected = from_the_tables(run, generation)
        tables = [run.history.find(f"generation={number:04d}/tasks.parquet") for number in range(generation)]
        for reader in (kept, EarlierReader()):
            io = asked(store, "verify", generation)
            assert state(reader.tasks(io)) == state(expected)
            assert io.inputs() == [run.history.find("start/seeds.parquet"), *tables]
            io = asked(store, "update", generation)
            reader.tasks(io, seeds=False)
            assert io.inputs() == tables


def test_another_run_and_an_earlier_generation_are_read_again(store: Store) -> None:
    reader = EarlierReader()
    for run_id, generation in (("r", 5), ("shorter", 2), ("r", 2), ("r", 4)):
        io = asked(store, "verify", generation, run_id)
        assert state(reader.tasks(io)) == state(from_the_tables(io.run, generation))


@pytest.mark.parametrize("adapter_id", ["t0-start", "s0-g0001"])
def test_an_adapter_is_found_without_a_search_through_the_run(store: Store, adapter_id: str) -> None:
    """A frozen member plays with the weights of the start in every generation."""
    uri, requests = f"adapters/{adapter_id}/adapter_model.safetensors", []
    for run_id in ("r", "shorter"):
        counting: Any = CountingStore(store)
        assert Run(counting, run_id).history.find(uri).uri == uri
        requests.append(counting.requests)
    assert requests[0] == requests[1]


def test_replayed_tasks_name_only_the_tables_that_hold_them(store: Store) -> None:
    io = asked(store, "grade", 4)
    wanted = {"seed-deduction", "g0002-m00-p000"}
    rows = EarlierReader().replayed(io, wanted, {None, 2})
    assert [row["task_id"] for row in rows] == ["seed-deduction", "g0002-m00-p000"]
    assert [ref.uri for ref in io.inputs()] == ["start/seeds.parquet", "generation=0002/tasks.parquet"]


def test_a_table_that_cannot_be_read_leaves_no_half_read_index(store: Store, tmp_path: Path) -> None:
    broken = open_store(str(tmp_path))
    with hold(broken, "r") as epoch:
        example_run.build(Run(broken, "r", epoch), 4)
    reader = EarlierReader()
    reader.tasks(asked(broken, "verify", 1))
    file = tmp_path / "r" / "generation=0002" / "tasks.parquet"
    data = file.read_bytes()
    file.chmod(0o600)
    file.unlink()
    with pytest.raises(Exception, match="tasks"):
        reader.tasks(asked(broken, "verify", 4))
    file.write_bytes(data)
    io = asked(broken, "verify", 4)
    assert state(reader.tasks(io)) == state(from_the_tables(io.run, 4))
