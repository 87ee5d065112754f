"""The benchmark of a whole store: what cannot be scored is reported, and stops nothing that can."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prefect.client.orchestration import get_client

from flows.benchmarks import benchmark_suites, score, targets
from flows.benchmarks.members import Chosen
from flows.benchmarks.nightly import run_ids, score_store
from flows.benchmarks.score import Question, probe_folder, score_run, scored_generations
from flows.cli import _parser
from flows.config import RunConfig, dump
from flows.prefect_ops.flows import benchmark, benchmark_member
from flows.run.lease import hold
from flows.run.retention import pins_of
from flows.run.run import Run
from flows.storage import StoreUnavailable, open_store
from flows.store.file_store import FileStore
from flows.suites.own_suites import OwnSuites
from stages.core import tables
from tests.support import example_run

SUITE = "staircase-dev-deduction"
OWN = RunConfig.model_validate(dump(example_run.CONFIG) | {"benchmark": {"suite": SUITE, "limit": 300, "attempts": 4}})
OF = {"suite": SUITE, "member_id": "s0", "role": "student", "adapter_id": "s0-g0000", "adapter_sha256": "0" * 64}
ROW = OF | {"group": "all", "measure": "pass@1 greedy", "problems": 4, "attempts": 1, "stderr": None}


def _scores(score: float) -> pa.Table:
    return pa.Table.from_pylist([ROW | {"score": score}], schema=tables.SCORES)


def _score(run: Run, folder: str, score: float, **versions: str) -> None:
    """Store scores as `populora benchmark` does."""
    ref = run.write_table_at(f"benchmarks/{folder}/scores.parquet", _scores(score), tables.SCORES)
    run.commit_benchmark(folder, [], [ref], {}, versions, {})


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A run whose description is incomplete, one of a newer version, and last, by name, one that is already scored."""
    place = open_store(str(tmp_path))
    place.create("broken/run.json", b'{"schema": 1}')
    place.create("newer/run.json", b'{"schema": 99}')
    with hold(place, "well") as epoch:
        example_run.build(Run(place, "well", epoch), 1, OWN)
    well = Run(place, "well")
    _score(well, f"{SUITE}/asked/generation=0000-n300-k4", 0.25)
    _score(well, f"{SUITE}/asked/s0-g0000-n300-k4", 0.5)
    _score(well, "probe-dev/asked/generation=0000-n7-k0", 0.75)
    return str(tmp_path)


def test_a_run_of_a_newer_version_becomes_a_line_of_the_summary(store: str) -> None:
    found = score_store(store, ["probe-dev"], runs=["newer", "well"], limit=7)
    assert [(one.run_id, one.scored_now) for one in found.runs] == [("well", False)]
    ((run_id, suite, reason),) = found.failures
    assert (run_id, suite) == ("newer", "probe-dev") and "schema 99 is newer" in reason
    assert "| well | probe-dev | 0 | pass@1 greedy | 75.00 |" in found.markdown()
    assert "| newer | probe-dev | not scored: newer/run.json: schema 99 is newer" in found.markdown()


