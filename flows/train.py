"""The outer loop as a Prefect flow: start or resume a run, then train one generation after another."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Annotated, Any

import prefect
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from pydantic import Field

from flows.config import RunConfig
from flows.execution import flow_cleanup, gc_tuning, orphan_guard, preflight, ray_cluster
from flows.execution.idle import nothing_left
from flows.execution.pools import HERE, Placement, Pools, check_pools
from flows.execution.session import Session, open_session, session
from flows.generation import RETRIES, bridged, run_generation
from flows.monitoring.progress import to_stderr
from flows.notes import endings
from flows.notes import publish as notes
from flows.run.run import Run
from flows.storage import open_store
from flows.store.names import RUN_ID
from stages.core.unavailable import Unavailable


@prefect.task(
    task_run_name="start",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def start() -> dict[str, Any]:
    """Make the starting adapters, ratings and seed tasks."""
    return session().run_stage("start", None)


@prefect.flow(
    name="train",
    flow_run_name="{run_id}",
    persist_result=False,
    on_completion=[endings.tell_end],
    on_cancellation=[flow_cleanup.end_children, endings.tell_end],
    on_crashed=[flow_cleanup.end_children, endings.explain],
    on_failure=[flow_cleanup.end_children, endings.explain],
)
def train(
    run_id: Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$")],
    store: Annotated[str, Field(min_length=1)],
    config: RunConfig,
    placement: Placement = HERE,
) -> str:
    """Train a population of adapters, or resume the run of this id if one exists with the same configuration.

    Args:
        run_id: Name of the run: lowercase letters, digits and dashes.
        store: Where to store artifacts: a folder, file:///folder, or s3://bucket/prefix.
        config: All settings of the run.
        placement: Work pools for stages that need another machine. If empty, all stages run on the run's own machine.

    Returns the digest of the last manifest, which identifies the whole run.
    """
    by_worker = bool(os.environ.get("PREFECT__FLOW_RUN_ID"))  # not by our command line, which has checked the model
    if by_worker:
        orphan_guard.leave_with_parent()
    idle = bridged(partial(nothing_left, Run(open_store(store), run_id), config.generations))
    if idle:
        placement = HERE
    else:
        _check(config, store, run_id, placement, by_worker)
    browser = os.environ.get("POPULORA_BROWSER_URL", "")
    one_generation = (
        run_generation.with_options(task_runner=ray_cluster.runner(placement.ray)) if placement.ray else run_generation
    )
    with (
        gc_tuning.relaxed_gc(),
        ray_cluster.connected(placement.ray, config) as on_node,
        open_session(config, run_id, store, placed(placement, config), on_node, log_line(), placement.named(), idle) as current,
        notes.publishing(current.run, config, browser),
    ):
        bridged(current.first_generation)  # before the start, too: it removes what is marked as damaged, and knows half a fork
        population = start()
        # The run's heartbeat covers its generations: a thread for each would cost a second at the end of every one.
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), flow_cleanup.children_wait_when_paused():
            _generations(current, one_generation, population)
        return current.finish()


def _check(config: RunConfig, store: str, run_id: str, placement: Placement, by_worker: bool) -> None:
    """Raise for what the run would miss here or in the pools of its placement, before anything is written."""
    gpu_elsewhere = placement.gpu + placement.ray != ""
    if by_worker:
        model_elsewhere = placement.gpu != "" or (placement.ray != "" and placement.sandbox != "")
        preflight.check(config, store, run_id, gpu_elsewhere, model_elsewhere, placement.sandbox != "")
    else:
        preflight.check_machine(config, gpu_elsewhere)
    check_pools({"sandbox": placement.sandbox, "gpu": placement.gpu})


def _generations(current: Session, one_generation: Any, population: dict[str, Any]) -> None:
    """Run the generations that the run still needs. A thread reports on each while the next one is running."""
    config, run_id = current.config, current.run.run_id
    with ThreadPoolExecutor(1, "report") as beside:
        reported: Future[None] | None = None
        for generation in range(bridged(current.first_generation), config.generations):
            with notes.tagged(run_id, config.mode, generation):
                population = one_generation(run_id, generation, population)
            if reported is not None:
                reported.result()
            bridged(partial(current.retire, generation))
            reported = beside.submit(copy_context().run, _report, current, generation)
        if reported is not None:
            reported.result()


def _report(current: Session, generation: int) -> None:
    """Print a generation's line, and publish its alarms. A store that does not answer ends no run for a line's sake."""
    if generation + 1 < current.config.generations:
        time.sleep(notes.ASIDE_SECONDS)
    try:
        notes.publish_alarms(generation, current.report_generation(generation))
    except Unavailable as error:
        log_line()(f"generation {generation} is complete, but could not be reported: {error}")


def log_line() -> Callable[[str], None]:
    """Return the sink for lines about a long stage: the flow run's log if a Prefect worker started it, else standard error."""
    return get_run_logger().info if os.environ.get("PREFECT__FLOW_RUN_ID") else to_stderr


def placed(placement: Placement, config: RunConfig) -> Pools | None:
    """Return the runner of the run's steps in the pools that the placement names; None if it names none."""
    return Pools(placement, config.engineless, log_line()) if placement.sandbox or placement.gpu else None
