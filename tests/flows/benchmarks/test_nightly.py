"""The benchmark of a whole store: what cannot be scored is reported, and stops nothing that can."""

from pathlib import Path

import pyarrow as pa
import pytest
from prefect.client.orchestration import get_client

from flows.benchmarks import nightly
from flows.benchmarks.members import config_of
from flows.benchmarks.nightly import score_store
from flows.benchmarks.score import Question
from flows.config import ConfigError, load
from flows.prefect_ops.flows import benchmark
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core import tables
from tests.support import example_run

OF = {"suite": "probe-dev", "member_id": "s0", "role": "student", "adapter_id": "s0-g0000", "adapter_sha256": "0" * 64}
ROW = OF | {"group": "all", "measure": "pass@1 greedy", "score": 0.25, "problems": 4, "attempts": 1, "stderr": None}


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A run whose description is incomplete, one of a newer version, and last, by name, one that is already scored."""
    place = open_store(str(tmp_path))
    place.create("broken/run.json", b'{"schema": 1}')
    place.create("newer/run.json", b'{"schema": 99}')
    with hold(place, "well") as epoch:
        example_run.build(Run(place, "well", epoch), 1)
    well = Run(place, "well")
    assert config_of(well).benchmark.suite == "probe-dev"
    folder = "probe-dev/asked/generation=0000-n0-k0"
    scores = pa.Table.from_pylist([ROW], schema=tables.SCORES)
    ref = well.write_table_at(f"benchmarks/{folder}/scores.parquet", scores, tables.SCORES)
    well.commit_benchmark(folder, [], [ref], {}, {}, {})
    return str(tmp_path)


def test_a_run_of_a_newer_version_becomes_a_line_of_the_summary(store: str) -> None:
    found = score_store(store, runs=["newer", "well"])
    assert [(one.run_id, one.scored_now) for one in found.runs] == [("well", False)]
    ((run_id, suite, reason),) = found.failures
    assert (run_id, suite) == ("newer", "its own suite") and "schema 99 is newer" in reason
    assert "| well | probe-dev | 0 | pass@1 greedy | 25.00 |" in found.markdown()
    assert "| newer | its own suite | not scored: newer/run.json: schema 99 is newer" in found.markdown()


def test_suites_that_are_named_are_asked_as_they_are_named(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(run: Run, _: object, question: Question) -> pa.Table:
        asked.append(question)
        raise ConfigError("not now")

    monkeypatch.setattr(nightly, "score_run", refused)
    score_store(store, ["staircase-dev", "probe-test"], runs=["well"], limit=7)
    assert asked == [Question("staircase-dev", 7, 0), Question("probe-test", 7, 0)]
    monkeypatch.setattr(nightly, "config_of", lambda _: load("quickstart"))
    score_store(store, runs=["well"])
    score_store(store, runs=["well"], limit=7, attempts=3)
    assert asked[2:] == [Question("staircase-dev-deduction", 300, 4), Question("staircase-dev-deduction", 7, 3)]


@pytest.mark.flow
def test_the_flow_scores_the_runs_after_one_that_cannot_be_scored_and_names_it_at_the_end(store: str) -> None:
    with pytest.raises(RuntimeError) as failed:
        benchmark(store)
    said = "not all could be scored, of these runs: broken, newer; the log has every reason, the first: KeyError: 'config'"
    assert str(failed.value) == said
    with get_client(sync_client=True) as client:
        notes = {one.key: str(one.data) for one in client.read_artifacts(limit=200)}
    assert "25.00" in notes["well-benchmark"] and "schema 99 is newer" in notes["newer-benchmark"]
    assert "broken-benchmark" not in notes
