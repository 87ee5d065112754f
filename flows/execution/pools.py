"""Stages on other machines: a stage that is placed in a work pool becomes a run of that pool's stage deployment.

The machines share only the store. A pool's machine does the same as the run's own machine: a subprocess reads its inputs,
writes its outputs and commits the manifest under the run's epoch.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import prefect
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.states import Cancelling
from pydantic import BaseModel, ConfigDict, Field

from flows.config import ConfigError, parse
from flows.execution import orphan_guard
from flows.execution.code_version import check_version, own_version
from flows.execution.flow_cleanup import HEARTBEAT_SECONDS, SILENT_SECONDS
from flows.execution.preflight import cards_for
from flows.execution.refusals import Patience, hold_if_unsuited, naming_this_machine
from flows.execution.residents import ADDRESS, order_of, run_resident
from flows.execution.run_stage import Reference, Spec, reference
from flows.execution.slots import Slots, Tenant
from flows.execution.stage_process import CANCELLED, StageFailed, Told, WorkerLost, interpreter, known_error
from flows.monitoring.progress import Display, to_stderr
from flows.run.manifest import manifest_uri
from flows.run.run import Run
from flows.stages import stage_of
from flows.storage import open_store
from stages.core.unavailable import Unsuited

OURS = ("cpu", "gpu")
"""The pools that `populora worker` serves. Others, which people have made, are served by Prefect's own worker."""
BEATING = f"PREFECT_FLOWS_HEARTBEAT_FREQUENCY={HEARTBEAT_SECONDS}"
POLL_SECONDS = 2
WITHOUT_WORKER_SECONDS = 60
LATER = (408, 429)
"""Refusals of a server that is busy."""


class Placement(BaseModel):
    """Which work pool runs which stages. Empty: the run's own machine. Not part of the run's identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox: str = Field("", title="Pool for verify and grade", description="Machines with Docker, such as the pool cpu.")
    gpu: str = Field(
        "",
        title="Pool for propose, solve and update",
        description="Machines with a GPU, such as the pool gpu; start and benchmark run there too and need Docker.",
    )

    ray: str = Field(
        "",
        title="Ray cluster",
        description="host:port of its head, ray://host:10001 or auto: its nodes take groups of update and shards of rollouts.",
    )

    def named(self) -> dict[str, str]:
        """Return the pools or the cluster by kind, as `populora run --place` takes them; empty if all stages stay here."""
        return self.model_dump(exclude_defaults=True)

    def pool(self, stage: str, part: str | None, engineless: Set[str] = frozenset(), joins: bool = False) -> str:
        """Return the pool of a step; empty for this machine. Joining parts and stages in `engineless` need no GPU.

        Joining a rollout needs the model's tokenizer, which the machines that judge have.
        """
        needs = stage_of(stage)
        if needs.generates and stage in engineless:
            return ""
        if needs.uses_gpu(part, joins):
            return self.gpu
        return self.sandbox if needs.judges or (joins and needs.generates) else ""


HERE = Placement()


def hold_place(flow: Any, flow_run: Any, state: State) -> None:
    """Hook for stages that failed: the run already knows when a machine that is unsuited begins to wait."""
    hold_if_unsuited(state.message or "")


@prefect.flow(name="stage", flow_run_name="{run_id}-{stage}", persist_result=False, on_failure=[hold_place])
def stage(
    store: str,
    run_id: str,
    stage: str,
    generation: int | None,
    part: str | None,
    epoch: int,
    generations: int,
    cost: dict[str, Any] | None = None,
    version: str = "",
    joins: bool = False,
) -> None:
    """Run one stage of a run whose flow is running elsewhere. Started by that flow, not by hand.

    Args:
        store: The run's store.
        run_id: The run.
        stage: Name of the stage.
        generation: Its generation; none for the start.
        part: One of the parts of an update.
        epoch: The right to commit, from the run's own flow.
        generations: Number of generations of the run.
        cost: The run's prices.
        version: Version of the project where the run is.
        joins: Whether the step joins the stage's parts.
    """
    orphan_guard.start()
    orphan_guard.leave_with_parent()
    check_version(version)
    spec = Spec(store, run_id, stage, generation, part, epoch, generations, cost or {}, joins=joins)
    with Display(get_run_logger().info) as display, display.step(stage) as told:
        perform_here(spec, told)


def perform_here(spec: Spec, told: Told) -> Reference:
    """Run a step on this machine: in the processes that its worker keeps for its cards, otherwise in one that ends with the step.

    Raises Unsuited, before the work begins, if this machine lacks what another may have.
    """
    with naming_this_machine():
        return _performed(spec, told)


def _performed(spec: Spec, told: Told) -> Reference:
    description = Run(open_store(spec.store), spec.run_id).history.description()
    assert description is not None, f"run {spec.run_id} has no run.json"
    config = parse(description["config"])
    python, address = interpreter(config, spec.stage, spec.part, spec.joins), os.environ.get(ADDRESS, "")
    found = cards_for(config) if spec.uses_gpu else []
    if found and address:
        return run_resident(address, order_of(spec, description, config.threads, python), told)
    with Slots(found, Tenant(config.threads)) as slots:
        return slots.run(spec, python, told)


class Pools:
    """The work pools of a placement. Steps run there as runs of the pool's stage deployment, those in `engineless` here."""

    def __init__(self, placement: Placement, engineless: Set[str] = frozenset(), say: Callable[[str], None] = to_stderr) -> None:
        self._placement, self._engineless, self._leaving = placement, engineless, threading.Event()
        self._patience, self._say = Patience(say), say

    def __call__(self, spec: Spec) -> Reference | None:
        """Run a step in its pool. Returns None if it belongs on this machine."""
        pool = self._placement.pool(spec.stage, spec.part, self._engineless, spec.joins)
        return run_elsewhere(spec, pool, self._leaving, self._patience, self._say) if pool else None

    def takes(self, stage: str) -> bool:
        """Return whether parts of the stage go to a pool."""
        return self._placement.pool(stage, "00", self._engineless) != ""

    def leave(self) -> None:
        """Cancel all steps and stop waiting for them."""
        self._leaving.set()


