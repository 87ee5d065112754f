"""One generation as a Prefect flow: each stage is a task, each value a small reference to stored artifacts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import prefect
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from flows.execution import ray_cluster
from flows.execution.session import session
from flows.notes import publish as notes
from flows.run.lease import LeaseLost
from flows.run.planned import benchmarks_at
from stages.core.unavailable import Unavailable

Reference = dict[str, Any]
Answer = TypeVar("Answer")


def worlds_fault(task: Any, task_run: Any, state: Any) -> bool:
    """Retry condition of each task: retry external faults (Docker, storage, a lost worker), never faults of the code."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, Unavailable)


DELAYS = (5, 30, 120)  # seconds
RETRIES: dict[str, Any] = {"retries": len(DELAYS), "retry_delay_seconds": [*DELAYS], "retry_condition_fn": worlds_fault}
"""Options of every task that uses the outside world."""


def bridged(ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` returns. Between tasks, the flow itself asks the store, and retries external faults as a task does."""
    for seconds in DELAYS:
        try:
            return ask()
        except LeaseLost:
            raise
        except Unavailable as error:
            get_run_logger().warning("%s; trying again in %d s", error, seconds)
            time.sleep(seconds)
    return ask()


@prefect.task(
    task_run_name="{stage}-g{generation:04d}",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def run_stage(stage: str, generation: int, *after: Reference, joins: bool = False) -> Reference:
    """Run a stage unless its manifest marks it as done. `joins`: `after` are its parts."""
    return session().run_stage(stage, generation, joins=joins)


@prefect.task(
    task_run_name="{stage}-g{generation:04d}-{members}",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def run_part(stage: str, generation: int, members: str, part: str, *after: Reference) -> Reference:
    """Run one part of a stage (a group's update, a shard of a rollout) unless its manifest marks it as done."""
    return session().run_stage(stage, generation, part)


@prefect.task(
    task_run_name="{stage}-g{generation:04d}-{members}",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def run_part_on_node(stage: str, generation: int, members: str, order: Reference, *after: Reference) -> Reference:
    """Run one part on a node of a Ray cluster. The node has no session: the order contains all that it needs."""
    return ray_cluster.run_here(**order)


@cache  # Prefect reads the function's source each time a task is created
def _named(task: Any, stage: str) -> Any:
    """Return the task under the name that the run graph shows."""
    return task.with_options(name=stage)


@dataclass(frozen=True)
class Begun:
    """Parts of a stage that run at the same time; their references in the order of the parts."""

    futures: tuple[Any, ...]

    def check(self) -> None:
        """Raise what a part has raised so far. Does not wait."""
        for future in self.futures:
            with suppress(TimeoutError):
                future.result(timeout=0)

    def results(self) -> list[Reference]:
        """Wait for the parts and return their references."""
        for future in self.futures if session().cluster else ():
            ray_cluster.wait_for_part(future)
        return [future.result() for future in self.futures]


def step(stage: str, generation: int, *after: Reference, begun: Begun | None = None, beside: Begun | None = None) -> Reference:
    """Run the stage as a task of the same name in the run graph, after its parts or after the references that it reads.

    `begun` are its parts, if they run already; `beside` those of another stage, which may have failed by now.
    """
    if beside is not None:
        beside.check()
    session().reach(stage)
    notes.publish_progress(generation, stage)
    if begun is None:
        begun = begin(stage, generation, *after)
    parts = begun.results() if begun is not None else _one_after_another(stage, generation, *after)
    return _named(run_stage, stage)(stage, generation, *(parts or after), joins=bool(parts))


def begin(stage: str, generation: int, *after: Reference) -> Begun | None:
    """Submit the parts of a stage to places of this machine or to other machines; None where they run one after another."""
    current = session()
    if not current.spreads(stage):
        return None
    found = bridged(lambda: current.parts(stage, generation))
    if current.cluster:
        there, orders = _named(run_part_on_node, stage), [current.order(stage, generation, part) for part, _ in found]
        futures = [
            there.submit(stage, generation, members, order, *after) for (_, members), order in zip(found, orders, strict=True)
        ]
    else:
        here = _named(run_part, stage)
        futures = [here.submit(stage, generation, members, part, *after) for part, members in found]
    return Begun(tuple(futures))


def _one_after_another(stage: str, generation: int, *after: Reference) -> list[Reference]:
    here, found = _named(run_part, stage), bridged(lambda: session().parts(stage, generation))
    return [here(stage, generation, members, part, *after) for part, members in found]


@contextmanager
def _ending_parts() -> Iterator[None]:
    """End the parts that still run when the block fails: a cancel reaches this thread only."""
    try:
        yield
    except BaseException:
        session().leave()
        raise


@prefect.flow(flow_run_name="{run_id}-g{generation:04d}", persist_result=False)
def run_generation(run_id: str, generation: int, population: Reference) -> Reference:
    """One generation: teachers propose, students solve, everyone learns, the weakest are replaced.

    Args:
        run_id: The run.
        generation: Its number, from 0.
        population: Reference to the artifacts that hold the population before this generation.
    """
    with notes.untagged(), _ending_parts():
        matches = step("match", generation, population)
        proposing = begin("propose", generation, matches)  # first: what the rollouts leave free is for an update beside them
        updating = begin("update", generation, matches) if session().config.learning.off_policy_steps else None
        proposals = step("propose", generation, matches, begun=proposing)
        tasks = step("verify", generation, proposals, beside=updating)
        rollouts = step("solve", generation, matches, tasks, beside=updating)
        grades = step("grade", generation, tasks, rollouts, beside=updating)
        samples = step("reward", generation, proposals, tasks, rollouts, grades, beside=updating)
        updated = step("update", generation, samples, begun=updating)
        ratings = step("rate", generation, matches, grades, updated)
        before_evolution = [ratings]
        if benchmarks_at(session().config, generation):
            before_evolution.append(step("benchmark", generation, updated))
        evolved = step("evolve", generation, *before_evolution)
        notes.publish_generation(generation)
    return evolved
