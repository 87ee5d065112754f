"""A store that cannot be written refuses a benchmark before it scores, and still gives what has been scored."""

import json
from pathlib import Path

import pytest

from flows.benchmarks.members import Chosen
from flows.benchmarks.score import Question, probe_folder, score_run
from flows.cli import main
from flows.export.snapshot import SnapshotStore
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import StoreRefused, open_store
from flows.suites.suite_data import SAMPLES, load
from stages import benchmark as stage
from stages.core import tables
from stages.core.suites.scores import suite_scores
from tests.support import example_run


def test_completions_are_not_judged_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage, "judge", lambda *_: pytest.fail("judged, for nothing"))
    file = tmp_path / "made.jsonl"
    file.write_text("".join(json.dumps({"problem_id": one.problem_id, "text": ""}) + "\n" for one in load("gsm8k", SAMPLES)))
    words = ["--suite", "gsm8k", "--data", str(SAMPLES), "--completions", str(file)]
    assert main(["benchmark", *words, "--store", "/proc/populora"]) == 2  # where root cannot make a folder, either
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("populora: completions-") and said[0].endswith("its folder cannot be created")


@pytest.mark.parametrize("suite", ["probe-dev", "gsm8k"])
def test_members_of_a_run_are_not_asked_for_it(suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPULORA_SUITES", str(SAMPLES))
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        example_run.build(Run(store, "smoke", epoch), 1)
    before = store.list("smoke/", hidden=True)
    with pytest.raises(StoreRefused, match="a snapshot cannot be written"):
        score_run(Run(SnapshotStore(store, "smoke"), "smoke"), Chosen(), Question(suite))
    Run(store, "smoke").check_takes_scores()
    assert store.list("smoke/", hidden=True) == before, "what it writes is removed"


def test_stored_scores_are_read_from_it(tmp_path: Path) -> None:
    store, asked = open_store(str(tmp_path)), Question("probe-dev")
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 1)
        place = probe_folder(run, Chosen(), asked)
        scores = suite_scores(tables.ANSWERS.empty_table(), ())
        ref = run.write_table_at(f"benchmarks/{place}/scores.parquet", scores, tables.SCORES)
        run.commit_benchmark(place, [], [ref], {}, {}, {})
    assert score_run(Run(SnapshotStore(store, "smoke"), "smoke"), Chosen(), asked).equals(scores)
