"""What can be started from the UI or a schedule besides training: benchmarks, reports and forks, as Prefect flows."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import prefect
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.deployments import run_deployment
from prefect.logging import get_run_logger
from pydantic import Field

from flows.benchmarks.nightly import run_ids, score_store
from flows.config import ConfigError
from flows.execution.session import clock, versions
from flows.generation import RETRIES
from flows.report.report import report as write_report
from flows.run.fork import fork as make_fork
from flows.run.run import Run
from flows.storage import open_store
from flows.store.file_store import RUN_ID, FileStore

RunId = Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$")]
Count = Annotated[int, Field(ge=0)]
TRAIN = "train/train"


@prefect.task(
    task_run_name="score-{run_id}",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def score(store: str, run_id: str, suites: list[str], members: str, limit: int, attempts: int) -> tuple[str, int]:
    """Score a run's newest generation. Returns the table for display, and how many suites could not be scored."""
    found = score_store(store, suites, members, [run_id], limit, attempts)
    for _, suite, reason in found.failures:
        get_run_logger().error("%s on %s: %s", run_id, suite, reason)
    return found.markdown(), len(found.failures)


@prefect.flow(name="benchmark", persist_result=False)
def benchmark(
    store: str,
    suites: list[str] = ["probe-dev"],  # noqa: B006  the UI's form shows this default; nothing changes it
    members: str = "students",
    run_id: RunId | None = None,
    limit: Count = 0,
    attempts: Count = 0,
) -> int:
    """Score the newest generation of a run, or of every run in the store. Existing scores are not computed again.

    Args:
        store: Where the runs are: a folder, file:///folder, or s3://bucket/prefix.
        suites: Names of the suites.
        members: students, all, top:N (by fitness), or adapter ids separated by commas.
        run_id: A single run; none means every run of the store.
        limit: Number of problems to score, evenly over kinds and bands; 0 means all.
        attempts: Sampled attempts in addition to the greedy one, for pass@k.
    """
    failures = 0
    for one in [run_id] if run_id else run_ids(open_store(store)):
        text, failed = score(store, one, suites, members, limit, attempts)
        create_markdown_artifact(text, key=f"{one}-benchmark", description=f"Scores of run {one}, in percent")
        failures += failed
    if failures:
        raise RuntimeError(f"{failures} suites could not be scored; the log states why")
    return failures


@prefect.flow(name="report", flow_run_name="report-{run_id}", persist_result=False)
def report(run_id: RunId, store: str) -> str:
    """Write the report of a run, finished or not: one self-contained HTML page with its figures.

    Args:
        run_id: The run.
        store: Where it is.
    """
    place = write_report_of(existing(store, run_id))
    get_run_logger().info("report: %s", place)
    return place


@prefect.flow(name="fork", flow_run_name="fork-{run_id}-{new_run_id}", persist_result=False)
def fork(
    run_id: RunId,
    new_run_id: RunId,
    generation: Annotated[int, Field(ge=-1)],
    store: str,
    settings: list[str] = [],  # noqa: B006  the UI's form shows this default; nothing changes it
    go_on: bool = True,
) -> str:
    """Create a run that shares everything with another one up to a generation, and continue it with other settings.

    Args:
        run_id: The run to start from.
        new_run_id: Name of the new run.
        generation: The last generation that both share; -1 for the start.
        store: Where both are.
        settings: Changed settings of the new run, each as key=value, such as learning.learning_rate=3e-5.
        go_on: Train the new run immediately.
    """
    parent = existing(store, run_id)
    known = partial(versions, known=parent.history.description())
    made = make_fork(parent, new_run_id, generation, settings, known, clock())
    if go_on:
        changed = made.history.description()
        assert changed is not None
        parameters = {"config": changed["config"], "run_id": new_run_id, "store": store}
        run_deployment(TRAIN, parameters=parameters, timeout=0, as_subflow=False)
    return new_run_id


def existing(store: str, run_id: str) -> Run:
    """Open the run. Raises ConfigError if it does not exist."""
    found = Run(open_store(store), run_id)
    if found.history.description() is None:
        raise ConfigError(f"run_id: there is no run {run_id} in {store}")
    return found


def write_report_of(run: Run) -> str:
    """Write the page next to the run, or to the store as a dotted object that a newer page replaces. Returns its location."""
    if isinstance(run.store, FileStore):
        return str(write_report(run, run.store.root / f"{run.run_id}.html"))
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(run, Path(folder) / "report.html").read_bytes()
    run.store.replace(f"{run.run_id}/.report.html", page)
    return f"{run.store.url}/{run.run_id}/.report.html"
