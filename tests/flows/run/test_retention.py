"""What a run lets go, how it remembers, and what a fork needs it to keep."""

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flows.audit.fsck import fsck
from flows.config import dump
from flows.execution.recorded import versions
from flows.run.fork import fork
from flows.run.inspection import inspect
from flows.run.lease import hold
from flows.run.resume import first_generation
from flows.run.retention import (
    SCORING_DAYS,
    GenerationAdapters,
    RetentionPolicy,
    check_room,
    expected_bytes,
    forkable,
    pins_of,
    plan,
    retire,
    scoring,
    unnamed,
)
from flows.run.run import Retired, Run
from flows.run.scan import survey_of
from flows.storage import StoreRefused, open_store
from flows.store.file_store import FileStore
from tests.support import example_run
from tests.support.counted import CountingStore

POLICY = RetentionPolicy(newest=1, optimizer_every=4, adapter_every=2)
CLOCK = {"host": "here"}
CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})


def files(run: Run, name: str) -> set[str]:
    found = run.store.list(f"{run.run_id}/adapters/")
    return {uri.split("/")[2] for uri in found if uri.endswith(name)}


def test_the_policy_keeps_what_it_says(run: Run) -> None:
    births = {"t0-start", "t1-start", "s0-start", "s1-start", "s2-start", "s3-start", "s4-start"}
    going = retire(run, POLICY, CLOCK)
    fourth = {"t0-g0003", "t1-g0003", "s0-g0003", "s4-g0003"}  # the newest, and of every 4th
    assert files(run, "optimizer.safetensors") == births | fourth
    second = {"t0-g0001", "t1-g0001", "s0-g0001", "s2-g0001"}  # of every 2nd
    deaths = {"s1-g0000", "s2-g0001", "s3-g0002"}
    assert files(run, "adapter_model.safetensors") == births | fourth | second | deaths
    assert len(files(run, "adapter_config.json")) == 7 + 16
    assert all(one.size > 0 and one.reason for one in going)
    tombstone = json.loads(run.store.read("smoke/gc/0001.json"))
    assert {entry["uri"] for entry in tombstone["retired"]} == {one.ref.uri for one in going}
    assert set(tombstone) == {"schema", "retired", "clock"} and set(tombstone["retired"][0]) == {"uri", "sha256", "reason"}


def test_retired_is_never_missing(run: Run) -> None:
    retire(run, POLICY, CLOCK)
    assert fsck(Run(run.store, "smoke")) == []
    assert first_generation(run) == 3
    assert Run(run.store, "smoke").done("update", 0)
    assert "s0-g0000" in inspect(run, adapter="s3-g0002")
    with pytest.raises(Retired, match="was retired: weights older than 1 generation,"):
        run.read_adapter("t0-g0000")


def test_nothing_is_retired_twice_and_a_dry_run_changes_nothing(run: Run) -> None:
    planned = plan(run, POLICY)
    assert planned and run.store.list("smoke/gc/") == []
    assert retire(run, POLICY, CLOCK) == planned
    assert plan(run, POLICY) == [] and retire(run, POLICY, CLOCK) == []
    assert run.store.list("smoke/gc/") == ["smoke/gc/0001.json"]


def test_a_stray_file_among_the_adapters_ends_nothing_and_stays(run: Run) -> None:
    planned = plan(run, POLICY)
    run.store.create("smoke/adapters/notes.txt", b"mine")
    assert retire(run, POLICY, CLOCK) == planned
    assert run.store.read("smoke/adapters/notes.txt") == b"mine"


def test_an_attempt_killed_after_its_tombstone_is_finished_by_the_next(run: Run) -> None:
    going = plan(run, POLICY)
    entries = [{"uri": one.ref.uri, "sha256": one.ref.sha256, "reason": one.reason} for one in going]
    run.store.create("smoke/gc/0001.json", json.dumps({"schema": 1, "retired": entries, "clock": {}}).encode())
    assert retire(run, POLICY, CLOCK) == []
    assert not any(run.store.exists(f"smoke/{one.ref.uri}") for one in going)


def test_a_member_that_took_no_step_is_kept_as_its_generation_is(tmp_path: Path) -> None:
    """Its weights and states are of an earlier generation, which alone would not be kept."""
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        made = Run(store, "smoke", epoch)
        made.describe(dump(CONFIG), {"base_model": "0" * 64}, example_run.CLOCK)
        population = example_run.start(made)
        for generation in range(6):
            idle = {1: ["t1"], 3: ["t0"]}.get(generation, [])  # generation 1 keeps its weights, generation 3 everything
            population = example_run.one_generation(made, population, generation, last=True, idle=idle)
            retire(made, POLICY, CLOCK, generation)
        assert files(made, "adapter_model.safetensors") >= {"t0-g0001", "t1-g0000", "s0-g0001", "t0-g0002", "t1-g0003"}
        assert {"t0-g0002", "t1-g0003"} <= files(made, "optimizer.safetensors")
        assert not {"t1-g0000", "t0-g0001", "s0-g0002"} & files(made, "optimizer.safetensors")
        assert not {"t0-g0000", "s0-g0002"} & files(made, "adapter_model.safetensors")
        assert 3 in forkable(POLICY, 6)
        fork(made, "from4", 3, [], versions, CLOCK)