def test_the_runs_of_a_store_are_found_without_listing_what_they_hold(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket lists a thousand objects a request; a run of 200 generations has tens of thousands."""
    place = FileStore(Path(store))
    place.create("scores/summary.json", b"{}")
    place.create("Notes/run.json", b"{}")
    monkeypatch.delattr(FileStore, "list")
    assert run_ids(place) == ["broken", "newer", "well"]


def test_without_suites_a_run_is_asked_what_it_asks_itself(store: str) -> None:
    found = score_store(store, runs=["newer", "well"])
    assert [(suite, reason.partition(":")[0]) for _, suite, reason in found.failures] == [("its own suite", "newer/run.json")]
    assert f"| well | {SUITE} | 0 | pass@1 greedy | 25.00 |" in found.markdown() and not found.runs[0].scored_now


def _own_benchmark(store: str, states: Mapping[int, Mapping[str, float]], origin: str = "", **versions: str) -> Run:
    """Store a run of two generations whose own benchmark stored these scores by generation and state; of its parent if named."""
    place = open_store(store)
    with hold(place, "own") as epoch:
        run = example_run.build(Run(place, "own", epoch), 2, OWN)
        for generation, scores in states.items():
            refs = [
                run.write_table_at(f"benchmarks/{SUITE}/{state}/scores.parquet", _scores(score), tables.SCORES)
                for state, score in scores.items()
            ]
            refs = [replace(ref, origin=origin) for ref in refs]
            run.commit("benchmark", generation, [], refs, {}, versions, example_run.CLOCK)
    return Run(place, "own")


def test_what_a_run_has_scored_itself_is_not_scored_again(tmp_path: Path) -> None:
    _own_benchmark(str(tmp_path), {0: {"start": 0.25}, 1: {"generation=0001": 0.5, "births": 0.125}})
    found = score_store(str(tmp_path))
    (one,) = found.runs
    assert one.before is not None and (one.generation, one.scored_now) == (1, False)
    assert [scores["score"].to_pylist() for scores in (one.before, one.scores)] == [[0.25], [0.5]]
    assert f"| own | {SUITE} | 1 | pass@1 greedy | 50.00 |  | 50.00 | 50.00 | 1 | +25.00 |" in found.markdown()


def test_what_a_run_scored_itself_comes_before_what_the_night_scored(tmp_path: Path) -> None:
    run = _own_benchmark(str(tmp_path), {0: {"start": 0.25, "generation=0000": 0.375}})
    _score(run, f"{SUITE}/asked/generation=0001-n300-k4", 0.5)
    (one,) = score_store(str(tmp_path)).runs
    assert one.before is not None and (one.generation, one.scored_now) == (1, False)
    assert [scores["score"].to_pylist() for scores in (one.before, one.scores)] == [[0.375], [0.5]]


def test_scores_of_another_version_of_the_suite_are_neither_shown_again_nor_compared(tmp_path: Path) -> None:
    """As after an upgrade that changed its file."""
    now, question = OwnSuites().digest(SUITE), Question(SUITE, 300, 4)
    run = _own_benchmark(str(tmp_path), {0: {"generation=0000": 0.375}, 1: {"generation=0001": 0.125}}, suite="an old one")
    _score(run, f"{SUITE}/asked/generation=0001-n300-k4", 0.25, suite="an old one")
    _score(run, f"{SUITE}/asked/start-n300-k4", 0.0625, suite=now)
    newest = Chosen((), 1)
    assert probe_folder(run, newest, question) == f"{SUITE}/asked/generation=0001-n300-k4-s{now[:8]}"
    assert [generation for generation, _ in scored_generations(run, "students", question)] == [-1]
    _score(run, probe_folder(run, newest, question), 0.5, suite=now)
    assert score_run(run, newest, question)["score"].to_pylist() == [0.5]
    (one,) = score_store(str(tmp_path)).runs
    assert one.before is not None and not one.scored_now
    assert [scores["score"].to_pylist() for scores in (one.before, one.scores)] == [[0.0625], [0.5]]


def test_a_suite_s_first_scores_have_its_plain_name(tmp_path: Path) -> None:
    run, question = _own_benchmark(str(tmp_path), {}), Question(SUITE, 300, 4)
    assert probe_folder(run, Chosen((), 1), question) == f"{SUITE}/asked/generation=0001-n300-k4"
    _score(run, probe_folder(run, Chosen((), 1), question), 0.5, suite=OwnSuites().digest(SUITE))
    assert probe_folder(run, Chosen((), 1), question) == f"{SUITE}/asked/generation=0001-n300-k4"


def test_what_is_scored_is_pinned_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's retention may be at work meanwhile."""
    run, pinned = _own_benchmark(str(tmp_path), {}), list[frozenset[str]]()

    def reading(run: Run, *_: Any) -> Any:
        pinned.append(pins_of(run).scored)
        raise StoreUnavailable("enough")

    monkeypatch.setattr(targets, "of_run", reading)
    monkeypatch.setattr(score, "_score", reading)
    monkeypatch.setattr(benchmark_suites, "_target", lambda arguments, store, run, suite: reading(run))
    members = {one.adapter_id for one in Chosen((), 1).contestants(run)}
    for suite in (SUITE, "gsm8k"):
        with pytest.raises(StoreUnavailable):
            score_run(run, Chosen((), 1), Question(suite))
    command = _parser().parse_args(["benchmark", "own", "--suite", "gsm8k", "--generation", "1", "--store", str(tmp_path)])
    with pytest.raises(StoreUnavailable):
        benchmark_suites.benchmark(command, run.store, run)
    assert pinned == [members] * 3 and pins_of(run).scored == frozenset()


@pytest.mark.parametrize(
    ("asked", "folder"),
    [
        ({"limit": 7}, "generation=0001-n7-k4"),
        ({"attempts": 2}, "generation=0001-n300-k2"),
        ({"members": "all"}, "generation=0001-all-n300-k4"),
    ],
)
def test_another_question_or_other_members_are_scored_anew(asked: dict[str, Any], folder: str, tmp_path: Path) -> None:
    run = _own_benchmark(str(tmp_path), {1: {"generation=0001": 0.5}})
    _score(run, f"{SUITE}/asked/{folder}", 0.75)
    (one,) = score_store(str(tmp_path), **asked).runs
    assert (one.before, one.scores["score"].to_pylist()) == (None, [0.75])


def test_scores_of_a_forks_parent_are_not_the_forks(tmp_path: Path) -> None:
    run = _own_benchmark(str(tmp_path), {0: {"generation=0000": 0.5}}, origin="parent")
    (tmp_path / "parent").symlink_to(tmp_path / "own")  # which holds the parent's scores
    _score(run, f"{SUITE}/asked/generation=0001-n300-k4", 0.75)
    (one,) = score_store(str(tmp_path), runs=["own"]).runs
    assert (one.before, one.scores["score"].to_pylist()) == (None, [0.75])


@pytest.mark.flow
def test_the_flow_scores_the_runs_after_one_that_cannot_be_scored_and_names_it_at_the_end(store: str) -> None:
    with pytest.raises(RuntimeError) as failed:
        benchmark(store)
    said = "not all could be scored, of these runs: broken, newer; the log has every reason, the first: "
    said += "its own suite: broken/run.json: config is missing or has an invalid value"
    assert str(failed.value) == said
    assert "25.00" in _notes()["well-benchmark"] and "schema 99 is newer" in _notes()["newer-benchmark"]
    assert "config is missing" in _notes()["broken-benchmark"]


@pytest.mark.flow
def test_the_form_of_a_member_asks_for_the_run_s_own_suite(store: str) -> None:
    assert benchmark_member("well", "s0-g0000", store) == 0
    assert f"| well | {SUITE} | named | pass@1 greedy | 50.00 |" in _notes()["well-benchmark"]


def _notes() -> dict[str, str]:
    """Return the newest note of each name."""
    with get_client(sync_client=True) as client:
        return {one.key: str(one.data) for one in sorted(client.read_artifacts(limit=200), key=lambda one: one.created)}
