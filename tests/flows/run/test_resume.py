"""Where a run resumes when something of it is lost: what can be made again is, and nothing is removed for what cannot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.audit.fsck import fsck
from flows.execution.recorded import versions
from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.resume import first_generation, intact
from flows.run.retention import RetentionPolicy, retire
from flows.run.run import Run
from flows.storage import Damaged, StoreRefused, open_store
from stages.core import tables
from tests.support import example_run

POLICY = RetentionPolicy(newest=1, optimizer_every=4, adapter_every=2)
CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})
CLOCK = {"host": "here"}
KEPT = "adapters/s0-g0001/adapter_model.safetensors"
"""Of every 2nd generation: no later stage reads it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four generations after retention: the weights before all but the start and the last one are gone."""
    folder = tmp_path_factory.mktemp("whole")
    store = open_store(str(folder))
    with hold(store, "smoke") as epoch:
        retire(example_run.build(Run(store, "smoke", epoch), 4, CONFIG), POLICY, CLOCK)
    return folder


def fresh(run: Run, run_id: str = "smoke") -> Run:
    return Run(run.store, run_id, run.epoch)


def flip(run: Run, uri: str) -> None:
    """Change the last bit of an artifact."""
    data = run.store.read(f"smoke/{uri}")
    run.store.delete(f"smoke/{uri}")
    run.store.create(f"smoke/{uri}", data[:-1] + bytes([data[-1] ^ 1]))


def lose(run: Run, uri: str) -> None:
    run.store.delete(f"smoke/{uri}")


@pytest.mark.parametrize(
    ("harm", "uri", "reader", "forked"),
    [
        (flip, KEPT, "update of generation 1", 3),
        (lose, KEPT, "update of generation 1", 3),
        (lose, "generation=0001/rollouts.parquet", "solve of generation 1", 3),
        (flip, "generation=0001/solve.json", "solve of generation 1", -1),
    ],
)
def test_nothing_is_removed_for_what_cannot_be_made_again(
    run: Run, harm: Callable[[Run, str], None], uri: str, reader: str, forked: int
) -> None:
    harm(run, uri)
    if harm is flip:
        (finding,) = fsck(fresh(run))
        assert finding.command == (f"populora fork smoke --generation {forked} --run-id smoke-fixed --store {run.store.url}")
    before = run.store.list("smoke/")
    said = rf"run smoke cannot resume: {reader} would run again, and reads adapters/\S+, which was retired; nothing was removed; "
    for _ in range(2):
        with pytest.raises(StoreRefused, match=rf"{said}.*populora fork smoke --generation {forked} --run-id smoke-fixed "):
            first_generation(fresh(run))
    assert run.store.list("smoke/") == before
    fork(fresh(run), "smoke-fixed", forked, [], versions, CLOCK)
    with hold(run.store, "smoke-fixed") as epoch:
        assert first_generation(Run(run.store, "smoke-fixed", epoch)) == forked + 1


@pytest.mark.parametrize("harm", [flip, lose])
def test_what_only_the_join_of_a_complete_stage_read_is_not_missed(run: Run, harm: Callable[[Run, str], None]) -> None:
    """Its part could not run again: retention has removed what that reads."""
    part = run.write_table(1, "metrics", tables.METRICS.empty_table(), stage="update", part="00")
    run.commit("update", 1, [run.history.find("adapters/t0-g0000/optimizer.safetensors")], [part], part="00")
    harm(run, part.uri)
    (finding,) = fsck(fresh(run))
    assert (finding.uri, finding.command) == (part.uri, "")
    assert first_generation(fresh(run)) == 3 and intact(fresh(run))
    assert fresh(run).finished("update", 1, "00") is not None
    lose(run, "generation=0001/metrics.parquet")
    assert fresh(run).finished("update", 1, "00") is None, "the join would read it"
    with pytest.raises(StoreRefused, match="would run again, and reads adapters/"):
        first_generation(fresh(run))


def test_what_reads_only_tables_or_adapters_that_are_there_runs_again(run: Run) -> None:
    assert first_generation(fresh(run)) == 3
    lose(run, "generation=0002/grades.parquet")
    assert first_generation(fresh(run)) == 2
    lose(run, "generation=0002/solve.json")
    assert first_generation(fresh(run)) == 2, "the students' weights of generation 1 are kept"
    lose(run, "generation=0000/rollouts.parquet")
    assert first_generation(fresh(run)) == 0, "what a run starts with is never retired"


class Changing:
    """A store in which the reads of an artifact are garbled, as often as given, or something happens at each read."""

    def __init__(self, store: Any, uri: str = "", garbled: int = 0, at_read: Callable[[str], None] = lambda uri: None) -> None:
        self._store, self._uri, self._garbled, self._at_read = store, uri, garbled, at_read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, uri: str) -> bytes:
        self._at_read(uri)
        data: bytes = self._store.read(uri)
        if uri.endswith(self._uri) and self._garbled:
            self._garbled -= 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data


@pytest.mark.parametrize(
    ("uri", "garbled"), [("adapters/s0-g0003/adapter_model.safetensors", 2), ("generation=0002/solve.json", 1)]
)
def test_what_is_whole_by_the_time_it_is_marked_is_not_marked(run: Run, uri: str, garbled: int) -> None:
    assert [finding.uri for finding in fsck(Run(Changing(run.store, uri, garbled), "smoke"))] == [uri]  # type: ignore[arg-type]
    assert first_generation(fresh(run)) == 3 and run.store.exists(f"smoke/{uri}")


def test_fsck_of_a_run_that_retires_meanwhile(run: Run) -> None:
    """It meets something retired early, and later what a generation that ended in between has let go."""
    late = "adapters/s0-g0003/optimizer.safetensors"

    def retiring(uri: str) -> None:
        if uri == f"smoke/{late}" and run.store.exists(uri):
            ref = fresh(run).history.find(late)
            tombstone = {"schema": 1, "retired": [ref.to_json() | {"reason": "old"}], "clock": {}}
            run.store.create("smoke/gc/0002.json", json.dumps(tombstone).encode())
            run.store.delete(uri)

    assert fsck(Run(Changing(run.store, at_read=retiring), "smoke")) == []  # type: ignore[arg-type]
    assert not run.store.exists(f"smoke/{late}")


def test_a_broken_file_of_tombstones_is_named_and_stops_no_resume_that_needs_none_of_it(run: Run) -> None:
    whole = run.store.read("smoke/gc/0001.json")
    run.store.delete("smoke/gc/0001.json")
    run.store.create("smoke/gc/0001.json", whole[:-3])
    (finding,) = fsck(fresh(run))
    assert (finding.uri, finding.command) == ("gc/0001.json", "")
    assert finding.problem.startswith("not a JSON object with a schema version; what it names may be retired or lost")
    assert first_generation(fresh(run)) == 3
    with pytest.raises(Damaged, match=r"smoke/gc/0001\.json: .* whether adapters/s0-g0000/\S+ was retired or is lost"):
        fresh(run).read_adapter("s0-g0000")
    run.store.delete("smoke/gc/0001.json")
    run.store.create("smoke/gc/0001.json", whole)
    assert first_generation(fresh(run)) == 3 and fsck(fresh(run)) == [], "nothing was marked for want of its tombstone"


def test_folders_that_are_no_generations_are_left_alone(run: Run) -> None:
    for name in ("generation=0003.bak", "generation=old", "generation=3"):
        run.store.create(f"smoke/{name}/solve.json", b"{}")
    assert fresh(run).history.generations() == [0, 1, 2, 3]
    assert fsck(fresh(run)) == [] and first_generation(fresh(run)) == 3


def test_tombstones_are_read_by_number(run: Run) -> None:
    """The ten-thousandth file revokes what the one before it named."""
    uri = "adapters/s0-g0003/optimizer.safetensors"
    retired = {"schema": 1, "retired": [{"uri": uri, "sha256": "0" * 64, "reason": "old"}], "clock": {}}
    run.store.create("smoke/gc/9999.json", json.dumps(retired).encode())
    assert fresh(run).history.tombstone(uri) is not None and uri in fresh(run).history.retired()
    run.store.create("smoke/gc/10000.json", json.dumps({"schema": 1, "retired": [], "kept": [uri], "clock": {}}).encode())
    assert fresh(run).history.tombstone(uri) is None and uri not in fresh(run).history.retired()


def solve_again(run: Run, change: bytes = b"") -> Any:
    """Stores the rollouts of generation 2 and their manifest anew, with other bytes if a change is given."""
    uri = "generation=0002/rollouts.parquet"
    found = Run(run.store, "smoke").manifest("solve", 2)
    assert found is not None
    data = run.store.read(f"smoke/{uri}")
    lose(run, "generation=0002/solve.json")
    again = fresh(run)
    return lambda: again.commit(
        "solve",
        2,
        found.inputs,
        [again.write_blob(uri, data + change, found.outputs[0].rows)],
        found.counts,
        found.versions,
        CLOCK,
    )


@pytest.mark.parametrize("data_lost", [False, True])
def test_a_lost_manifest_is_not_made_anew_with_other_bytes_than_later_stages_read(run: Run, data_lost: bool) -> None:
    uri = "generation=0002/rollouts.parquet"
    before = run.store.read(f"smoke/{uri}")
    commit = solve_again(run, b" ")
    if data_lost:
        lose(run, uri)
    with pytest.raises(Damaged, match="its manifest is lost, and the recomputed bytes differ from those that later stages read"):
        commit()
    assert fresh(run).manifest("solve", 2) is None
    if not data_lost:
        assert run.store.read(f"smoke/{uri}") == before


def test_a_lost_manifest_is_made_anew_with_the_same_bytes(run: Run) -> None:
    assert solve_again(run)().generation == 2
    assert fsck(fresh(run)) == [] and first_generation(fresh(run)) == 3


@pytest.mark.parametrize("lost", ["generation=0001/grade.json", "generation=0003/match.json"])
def test_a_fork_never_computes_what_it_borrows(run: Run, lost: str) -> None:
    made = fork(fresh(run), "other", 3, ["rating.draw_margin=0.1"], versions, CLOCK, "rate")
    made.store.delete(f"other/{lost}")
    with hold(run.store, "other") as epoch, pytest.raises(StoreRefused, match="run other is an unfinished fork; run the same"):
        first_generation(Run(run.store, "other", epoch))
    fork(fresh(run), "other", 3, ["rating.draw_margin=0.1"], versions, CLOCK, "rate")
    with hold(run.store, "other") as epoch:
        assert first_generation(Run(run.store, "other", epoch)) == 3
