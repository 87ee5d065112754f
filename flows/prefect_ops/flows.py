"""What can be started from the UI or a schedule besides training: benchmarks, reports, forks and comparisons, as Prefect flows.

A person may switch a form's checks off, so each flow checks its values itself: ids by their patterns, and the store, which is the
one that the server serves and no other.
"""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated
from uuid import UUID

import prefect
from prefect import runtime
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.deployments import run_deployment
from prefect.logging import get_run_logger
from pydantic import BeforeValidator, Field

from flows.benchmarks.nightly import run_ids, score_store
from flows.config import ConfigError
from flows.execution import orphan_guard
from flows.execution.pools import HERE, Placement, check_pools
from flows.execution.recorded import checked_versions, clock
from flows.form_links import ADAPTER, generation_number
from flows.generation import RETRIES
from flows.prefect_ops.comparison_note import comparison_note
from flows.report.report import report as write_report
from flows.run.addresses import Addresses
from flows.run.fork import fork as make_fork
from flows.run.history import PLACEMENT, placement_of
from flows.run.run import Run
from flows.storage import open_store
from flows.store.file_store import FileStore
from flows.store.names import RUN_ID
from flows.suites.suite_data import listed_suites, suite_names
from stages.core.engines.protocol import EngineUnavailable
from stages.core.unavailable import Unavailable

RunId = Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$")]
AdapterId = Annotated[str, Field(pattern=f"^{ADAPTER.pattern}$")]
Count = Annotated[int, Field(ge=0)]
Begun = Annotated[int, Field(ge=0), BeforeValidator(generation_number)]
BegunOrStart = Annotated[int, Field(ge=-1), BeforeValidator(generation_number)]
Served = Annotated[str, Field(json_schema_extra={"readOnly": True})]
"""The store in a form that a worker does not write again (flows.prefect_ops.forms): shown, and not to be changed."""
TRAIN = "train/train"


