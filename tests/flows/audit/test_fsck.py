"""fsck finds every flipped bit and every break of the chain, and names what mends it; the tables: test_invariants."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import cli
from flows.audit.fsck import SPENT, audit, fsck
from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.resume import first_generation
from flows.run.run import Run
from flows.run.scan import survey_of
from flows.storage import Damaged, NotStored, open_store
from stages.core import tables
from tests.support import example_run

LAST = 2
NIGHTLY = "probe-dev/asked/generation=0002-n6-k0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of three generations, a part of an update, and a nightly benchmark; tests work on copies."""
    folder = tmp_path_factory.mktemp("whole")
    store = open_store(str(folder))
    with hold(store, "smoke") as epoch:
        made = example_run.build(Run(store, "smoke", epoch), LAST + 1)
        part = made.write_table(LAST, "metrics", tables.METRICS.empty_table(), stage="update", part="00")
        made.commit("update", LAST, [], [part], part="00")
        scores = made.write_table_at(f"benchmarks/{NIGHTLY}/scores.parquet", tables.SCORES.empty_table(), tables.SCORES)
        made.commit_benchmark(NIGHTLY, [], [scores], {}, {}, {})
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Iterator[Run]:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        yield Run(store, "smoke", epoch)


def fresh(run: Run) -> Run:
    return Run(run.store, run.run_id, run.epoch)


def found(run: Run) -> dict[str, str]:
    return {finding.uri: finding.problem for finding in fsck(fresh(run))}


def path(tmp_path: Path, uri: str) -> Path:
    return tmp_path / "smoke" / uri


def test_a_renamed_copy_is_one_line_that_names_the_run(run: Run, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "smoke", tmp_path / "renamed")
    copy = audit(Run(run.store, "renamed"))
    assert [str(one) for one in copy.findings] == ["run.json: this folder holds run smoke: name it smoke again"]
    assert not (tmp_path / "renamed" / ".damaged").exists()


def test_a_start_of_another_run_is_called_so(run: Run, tmp_path: Path) -> None:
    start = path(tmp_path, "start/start.json")
    start.write_text(start.read_text().replace('"run": "smoke"', '"run": "another"'))
    assert found(run)["start/start.json"] == "its content is the start of run another"


ARTIFACTS = [
    *(f"generation=0001/{name}.parquet" for name in tables.GENERATION_TABLES),
    "start/seeds.parquet",
    "start/population.parquet",
    "adapters/t0-start/adapter_config.json",
    "adapters/t0-g0001/adapter_model.safetensors",
    "adapters/s0-g0001/optimizer.safetensors",
    f"benchmarks/{NIGHTLY}/scores.parquet",
]


def test_a_sound_run_has_no_findings(run: Run) -> None:
    assert fsck(run) == []


def test_an_audit_says_how_much_it_read(run: Run, tmp_path: Path) -> None:
    found = audit(fresh(run))
    named = {ref.uri for manifest in survey_of(run).manifests.values() for ref in manifest.outputs}
    there = {uri for uri in named if path(tmp_path, uri).exists()}
    assert (found.artifacts, found.bytes) == (len(there), sum(path(tmp_path, uri).stat().st_size for uri in there))
    path(tmp_path, "start/population.parquet").unlink()
    assert audit(fresh(run)).artifacts == found.artifacts - 1


