"""Manifests: their form, their chain, verified reads, debris, and copies of one task that race."""

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flows.run.lease import hold
from flows.run.run import Manifest, Overtaken, Ref, Retired, Run, canonical_json, digest, sha256_hex
from flows.storage import Damaged, NotStored, Store, StoreRefused, open_store
from stages.core import tables
from tests.support import example_run

ROOT = Path(__file__).parents[3]
METRIC = dict.fromkeys(tables.METRICS.names) | {"name": "x", "value": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        yield Run(store, "smoke", epoch)


def metrics(value: float) -> Any:
    return tables.table([METRIC | {"value": value}], tables.METRICS)


def tree(store: Store, run_id: str = "smoke") -> dict[str, bytes]:
    """Every artifact of a run by name, clocks taken out."""
    found = {}
    for uri in store.list(f"{run_id}/"):
        data = store.read(uri)
        if uri.endswith(".json") and "/adapters/" not in uri:
            values = json.loads(data)
            values.pop("clock")
            data = canonical_json(values)
        found[uri] = data
    return found


def test_canonical_json_is_sorted_tight_and_refuses_nan() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == b'{"a":"\\u00e9","b":[1,2.5,null]}'
    with pytest.raises(ValueError):
        canonical_json({"a": float("nan")})


def test_a_manifest_has_exactly_the_documented_form(run: Run) -> None:
    run.describe({"seed": 1}, {}, {"host": "a"})
    ref = run.write_table(None, "metrics", metrics(1.0))
    run.commit("start", None, [], [ref], {"seeds": 1}, {"base_model": "ab"}, {"host": "a"})
    table = run.write_table(0, "matches", tables.MATCHES.empty_table())
    run.commit("match", 0, [ref], [table], {"matches": 0}, {"base_model": "ab"}, {"host": "a"})
    stored = json.loads(run.store.read("smoke/generation=0000/match.json"))
    start = json.loads(run.store.read("smoke/start/start.json"))
    start.pop("clock")
    assert stored == {
        "schema": 1,
        "run": "smoke",
        "generation": 0,
        "stage": "match",
        "previous": hashlib.sha256(json.dumps(start, sort_keys=True, separators=(",", ":")).encode()).hexdigest(),
        "inputs": [{"uri": "start/metrics.parquet", "sha256": ref.sha256}],
        "outputs": [{"uri": "generation=0000/matches.parquet", "sha256": table.sha256, "rows": 0}],
        "counts": {"matches": 0},
        "versions": {"base_model": "ab"},
        "clock": {"host": "a", "epoch": run.epoch},
    }
    assert start["previous"] == digest(json.loads(run.store.read("smoke/run.json")))


def test_the_digest_leaves_the_clock_out() -> None:
    manifest = Manifest("r", 0, "match", "", (), (), clock={"host": "a"})
    other = Manifest("r", 0, "match", "", (), (), clock={"host": "b"})
    assert digest(manifest) == digest(other) == digest(manifest.to_json())


def test_the_chain_runs_through_every_manifest_in_order(run: Run) -> None:
    example_run.build(run, 2)
    description = run.history.description()
    assert description is not None
    before = digest(description)
    stages = []
    for manifest in Run(run.store, "smoke").history.walk():
        assert manifest.previous == before, manifest.stage
        before = digest(manifest)
        stages.append((manifest.generation, manifest.stage))
    assert run.history.head() == before
    whole = ["match", "propose", "verify", "solve", "grade", "reward", "update", "rate", "evolve"]
    assert stages == [(None, "start")] + [(number, stage) for number in (0, 1) for stage in whole]


def test_equal_runs_in_two_folders_are_equal_byte_for_byte(tmp_path: Path) -> None:
    trees = []
    for name in "ab":
        store = open_store(str(tmp_path / name))
        with hold(store, "smoke") as epoch:
            example_run.build(Run(store, "smoke", epoch), 2)
        trees.append(tree(store))
    assert trees[0] == trees[1]


def test_writing_a_run_again_changes_nothing(run: Run) -> None:
    example_run.build(run, 2)
    before = {uri: run.store.stamp(uri) for uri in run.store.list("smoke/")}
    example_run.build(Run(run.store, "smoke", run.epoch), 2)
    assert {uri: run.store.stamp(uri) for uri in run.store.list("smoke/")} == before


def test_every_artifact_with_one_flipped_bit_is_noticed_by_its_reader(run: Run, tmp_path: Path) -> None:
    example_run.build(run, 2)
    rng = random.Random(0)
    reads: dict[str, Callable[[Run], object]] = {
        f"generation=0001/{name}.parquet": lambda fresh, name=name: fresh.read_table(1, name) for name in tables.GENERATION_TABLES
    }
    reads |= {f"start/{name}.parquet": lambda fresh, name=name: fresh.read_table(None, name) for name in ("seeds", "population")}
    for name in ("adapter_model.safetensors", "optimizer.safetensors", "adapter_config.json"):
        reads[f"adapters/s0-g0001/{name}"] = lambda fresh: fresh.read_adapter("s0-g0001")
    for uri, read in reads.items():
        path = tmp_path / "smoke" / uri
        whole = path.read_bytes()
        for _ in range(5):
            data = bytearray(whole)
            bit = rng.randrange(len(data) * 8)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(Damaged, match=f"smoke/{uri}: its digest is not"):
                read(Run(run.store, "smoke"))
        path.write_bytes(whole)
        read(Run(run.store, "smoke"))


def test_only_what_a_manifest_names_can_be_read(run: Run) -> None:
    ref = run.write_table(0, "metrics", metrics(1.0))
    with pytest.raises(NotStored, match="no manifest names it"):
        run.read_table(0, "metrics")
    assert run.read_table(ref, "metrics").to_pylist() == [METRIC | {"value": 1.0}]


def test_equal_debris_is_adopted_and_other_debris_removed(run: Run) -> None:
    killed = run.write_table(0, "metrics", metrics(1.0))
    stamp = run.store.stamp("smoke/generation=0000/metrics.parquet")
    assert run.write_table(0, "metrics", metrics(1.0)) == killed
    assert run.store.stamp("smoke/generation=0000/metrics.parquet") == stamp
    ref = run.write_table(0, "metrics", metrics(2.0))
    assert ref.sha256 != killed.sha256
    run.commit("update", 0, [], [ref])
    assert run.read_table(0, "metrics")["value"].to_pylist() == [2.0]


def test_debris_of_a_killed_adapter_is_removed_too(run: Run) -> None:
    run.write_adapter("t0-g0000", {"adapter_model.safetensors": b"killed", "optimizer.safetensors": b"same"})
    refs = run.write_adapter("t0-g0000", {"adapter_model.safetensors": b"whole", "optimizer.safetensors": b"same"})
    run.commit("update", 0, [], refs)
    names = ("adapter_model.safetensors", "optimizer.safetensors")
    assert run.read_adapter("t0-g0000", names) == {names[0]: b"whole", names[1]: b"same"}


def test_without_the_lease_nothing_is_removed_or_committed(run: Run) -> None:
    run.write_blob("generation=0000/matches.parquet", b"debris")
    reader = Run(run.store, "smoke")
    with pytest.raises(StoreRefused, match="requires the run's lease"):
        reader.write_blob("generation=0000/matches.parquet", b"other")
    with pytest.raises(StoreRefused, match="requires the run's lease"):
        reader.commit("match", 0, [], [])


def test_committed_data_are_never_replaced_by_a_late_copy(run: Run) -> None:
    ref = run.write_blob("generation=0000/matches.parquet", b"first")
    run.commit("match", 0, [], [ref])
    late = Run(run.store, "smoke", run.epoch)
    assert late.write_blob("generation=0000/matches.parquet", b"second") == ref
    theirs = late.commit("match", 0, [], [Ref("generation=0000/matches.parquet", sha256_hex(b"second"))])
    assert theirs.outputs == (ref,)
    assert late.read_blob("generation=0000/matches.parquet") == b"first"


def test_a_copy_whose_data_were_replaced_before_its_commit_tries_again(run: Run) -> None:
    one, two = Run(run.store, "smoke", run.epoch), Run(run.store, "smoke", run.epoch)
    mine = one.write_blob("generation=0000/matches.parquet", b"one")
    other = two.write_blob("generation=0000/matches.parquet", b"two")
    with pytest.raises(Overtaken, match=r"matches\.parquet"):
        one.commit("match", 0, [], [mine])
    two.commit("match", 0, [], [other])
    assert one.commit("match", 0, [], [mine]).outputs == (other,)
    assert one.done("match", 0)


def test_bytes_that_were_missing_while_they_were_compared_are_written_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the reference would have no stamp, and its copy would commit bytes that another copy has replaced."""
    mine, other = Run(run.store, "smoke", run.epoch), Run(run.store, "smoke", run.epoch)
    place = "smoke/generation=0000/matches.parquet"
    run.store.create(place, b"mine")
    stamp = run.store.stamp

    def stamped_while_missing(uri: str) -> str:
        monkeypatch.undo()
        run.store.delete(uri)
        found = stamp(uri)
        run.store.create(uri, b"mine")
        return found

    monkeypatch.setattr(run.store, "stamp", stamped_while_missing)
    ref = mine.write_blob("generation=0000/matches.parquet", b"mine")
    other.write_blob("generation=0000/matches.parquet", b"other")
    with pytest.raises(Overtaken, match=r"matches\.parquet"):
        mine.commit("match", 0, [], [ref])


def test_a_copy_notices_that_a_withdrawn_result_was_replaced(run: Run) -> None:
    first, second = Run(run.store, "smoke", run.epoch), Run(run.store, "smoke", run.epoch)
    theirs = first.write_blob("generation=0000/matches.parquet", b"theirs")
    first.commit("match", 0, [], [theirs])
    ref = second.write_blob("generation=0000/matches.parquet", b"mine")
    assert ref == theirs and ref.stamp == theirs.stamp
    run.store.delete("smoke/generation=0000/match.json")
    run.store.delete("smoke/generation=0000/matches.parquet")
    run.store.create("smoke/generation=0000/matches.parquet", b"another copy's")
    with pytest.raises(Overtaken, match=r"matches\.parquet"):
        Run(run.store, "smoke", run.epoch).commit("match", 0, [], [ref])


def test_of_many_copies_of_one_task_one_wins_and_all_go_on(run: Run) -> None:
    def attempt(number: int) -> Manifest:
        copy = Run(run.store, "smoke", run.epoch)
        while True:
            try:
                refs = [copy.write_blob(f"generation=0000/{name}", f"{name} {number % 4}".encode()) for name in ("a", "b", "c")]
                return copy.commit("solve", 0, [], refs, clock={"copy": number})
            except Overtaken:
                time.sleep(random.random() / 50)

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            manifests = list(pool.map(attempt, range(8)))
        assert len({canonical_json(one.to_json()) for one in manifests}) == 1
        assert Run(run.store, "smoke").done("solve", 0)
        for uri in run.store.list("smoke/generation=0000/"):
            run.store.delete(uri)


def test_a_manifest_that_never_held_is_replaced_while_nothing_builds_on_it(run: Run) -> None:
    """On a store without locks, a writer frozen before its last request may commit after it was overtaken."""
    mine = run.write_blob("generation=0000/matches.parquet", b"mine")
    zombie = Manifest("smoke", 0, "match", "", (), (Ref(mine.uri, sha256_hex(b"theirs")),))
    run.store.create("smoke/generation=0000/match.json", json.dumps(zombie.to_json()).encode())
    assert not run.done("match", 0)
    assert run.commit("match", 0, [], [mine]).outputs == (mine,)
    assert Run(run.store, "smoke").done("match", 0)


def test_a_damaged_artifact_is_rebuilt_by_equal_bytes_only_once_others_build_on_it(run: Run, tmp_path: Path) -> None:
    example_run.build(run, 2)
    path = tmp_path / "smoke/generation=0000/grades.parquet"
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    fresh = Run(run.store, "smoke", run.epoch)
    assert not fresh.done("grade", 0) and fresh.done("grade", 0, rehash=False)
    with pytest.raises(Damaged, match="while later stages depend on it"):
        fresh.write_blob("generation=0000/grades.parquet", b"something else")
    manifest = fresh.manifest("grade", 0)
    fresh.write_blob("generation=0000/grades.parquet", whole)
    assert fresh.commit("grade", 0, [], [Ref("generation=0000/grades.parquet", sha256_hex(whole))]) == manifest
    assert fresh.done("grade", 0)


def test_a_lost_artifact_makes_its_stage_undone(run: Run) -> None:
    example_run.build(run, 1)
    assert run.done("grade", 0) and run.done("grade", 0, rehash=False)
    run.store.delete("smoke/generation=0000/grades.parquet")
    assert not run.done("grade", 0) and not run.done("grade", 0, rehash=False)
    assert not run.done("solve", 7)


def test_retired_artifacts_count_as_present_and_say_why_they_are_gone(run: Run) -> None:
    example_run.build(run, 1)
    uri = "adapters/t0-g0000/optimizer.safetensors"
    run.store.create("smoke/gc/0001.json", json.dumps({"schema": 1, "retired": [{"uri": uri, "reason": "old"}]}).encode())
    run.store.delete(f"smoke/{uri}")
    assert run.done("update", 0) and run.done("update", 0, rehash=False)
    with pytest.raises(Retired, match="was retired: old"):
        run.read_blob(uri)


def test_parts_have_manifests_of_their_own(run: Run) -> None:
    for part in ("00", "01"):
        assert not run.done("update", 0, part)
        ref = run.write_table(0, "metrics", metrics(float(part)), stage="update", part=part)
        manifest = run.commit("update", 0, [], [ref], part=part)
        assert manifest.stage == f"update.parts/{part}" and run.done("update", 0, part)
    assert run.store.list("smoke/generation=0000/") == [
        f"smoke/generation=0000/update.parts/{part}.{kind}" for part in ("00", "01") for kind in ("json", "parquet")
    ]
    assert run.read_table("generation=0000/update.parts/01.parquet", "metrics")["value"].to_pylist() == [1.0]
    whole = run.commit("update", 0, [], [run.write_table(0, "metrics", metrics(3.0))])
    assert whole.previous == run.manifest("update", 0, "00").previous  # type: ignore[union-attr]


def test_a_part_without_its_gradients_is_finished_only_if_its_stage_is(run: Run) -> None:
    gradient = run.write_blob("gradients/g0000/00of01/t0-start.safetensors", b"gradient")
    run.commit("update", 0, [], [gradient], part="00of01")
    table = run.write_blob("generation=0000/metrics.parquet", b"metrics")
    run.commit("update", 0, [gradient], [table])
    tombstone = {"schema": 1, "retired": [gradient.to_json() | {"reason": "gradients of a complete update"}], "clock": {}}
    run.store.create("smoke/gc/0001.json", json.dumps(tombstone).encode())
    run.remove(gradient.uri)
    assert run.finished("update", 0) is not None and run.finished("update", 0, "00of01") is not None
    run.store.delete("smoke/generation=0000/metrics.parquet")
    assert run.finished("update", 0) is None and run.finished("update", 0, "00of01") is None
    run.write_blob(gradient.uri, b"gradient")
    assert run.finished("update", 0, "00of01") is not None


def test_benchmarks_commit_without_the_lease(run: Run) -> None:
    nightly = Run(run.store, "smoke")
    ref = nightly.write_table_at("benchmarks/probe/g0001/scores.parquet", tables.SCORES.empty_table(), tables.SCORES)
    manifest = nightly.commit_benchmark("probe/g0001", [], [ref], {"problems": 1}, {}, {"host": "a"})
    assert Run(run.store, "smoke").commit_benchmark("probe/g0001", [], [ref], {"problems": 1}, {}, {"host": "b"}) == manifest
    assert nightly.read_table("benchmarks/probe/g0001/scores.parquet", "scores").num_rows == 0
    assert run.history.benchmarks() == [manifest]


def test_what_a_newer_version_wrote_is_a_clear_error(run: Run) -> None:
    run.store.create("smoke/run.json", b'{"schema": 2}')
    run.store.create("smoke/generation=0000/match.json", b'{"schema": 2}')
    run.store.create("smoke/generation=0000/solve.json", b'{"schema": 1}')
    run.store.create("smoke/generation=0000/grade.json", b"[1")
    with pytest.raises(StoreRefused, match="schema 2 is newer"):
        run.history.description()
    with pytest.raises(StoreRefused, match=r"generation=0000/match\.json: schema 2 is newer"):
        run.manifest("match", 0)
    with pytest.raises(Damaged, match="missing or invalid field: 'run'"):
        run.manifest("solve", 0)
    with pytest.raises(Damaged, match="not a JSON object"):
        run.manifest("grade", 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("clock", []), ("counts", "x"), ("versions", None), ("clock", {"started": "x"}), ("clock", {"seconds": 1e99})],
)
def test_a_manifest_of_another_shape_is_damaged(run: Run, field: str, value: object) -> None:
    whole = Manifest("smoke", 0, "match", "", (), (), {}, {}, {}).to_json()
    run.store.create("smoke/generation=0000/match.json", json.dumps(whole | {field: value}).encode())
    with pytest.raises(Damaged, match=f"missing or invalid field: {field}"):
        run.manifest("match", 0)


def test_json_that_is_nested_too_deeply_is_damaged(run: Run) -> None:
    run.store.create("smoke/run.json", b'{"schema": 1, "config": ' + b"[" * 200_000)
    with pytest.raises(Damaged, match="not a JSON object"):
        run.history.description()