def run_elsewhere(
    spec: Spec, pool: str, leaving: threading.Event, patience: Patience, say: Callable[[str], None] = to_stderr
) -> Reference:
    """Run a step on a machine of the pool and return its reference. A machine that is unsuited is not the step's last.

    Raises Unsuited if `patience` is at an end, WorkerLost if that machine was lost, or if the Prefect server did not answer when
    the step was submitted.
    """
    while True:
        try:
            return _run_once(spec, pool, leaving, say)
        except Unsuited as refusal:
            patience.wait(spec, pool, refusal, leaving)
        except Exception:
            patience.forget(spec)
            raise


def _run_once(spec: Spec, pool: str, leaving: threading.Event, say: Callable[[str], None]) -> Reference:
    run = Run(open_store(spec.store), spec.run_id, spec.epoch)
    with get_client(sync_client=True) as client:
        began = _submitted(client, spec, pool)
        try:
            done = partial(run.finished, spec.stage, spec.generation, spec.part)
            state = end_of(client, began.id, pool, leaving, done=done, say=say)
        except BaseException:  # also on a cancel: no one would wait for it
            with suppress(httpx.HTTPError, ObjectNotFound):  # which would replace the error that decides about a retry
                client.set_flow_run_state(began.id, Cancelling(), force=True)
            raise
    return finished(spec, pool, state)


def _submitted(client: Any, spec: Spec, pool: str) -> Any:
    """Start the step's run in the pool and return it. Raises WorkerLost without a worker or if the server does not answer.

    Prefect's client repeats a request whose answer was lost; with one key it gets the same run again. A retry of the step has
    another key, since it must not get a run that has ended. If the server started the first one after all, both are copies of a
    step under one epoch: whichever commits last returns the manifest of the other (flows.run.run.Run.commit).
    """
    key = uuid4().hex
    name, tags = f"stage/{pool}", [f"run:{spec.run_id}"]
    try:
        _need_worker(client, pool)
        return run_deployment(name, parameters=parameters_of(spec), timeout=0, tags=tags, idempotency_key=key)
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error:  # a retry gets the same answer
            raise
        raise WorkerLost(
            f"stage {spec.stage} could not be submitted to pool {pool}, because the Prefect server did not answer: "
            f"{type(error).__name__}: {error}"
        ) from error


def parameters_of(spec: Spec) -> dict[str, Any]:
    """Return the parameters of `stage` for a step. The folder for early verdicts is one of this machine.

    `joins` only where it is set, which no first step has: so an older worker says that it is older.
    """
    left_out = {"verdicts"} if spec.joins else {"verdicts", "joins"}
    return {key: value for key, value in asdict(spec).items() if key not in left_out} | {"version": own_version()}