@pytest.mark.parametrize("uri", ARTIFACTS)
def test_one_flipped_bit_in_any_artifact_is_found(run: Run, tmp_path: Path, uri: str) -> None:
    data = bytearray(path(tmp_path, uri).read_bytes())
    bit = random.Random(uri).randrange(len(data) * 8)
    data[bit // 8] ^= 1 << bit % 8
    path(tmp_path, uri).write_bytes(data)
    (finding,) = fsck(fresh(run))
    assert finding.uri == uri and "its digest is not" in finding.problem
    assert finding.command.startswith("populora ") and run.store.url in finding.command


@pytest.mark.parametrize("lost", [False, True])
def test_what_only_the_join_of_a_complete_stage_read_is_reported_without_a_command(run: Run, tmp_path: Path, lost: bool) -> None:
    part, joined = f"generation=000{LAST}/update.parts/00.parquet", path(tmp_path, f"generation=000{LAST}/metrics.parquet")
    _ = path(tmp_path, part).unlink() if lost else path(tmp_path, part).write_bytes(b"?")
    (finding,) = fsck(fresh(run))
    assert finding.uri == part and finding.command == "" and finding.problem.endswith(f"; {SPENT}")
    joined.unlink()
    commands = {finding.uri: finding.command for finding in fsck(fresh(run))}
    assert commands[part] == f"populora run --resume smoke --store {run.store.url}", "the join would read it"


def test_a_finding_names_what_depends_on_the_artifact_and_the_command(run: Run, tmp_path: Path) -> None:
    path(tmp_path, "generation=0002/grades.parquet").write_bytes(b"?")
    (finding,) = fsck(fresh(run))
    whole = ("reward", "update", "rate", "evolve")
    assert finding.dependents == tuple(f"generation=0002/{stage}" for stage in whole)
    assert str(finding) == (
        f"generation=0002/grades.parquet: {finding.problem}; used by generation=0002/reward, generation=0002/update, "
        f"generation=0002/rate and 1 more; fix it with: populora run --resume smoke --store {run.store.url}"
    )


def test_what_is_missing_is_found(run: Run) -> None:
    for uri in ("generation=0001/grades.parquet", "generation=0000/solve.json", "start/start.json"):
        run.store.delete(f"smoke/{uri}")
    assert found(run) == {
        "start/start.json": "the manifest is missing, although later stages have theirs",
        "generation=0000/solve.json": "the manifest is missing, although later stages have theirs",
        "generation=0001/grades.parquet": "it is missing",
    }
    run.store.delete("smoke/run.json")
    assert "no such artifact" in found(run)["run.json"]


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_the_command_checks_a_run_without_its_description(
    damage: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = path(tmp_path, "run.json")
    _ = file.unlink() if damage == "lost" else file.write_text("{")
    assert cli.main(["fsck", "smoke", "--store", str(file.parent.parent)]) == 1
    told = capsys.readouterr().out
    assert "run.json" in told and " artifacts (" in told and "match the digests in " in told
    assert cli.main(["fsck", "smokes", "--store", str(file.parent.parent)]) == 2
    assert "no run smokes in " in capsys.readouterr().err


@pytest.mark.parametrize("uri", ["run.json", "start/start.json", "generation=0000/evolve.json", "generation=0001/solve.json"])
def test_a_changed_manifest_is_found_by_the_chain(run: Run, tmp_path: Path, uri: str) -> None:
    values = json.loads(path(tmp_path, uri).read_text())
    changed = values | {"versions": {"base_model": "another"}}
    path(tmp_path, uri).write_text(json.dumps(changed))
    assert found(run) == {uri: "its digest is not the one recorded in the chain"}
    path(tmp_path, uri).write_text(json.dumps(values | {"clock": {"host": "another"}}))
    assert found(run) == {}
    if uri != "run.json":
        path(tmp_path, uri).write_text(json.dumps(values | {"previous": "0" * 64}))
        assert found(run) == {uri: "its digest is not the one recorded in the chain"}
    path(tmp_path, uri).write_text("{")
    assert found(run) == {uri: "not a JSON object with a schema version"} or uri == "run.json"


def test_a_manifest_in_the_wrong_place_or_with_unknown_inputs_is_found(run: Run, tmp_path: Path) -> None:
    place = path(tmp_path, "generation=0002/evolve.json")
    values = json.loads(place.read_text())
    place.write_text(json.dumps(values | {"run": "another"}))
    assert found(run) == {"generation=0002/evolve.json": "its content is evolve of generation 2 of run another"}
    place.write_text(json.dumps(values | {"inputs": [{"uri": "generation=0000/x.parquet", "sha256": "0" * 64}]}))
    assert "names an input that no manifest made" in found(run)["generation=0002/evolve.json"]


def test_a_number_of_generations_that_no_start_planned_is_found(run: Run, tmp_path: Path) -> None:
    """No digest covers it, and a resume would train as many."""
    for stage, planned in (("reward", 3), ("rate", 3), ("evolve", 900)):
        place = path(tmp_path, f"generation=0002/{stage}.json")
        values = json.loads(place.read_text())
        place.write_text(json.dumps(values | {"clock": values["clock"] | {"generations": planned}}))
    said = "its clock plans 900 generations, earlier stages of the same start 3"
    assert found(run) == {"generation=0002/evolve.json": said}


def test_scores_beside_the_chain_are_those_that_a_stage_recorded(run: Run, tmp_path: Path) -> None:
    place, folder = path(tmp_path, "generation=0002/evolve.json"), f"benchmarks/{NIGHTLY}"
    scores = run.history.find(f"{folder}/scores.parquet")
    values = json.loads(place.read_text())

    def record(sha256: str) -> None:
        suites = {"gsm8k": {"uri": scores.uri, "sha256": sha256}}
        place.write_text(json.dumps(values | {"versions": values["versions"] | {"suites": suites}}))

    record(scores.sha256)
    assert found(run) == {}
    record("0" * 64)
    assert found(run) == {scores.uri: "its manifest names other scores than generation=0002/evolve.json records"}
    shutil.rmtree(path(tmp_path, folder))
    said = "it is missing, although generation=0002/evolve.json records its scores"
    assert found(run) == {f"{folder}/benchmark.json": said}


def test_rows_that_a_manifest_counts_wrong_are_found(run: Run, tmp_path: Path) -> None:
    place = path(tmp_path, "generation=0002/evolve.json")
    values = json.loads(place.read_text())
    values["outputs"][-1]["rows"] = 7
    place.write_text(json.dumps(values))
    assert found(run) == {"generation=0002/offspring.parquet": "its manifest states 7 rows, it has 0"}


def test_retired_artifacts_are_not_missing(run: Run) -> None:
    ref = run.history.find("adapters/t0-g0000/optimizer.safetensors")
    tombstone = {"schema": 1, "retired": [ref.to_json() | {"reason": "old"}], "clock": {}}
    run.store.create("smoke/gc/0001.json", json.dumps(tombstone).encode())
    run.remove(ref.uri)
    assert found(run) == {}
    run.store.delete("smoke/gc/0001.json")
    tombstone["retired"] = [ref.to_json() | {"reason": "old", "sha256": "0" * 64}]
    run.store.create("smoke/gc/0001.json", json.dumps(tombstone).encode())
    assert found(run) == {ref.uri: "it was retired, but its tombstone names another digest"}


def test_a_fix_by_a_fork_starts_where_one_can(run: Run, tmp_path: Path) -> None:
    for stage, planned in (("reward", 3), ("rate", 3), ("evolve", 900)):
        place = path(tmp_path, f"generation=0002/{stage}.json")
        values = json.loads(place.read_text())
        place.write_text(json.dumps(values | {"clock": values["clock"] | {"generations": planned}}))
    (finding,) = fsck(fresh(run))
    assert "populora fork smoke --generation 1 " in finding.command
    ref = run.history.find("adapters/t0-g0001/adapter_model.safetensors")
    run.store.create(
        "smoke/gc/0001.json", json.dumps({"schema": 1, "retired": [ref.to_json() | {"reason": "old"}], "clock": {}}).encode()
    )
    run.remove(ref.uri)
    (finding,) = fsck(fresh(run))
    assert "populora fork smoke --generation 0 " in finding.command
    assert fork(fresh(run), "smoke-fixed", 0, [], lambda config: {}, {}).run_id == "smoke-fixed"


def test_what_keeps_a_fork_from_being_named_keeps_no_finding_back(run: Run, tmp_path: Path) -> None:
    for stage, planned in (("reward", 3), ("rate", 3), ("evolve", 900)):
        place = path(tmp_path, f"generation=0002/{stage}.json")
        values = json.loads(place.read_text())
        place.write_text(json.dumps(values | {"clock": values["clock"] | {"generations": planned}}))
    before = found(run)
    assert before
    path(tmp_path, "run.json").write_text("{")
    assert set(found(run)) >= {*before, "run.json"}


def test_an_unknown_run_is_a_clear_error(run: Run) -> None:
    with pytest.raises(NotStored, match="there is no run other in file://"):
        fsck(Run(run.store, "other"))


def test_a_configuration_that_cannot_be_used_here_is_said(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    config = example_run.CONFIG.model_copy(
        update={"reward": example_run.CONFIG.reward.model_copy(update={"rule": "infra/gone.py:rule"})}
    )
    with hold(store, "smoke") as epoch:
        example_run.build(Run(store, "smoke", epoch), 1, config)
    (finding,) = fsck(Run(store, "smoke"))
    assert "invariants are not checked" in finding.problem and "gone.py" in finding.problem


@pytest.mark.parametrize(
    ("uris", "generation"),
    [
        (["generation=0001/grades.parquet"], 1),
        (["adapters/s0-g0001/adapter_model.safetensors", "generation=0002/samples.parquet"], 1),
        (["adapters/t0-start/optimizer.safetensors", "start/start.json"], 0),
        (["generation=0001/solve.json"], 1),
        (["generation=0002/evolve.json"], 2),
    ],
)
def test_what_fsck_marks_is_made_again_by_the_next_run(run: Run, tmp_path: Path, uris: list[str], generation: int) -> None:
    head = fresh(run).history.head()
    assert first_generation(fresh(run)) == LAST
    for uri in uris:
        path(tmp_path, uri).write_bytes(b"{}")
    assert fsck(fresh(run))
    assert first_generation(fresh(run)) == generation
    example_run.build(fresh(run), LAST + 1)
    assert fsck(fresh(run)) == []
    assert first_generation(fresh(run)) == LAST
    assert fresh(run).history.head() == head


def test_a_damaged_adapter_is_made_again_by_a_resume_that_runs_only_what_is_not_finished(run: Run, tmp_path: Path) -> None:
    place = path(tmp_path, "adapters/s0-g0001/adapter_model.safetensors")
    sound = place.read_bytes()
    place.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    (finding,) = fsck(fresh(run))
    assert finding.command.startswith("populora run --resume smoke")
    assert fresh(run).finished("update", 1), "a stage only looks whether its adapters exist"
    resumed = fresh(run)
    assert first_generation(resumed) == 1
    assert [stage for stage in ("reward", "update", "rate") if not resumed.finished(stage, 1)] == ["update"]
    assert first_generation(fresh(run)) == 1, "also after a kill right here"
    example_run.build(resumed, LAST + 1)
    assert fsck(fresh(run)) == [] and place.read_bytes() == sound
    assert first_generation(fresh(run)) == LAST


def test_a_run_resumes_at_its_first_gap(run: Run) -> None:
    run.store.delete("smoke/generation=0002/ratings.parquet")
    assert first_generation(fresh(run)) == 2
    run.store.delete("smoke/adapters/s0-g0001/optimizer.safetensors")
    assert first_generation(fresh(run)) == 1
    run.store.delete("smoke/generation=0000/rate.json")
    assert first_generation(fresh(run)) == 0


def test_a_run_does_not_go_on_upon_a_broken_chain(run: Run, tmp_path: Path) -> None:
    place = path(tmp_path, "generation=0001/solve.json")
    place.write_text(json.dumps(json.loads(place.read_text()) | {"counts": {"rollouts": 7}}))
    with pytest.raises(Damaged, match=r"generation=0001/grade\.json: the chain of digests is broken before it"):
        first_generation(fresh(run))