def test_generation_by_generation_is_the_same_as_at_once(tmp_path: Path) -> None:
    """So that a run killed between a commit and its retention ends with the same files."""
    kept = []
    for name, steps in (("a", (0, 1, 2, 3)), ("b", (3,))):
        store = open_store(str(tmp_path / name))
        with hold(store, "smoke") as epoch:
            made = example_run.build(Run(store, "smoke", epoch), 4, CONFIG)
            for step in steps:
                retire(made, POLICY, CLOCK, step)
        kept.append(store.list("smoke/adapters/"))
    assert kept[0] == kept[1]


def test_retention_costs_the_same_in_every_generation(tmp_path: Path) -> None:
    """In a session that remembers generations, and in a process that knows nothing: neither asks for every tombstone."""
    totals, colds, known = [], [], dict[int, GenerationAdapters]()
    policy = RetentionPolicy(newest=1, optimizer_every=99, adapter_every=99)
    store: Any = CountingStore(open_store(str(tmp_path)))
    with hold(store, "smoke") as epoch:
        made = Run(store, "smoke", epoch)
        made.describe(dump(CONFIG), {"base_model": "0" * 64}, example_run.CLOCK)
        population = example_run.start(made)
        for generation in range(6):
            population = example_run.one_generation(made, population, generation, last=True)
            store.requests.clear()
            retire(made, policy, CLOCK, generation, known)
            totals.append((store.requests["read"], store.requests["list"]))
            store.requests.clear()
            retire(Run(store, "smoke", epoch), policy, CLOCK, generation)
            colds.append((store.requests["read"], store.requests["list"]))
        assert len(set(totals[2:])) == 1 and len(set(colds[2:])) == 1, (totals, colds)


def test_retention_needs_the_lease(run: Run) -> None:
    with pytest.raises(StoreRefused, match="requires the run's lease"):
        retire(Run(run.store, "smoke"), POLICY, CLOCK)


def test_bytes_at_the_end_of_a_run() -> None:
    weights, optimizer, tables = 323, 646, 100
    everything = expected_bytes(None, 200, 8, weights, optimizer, tables, 0, 0)
    assert everything == 8 * 323 + 200 * 100 + 200 * 8 * (323 + 646)
    assert expected_bytes(RetentionPolicy(), 200, 8, weights, optimizer, tables, births=40, benchmarks=20) == (
        8 * 323 + 200 * 100 + 8 * 12 * 646 + (8 * 62 + 80) * 323
    )


def test_a_store_that_is_too_small_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "not" / "yet"))
    check_room(store, {"r": 1000})
    with pytest.raises(StoreRefused, match=r"GB are free, but the run will need about 1000000\.0 GB"):
        check_room(store, {"r": 10**15})


class Disk(FileStore):
    """A folder on a disk of so many bytes."""

    size = 0

    def free(self) -> int:
        return self.size - sum(self.sizes("").values())


def test_what_a_run_has_stored_is_not_asked_for_again(tmp_path: Path) -> None:
    """A run of 6,000 bytes that fits into its disk at the start fits at each later one, too."""
    store = Disk(tmp_path)
    store.size = 10_000
    for number in range(8):  # the last ones are more than expected
        check_room(store, {"r": 6000, "other": 2000})
        store.create(f"r/adapters/{number}", b"?" * 1000)
    with pytest.raises(StoreRefused, match="choose another --store"):
        check_room(store, {"r": 6000, "other": 2001})


def test_what_no_manifest_names_is_listed(run: Run) -> None:
    assert unnamed(survey_of(run)) == []
    run.store.create("smoke/generation=0003/strange.parquet", b"?")
    run.store.create("smoke/adapters/t9-g0009/adapter_model.safetensors", b"?")
    assert unnamed(survey_of(run)) == ["adapters/t9-g0009/adapter_model.safetensors", "generation=0003/strange.parquet"]


def test_what_a_fork_stands_on_is_not_retired(run: Run) -> None:
    fork(run, "other", 0, [], versions, CLOCK)
    retire(run, POLICY, CLOCK)
    assert {"t0-g0000", "t1-g0000", "s0-g0000"} <= files(run, "optimizer.safetensors")
    assert fsck(Run(run.store, "other")) == []