def end_of(
    client: Any,
    flow_run_id: Any,
    pool: str,
    leaving: threading.Event,
    clock: Callable[[], float] = time.monotonic,
    done: Callable[[], object] = lambda: None,
    say: Callable[[str], None] = to_stderr,
) -> State | None:
    """Wait for the final state. A silent server is asked again; a run in one state for long is left if its pool has no workers.

    The watch for silent runs is next to the workers: if they are gone, nobody marks a run that was lost with them. A server that
    becomes silent is told of once. While it is, `done` says whether the step has ended all the same; the state is then None.

    Raises WorkerLost for such a pool or if the server no longer knows the run, StageFailed if it refuses to answer or once
    `leaving` is set.
    """
    since, known, silent = clock(), "", False
    while True:
        if leaving.wait(POLL_SECONDS):
            raise StageFailed(CANCELLED)
        try:
            state = client.read_flow_run(flow_run_id).state
            silent = False
            if state is not None and state.is_final():
                return state
            if (name := state.name if state is not None else "") != known:
                since, known = clock(), name
            waits = state is not None and (state.is_scheduled() or state.is_pending())
            if clock() - since > (WITHOUT_WORKER_SECONDS if waits else SILENT_SECONDS):
                _need_worker(client, pool)
                since = clock()
        except (httpx.HTTPError, ObjectNotFound) as error:
            if done():
                return None
            _raise_if_final(error, pool)
            if not silent:
                say(f"pool {pool}: the Prefect server does not answer ({type(error).__name__}: {error}); waiting for it")
            since, silent = clock(), True  # workers need a moment, too, until they are heard again


def _raise_if_final(error: Exception, pool: str) -> None:
    """Raise for an answer that the server would repeat: it was replaced and does not know the run, or has another password."""
    if isinstance(error, ObjectNotFound):
        raise WorkerLost(f"the Prefect server no longer knows the run of this step in pool {pool}: {error}") from error
    if isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error and error.response.status_code not in LATER:
        what = str(error).splitlines()[0]
        raise StageFailed(f"the Prefect server refuses to say how the step in pool {pool} is: {what}") from error


def finished(spec: Spec, pool: str, state: State | None) -> Reference:
    """Return the reference of a step whose remote run has ended in `state`, as recorded in its manifest."""
    run = Run(open_store(spec.store), spec.run_id, spec.epoch)
    if manifest := run.finished(spec.stage, spec.generation, spec.part):
        return reference(manifest)
    name, message = (state.name, state.message or "") if state is not None else ("Unknown", "")
    if state is not None and state.is_failed():
        raise known_error(message) or StageFailed(f"{spec.stage} failed in pool {pool}: {message}")
    uri = manifest_uri(spec.stage, spec.generation, spec.part)
    raise WorkerLost(f"stage {spec.stage} in pool {pool} ended as {name} without {uri}: {message}")


def check_pools(placement: Mapping[str, str]) -> None:
    """Raise ConfigError for a kind of stage whose work pool the Prefect server does not have, or that takes no stages."""
    wanted = {kind: placement[kind] for kind in ("sandbox", "gpu") if placement.get(kind)}
    if not wanted:
        return
    with get_client(sync_client=True) as client:
        for kind, pool in wanted.items():
            try:
                client.read_work_pool(pool)
            except ObjectNotFound as error:
                known = sorted(one.name for one in client.read_work_pools())
                there = f"it has {', '.join(known)}" if known else "it has none"
                raise ConfigError(f"placement.{kind}: the Prefect server has no work pool {pool}; {there}") from error
            try:
                client.read_deployment_by_name(f"stage/{pool}")
            except ObjectNotFound as error:
                raise ConfigError(
                    f"placement.{kind}: the pool {pool} takes no stages: there is no deployment stage/{pool}; a pool of type "
                    "process, docker or kubernetes gets one with: python -m flows.prefect_ops.pool_worker setup STORE"
                ) from error


def _need_worker(client: Any, pool: str) -> None:
    """Raise WorkerLost if no worker takes work from the pool: the run would wait forever."""
    workers: list[Any] = client.read_workers_for_work_pool(pool)
    if not any(worker.status == "ONLINE" for worker in workers):
        command = f"populora worker {pool}" if pool in OURS else f"{BEATING} prefect worker start --pool {pool}"
        raise WorkerLost(f"no worker takes work from the pool {pool}; start one on a suitable machine: {command}")
