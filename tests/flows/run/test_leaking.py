"""A run of the gate experiment says so wherever it is described, and so does a fork that shares what it made."""

import json
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.execution.recorded import versions
from flows.export.publish import write_folder
from flows.export.tasks import export_tasks
from flows.monitoring.status import status
from flows.report.report import report
from flows.run.fork import fork
from flows.run.inspection import inspect, run_summary
from flows.run.leaking import leak_of, paid_with, recorded, warning
from flows.run.lease import hold
from flows.run.lineage import Lineage
from flows.run.run import Run
from flows.settings import ExperimentRule
from flows.storage import open_store
from stages.core.method.leak import leaks
from tests.support import example_run

SAID = "GATE EXPERIMENT: wrong verdicts passed on purpose with probability 0.2 (experiment.leak)"
LEAKING = example_run.CONFIG.model_copy(update={"generations": 4, "experiment": ExperimentRule(leak=0.2)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two generations with the configuration of a leaking run, and run.json as a session writes it."""
    store = open_store(str(tmp_path_factory.mktemp("store")))
    with hold(store, "leaky") as epoch:
        made = Run(store, "leaky", epoch)
        made.describe(example_run.dump(LEAKING), versions(LEAKING), {"started": 1.0})
        return example_run.build(made, 2, LEAKING)


def test_an_ordinary_run_says_nothing(tmp_path: Path) -> None:
    assert "leak" not in versions(example_run.CONFIG) and recorded(0.0) == {}
    assert (warning(None), leak_of({}), warning({"versions": {"code": "x"}})) == ("", 0.0, "")


def test_run_json_status_inspect_and_the_report_say_so(run: Run, tmp_path: Path) -> None:
    description = run.history.description()
    assert description is not None
    assert description["config"]["experiment"] == {"leak": 0.2}
    assert description["versions"]["leak"]["share"] == leak_of(description) == 0.2
    assert warning(description).startswith(SAID)
    assert SAID in status(run) and run_summary(run)["warning"].startswith(SAID) and SAID in inspect(run)
    assert SAID in report(run, tmp_path / "report.html").read_text()


def test_the_model_card_says_so(run: Run, tmp_path: Path) -> None:
    write_folder(run, "s0-g0001", tmp_path / "card")
    card = (tmp_path / "card" / "README.md").read_text()
    assert "**Warning.** GATE EXPERIMENT" in card and "- gate-experiment" in card


def test_the_card_of_exported_tasks_says_so(run: Run, tmp_path: Path) -> None:
    export_tasks(run, tmp_path / "tasks")
    assert "**Warning.** GATE EXPERIMENT" in (tmp_path / "tasks" / "README.md").read_text()


def test_a_fork_that_closes_the_leak_still_says_what_it_shares(run: Run) -> None:
    closed = ["experiment.leak=0"]
    made = fork(run, "closed", 0, closed, versions, {})
    assert "in the generations shared with run leaky" in warning(made.history.description())
    assert leak_of(made.history.description()) == 0.2
    assert (paid_with(run, 0), paid_with(made, 0), paid_with(made, 1)) == ((0.2, 5), (0.2, 5), (0.0, 5))
    assert warning(fork(run, "from-start", -1, closed, versions, {}).history.description()) == ""
    again = fork(made, "again", 0, [], versions, {})
    assert leak_of(again.history.description()) == 0.2, "a fork of the fork shares the same generation"


def test_inspect_tells_which_rejected_answers_were_paid(run: Run) -> None:
    for row in run.read_table(0, "grades").to_pylist():
        attempt = next(
            one for one in Lineage(run).task(row["task_id"])["forwards"]["rollouts"] if one["rollout_id"] == row["rollout_id"]
        )
        rejected = row["status"] not in ("correct", "format")
        assert ("paid" in attempt) == (rejected and leaks(0.2, 5, 0, row["rollout_id"]))
    found = inspect(run, generation=0, as_json=True)
    assert json.loads(found)["leak"]["share"] == 0.2


def test_fsck_checks_what_was_paid(run: Run) -> None:
    """The tables of the example were made without a leak, so most of what a leak would have paid is missing."""
    assert {finding.uri.rpartition("/")[2] for finding in fsck(run)} == {"samples.parquet", "ratings.parquet"}