def test_a_fork_that_is_made_again_pins_what_it_stood_on_before_too(run: Run) -> None:
    fork(run, "other", 0, [], versions, CLOCK)
    shutil.rmtree(Path(run.store.url.removeprefix("file://")) / "other")
    fork(run, "other", 2, [], versions, CLOCK)
    assert {f"{member}-g{number:04d}" for member in ("t0", "t1", "s0") for number in (0, 2)} <= pins_of(run).forked
    retire(run, POLICY, CLOCK)
    assert {"t0-g0000", "t0-g0002"} <= files(run, "optimizer.safetensors") and fsck(Run(run.store, "other")) == []


def test_a_file_that_was_pinned_after_its_tombstone_stays(run: Run) -> None:
    """The rest of a killed attempt: its tombstone is taken back, and the file can be forked from again."""
    entries = [{"uri": one.ref.uri, "sha256": one.ref.sha256, "reason": one.reason} for one in plan(run, POLICY)]
    run.store.create("smoke/.fork-other", b"t0-g0002")
    run.store.create("smoke/gc/0001.json", json.dumps({"schema": 1, "retired": entries, "clock": {}}).encode())
    retire(run, POLICY, CLOCK)
    kept = [f"adapters/t0-g0002/{name}.safetensors" for name in ("adapter_model", "optimizer")]
    assert json.loads(run.store.read("smoke/gc/0002.json")) == {"schema": 1, "retired": [], "kept": kept, "clock": CLOCK}
    assert not run.history.retired().keys() & set(kept) and "t0-g0002" in files(run, "optimizer.safetensors")
    assert fsck(run) == []


WEIGHTS = "adapter_model.safetensors"


def score(run: Run, adapter_id: str) -> None:
    """Commit a benchmark of one adapter."""
    run.commit_benchmark(
        f"probe-dev/asked/{adapter_id}-n0-k0", [run.history.find(f"adapters/{adapter_id}/{WEIGHTS}")], [], {}, {}, {}
    )


def test_weights_that_a_benchmark_reads_stay_until_it_has_committed_and_then_for_good(run: Run) -> None:
    with scoring(run, "probe-dev t0-g0000", ["t0-g0000"]):
        retire(run, POLICY, CLOCK)
        assert "t0-g0000" in files(run, WEIGHTS) and "t0-g0000" not in files(run, "optimizer.safetensors")
        assert "t0-g0002" not in files(run, WEIGHTS), "nobody scores those"
        score(run, "t0-g0000")
    assert not [uri for uri in run.store.list("smoke/.", hidden=True) if ".scoring-" in uri]
    retire(run, POLICY, CLOCK)
    assert "t0-g0000" in files(run, WEIGHTS) and fsck(run) == []


def test_weights_of_a_benchmark_that_failed_go(run: Run) -> None:
    with suppress(KeyboardInterrupt), scoring(run, "probe-dev t0-g0000", ["t0-g0000"]):
        raise KeyboardInterrupt
    retire(run, POLICY, CLOCK)
    assert "t0-g0000" not in files(run, WEIGHTS)


def test_the_note_of_a_killed_benchmark_ends_with_another_attempt_or_after_a_week(run: Run) -> None:
    began = time.time() - (SCORING_DAYS - 1) * 86400
    killed = scoring(run, "probe-dev t0-g0000", ["t0-g0000"], lambda: began)
    killed.__enter__()
    assert pins_of(run).scored == {"t0-g0000"} and pins_of(run, lambda: began + SCORING_DAYS * 86400).scored == frozenset()
    with scoring(run, "probe-dev t0-g0000", ["t0-g0000"]):
        pass
    assert pins_of(run).scored == frozenset()
    killed.__exit__(None, None, None)


def test_a_fork_s_benchmark_keeps_the_weights_where_they_are(run: Run) -> None:
    made = fork(run, "other", 1, [], versions, CLOCK)
    with scoring(made, "probe-dev", ["t0-g0000"]):
        assert pins_of(run).scored == {"t0-g0000"} and pins_of(made).scored == frozenset()
        retire(run, POLICY, CLOCK)
    assert "t0-g0000" in files(run, WEIGHTS)


@pytest.mark.parametrize("ended", [False, True])
def test_weights_that_a_benchmark_read_after_their_tombstone_stay(run: Run, ended: bool) -> None:
    """The rest of a killed attempt; whether the benchmark is still at work or has committed."""
    entries = [{"uri": one.ref.uri, "sha256": one.ref.sha256, "reason": one.reason} for one in plan(run, POLICY)]
    run.store.create("smoke/gc/0001.json", json.dumps({"schema": 1, "retired": entries, "clock": {}}).encode())
    with scoring(run, "probe-dev", ["t0-g0002"]):
        if ended:
            score(run, "t0-g0002")
        else:
            retire(run, POLICY, CLOCK)
    retire(run, POLICY, CLOCK)
    assert ("t0-g0002" in files(run, WEIGHTS)) is ended
    kept = json.loads(run.store.read("smoke/gc/0002.json"))["kept"]
    assert kept == [f"adapters/t0-g0002/{WEIGHTS}"]