@prefect.task(
    task_run_name="score-{run_id}",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def score(store: str, run_id: str, suites: list[str], members: str, limit: int, attempts: int) -> tuple[str, list[str]]:
    """Score a run's newest generation. Returns the table for display, and for each suite that could not be scored the reason."""
    found = score_store(store, suites, members, [run_id], limit, attempts)
    for _, suite, reason in found.failures:
        get_run_logger().error("%s on %s: %s", run_id, suite, reason)
    return found.markdown(), [f"{suite}: {reason}" for _, suite, reason in found.failures]


@prefect.flow(name="benchmark", persist_result=False)
def benchmark(
    store: Served,
    suites: list[str] = [],  # noqa: B006  the UI's form shows this default; nothing changes it
    members: str = "students",
    run_id: RunId | None = None,
    limit: Count = 0,
    attempts: Count = 0,
) -> None:
    """Score the newest generation of a run, or of every run in the store. Existing scores are not computed again.

    Args:
        store: Where the runs are: a folder, file:///folder, or s3://bucket/prefix.
        suites: Names of the suites; none means each run's own suite, asked as the run asks it.
        members: students, all, top:N (by fitness), or adapter ids separated by commas.
        run_id: A single run; none means every run of the store.
        limit: Problems to score, evenly over kinds and bands. 0: all; of the run's own suite, as many as the run asks.
        attempts: Sampled attempts besides the greedy one, for pass@k. 0: none; on the run's own suite, as many as the run draws.
    """
    _leave_with_worker()
    check_served(store)
    if run_id:
        existing(store, run_id)
    check_suites(suites)
    failures: dict[str, list[str]] = {}
    for one in [run_id] if run_id else run_ids(open_store(store)):
        try:
            text, failed = score(store, one, suites, members, limit, attempts)
            create_markdown_artifact(text, key=f"{one}-benchmark", description=f"Scores of run {one}, in percent")
        except Exception as error:  # whatever is wrong with this run, the others are scored
            if isinstance(error, Unavailable) and not isinstance(error, EngineUnavailable):
                raise  # all runs need the store and the judge; an engine that fails may be this run's own
            get_run_logger().error("%s: %s: %s", one, type(error).__name__, error)
            failed = [f"{type(error).__name__}: {error}"]
        failures |= {one: failed} if failed else {}
    if failures:
        first = next(iter(failures.values()))[0].splitlines()[0]
        names = ", ".join(failures)
        raise RuntimeError(f"not all could be scored, of these runs: {names}; the log has every reason, the first: {first}")


@prefect.flow(name="report", flow_run_name="report-{run_id}", persist_result=False)
def report(run_id: RunId, store: Served) -> str:
    """Write the report of a run, finished or not: one self-contained HTML page with its figures.

    Args:
        run_id: The run.
        store: Where it is.
    """
    _leave_with_worker()
    place = write_report_of(existing(store, run_id))
    get_run_logger().info("report: %s", place)
    return place


@prefect.flow(name="fork", flow_run_name="fork-{run_id}-{new_run_id}", persist_result=False)
def fork(
    run_id: RunId,
    new_run_id: RunId,
    generation: BegunOrStart,
    store: str,
    settings: list[str] = [],  # noqa: B006  the UI's form shows this default; nothing changes it
    go_on: bool = True,
    placement: Placement = HERE,
) -> str:
    """Create a run that shares everything with another one up to a generation, and continue it with other settings.

    Args:
        run_id: The run to start from.
        new_run_id: Name of the new run.
        generation: The last generation that both share, or the start.
        store: Where both are.
        settings: Changed settings of the new run, each as key=value, such as learning.learning_rate=3e-5.
        go_on: Train the new run immediately.
        placement: Work pools for stages that need another machine. If empty, those of the run to start from, as it began.
    """
    _leave_with_worker()
    return _forked(run_id, new_run_id, generation, "", store, settings, go_on, placement)


@prefect.flow(name="restart", flow_run_name="restart-{run_id}-{new_run_id}", persist_result=False)
def restart(
    run_id: RunId,
    new_run_id: RunId,
    generation: Begun,
    stage: str,
    store: str,
    settings: list[str] = [],  # noqa: B006  the UI's form shows this default; nothing changes it
    go_on: bool = True,
    placement: Placement = HERE,
) -> str:
    """Compute a stage of a generation, and all after it, again: as a new run that shares everything before that stage.

    Args:
        run_id: The run to start from. It keeps all that it has.
        new_run_id: Name of the new run.
        generation: The generation in which the new run begins.
        stage: The first stage that is computed again.
        store: Where both are.
        settings: Changed settings of the new run, each as key=value, such as learning.learning_rate=3e-5.
        go_on: Train the new run immediately.
        placement: Work pools for stages that need another machine. If empty, those of the run to start from, as it began.
    """
    _leave_with_worker()
    return _forked(run_id, new_run_id, generation, stage, store, settings, go_on, placement)


@prefect.flow(name="benchmark-member", flow_run_name="benchmark-{run_id}-{adapter}", persist_result=False)
def benchmark_member(
    run_id: RunId,
    adapter: AdapterId,
    store: str,
    suites: list[str] = [],  # noqa: B006  the UI's form shows this default; nothing changes it
    limit: Count = 0,
    attempts: Count = 0,
) -> int:
    """Score one state of one member. Existing scores are not computed again.

    Args:
        run_id: The run.
        adapter: A member's weights: after its newest update, or older ones.
        store: Where the run is.
        suites: The suites to score it on; none means the run's own suite, asked as the run asks it.
        limit: Problems to score, evenly over kinds and bands. 0: all; of the run's own suite, as many as the run asks.
        attempts: Sampled attempts besides the greedy one, for pass@k. 0: none; on the run's own suite, as many as the run draws.
    """
    _leave_with_worker()
    existing(store, run_id)
    check_suites(suites)
    text, failed = score(store, run_id, suites, adapter, limit, attempts)
    create_markdown_artifact(text, key=f"{run_id}-benchmark", description=f"Scores of {adapter} of run {run_id}, in percent")
    if failed:
        raise RuntimeError(f"not all suites could be scored; the log has every reason, the first: {failed[0].splitlines()[0]}")
    return 0


@prefect.flow(name="compare", persist_result=False)
def compare(runs: Annotated[list[RunId], Field(min_length=2, max_length=20)], store: str) -> str:
    """Lay runs side by side: where they stand, their newest numbers, and the settings in which they differ.

    Args:
        runs: Two runs or more.
        store: Where they are.
    """
    _leave_with_worker()
    found = [existing(store, run_id) for run_id in dict.fromkeys(runs)]
    browser = os.environ.get("POPULORA_BROWSER_URL", "")
    note = comparison_note(found, Addresses(browser) if browser else None)
    create_markdown_artifact(note, key="comparison", description=f"Comparison of {', '.join(dict.fromkeys(runs))}")
    return note


def _leave_with_worker() -> None:
    """End with the worker that started this flow run: nobody could cancel it any more, and it would keep its card."""
    if os.environ.get("PREFECT__FLOW_RUN_ID"):  # not where a command of ours calls the flow
        orphan_guard.leave_with_parent()


def _forked(
    run_id: str, new_run_id: str, generation: int, stage: str, store: str, settings: list[str], go_on: bool, placement: Placement
) -> str:
    """Make the fork as `populora fork` does, and hand it to the deployment that trains, to run where its parent ran."""
    parent = existing(store, run_id)
    description = parent.history.description()
    places = placement.named() or placement_of(description)
    check_pools(places)  # before the fork is made
    where = clock() | ({PLACEMENT: places} if places else {})
    made = make_fork(parent, new_run_id, generation, settings, partial(checked_versions, known=description), where, stage)
    if go_on:
        changed = made.history.description()
        assert changed is not None
        parameters = {"config": changed["config"], "run_id": new_run_id, "store": store, "placement": places}
        run_deployment(TRAIN, parameters=parameters, timeout=0, as_subflow=False, flow_run_name=new_run_id)
        said = ", ".join(f"{kind}={name}" for kind, name in places.items()) or "all stages on the machine that takes it"
        get_run_logger().info("%s is submitted: %s", new_run_id, said)
    return new_run_id


def existing(store: str, run_id: str) -> Run:
    """Open the run. Raises ConfigError if it does not exist, or if the store is not the one that the deployment serves."""
    check_served(store)
    found = Run(open_store(store), run_id)
    if found.history.description() is None:
        raise ConfigError(f"run_id: there is no run {run_id} in {store}")
    return found


def check_suites(suites: list[str]) -> None:
    """Raise ConfigError for a suite that does not exist."""
    if unknown := [suite for suite in suites if suite not in suite_names()]:
        raise ConfigError(f"suites: {unknown[0]!r} is not one of {listed_suites()}")


def check_served(store: str) -> None:
    """Raise ConfigError unless the store is the one that the deployment of this flow run serves, if a deployment started it."""
    served = _served_store()
    if served not in (None, store):
        raise ConfigError(f"store: this form works on the runs in {served} only")


def _served_store() -> str | None:
    """Return the store of the deployment that started this flow run; None if none did."""
    deployment = runtime.deployment.id
    if deployment is None:
        return None
    with get_client(sync_client=True) as client:
        return client.read_deployment(UUID(str(deployment))).parameters.get("store")


def write_report_of(run: Run) -> str:
    """Write the page next to the run, or to the store as a dotted object that a newer page replaces. Returns its location."""
    if isinstance(run.store, FileStore):
        return str(write_report(run, run.store.root / f"{run.run_id}.html"))
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(run, Path(folder) / "report.html").read_bytes()
    run.store.replace(f"{run.run_id}/.report.html", page)
    return f"{run.store.url}/{run.run_id}/.report.html"
