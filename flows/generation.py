"""One generation as a Prefect flow: each stage is a task, each value a small reference to stored artifacts."""

from functools import cache
from typing import Any

import prefect
from prefect.cache_policies import NO_CACHE

from flows.benchmarks.schedule import benchmarks_at
from flows.execution import ray_cluster
from flows.execution.session import session
from flows.notes import publish as notes
from stages.core.unavailable import Unavailable

Reference = dict[str, Any]


def worlds_fault(task: Any, task_run: Any, state: Any) -> bool:
    """Retry condition of each task: retry external faults (Docker, storage, a lost worker), never faults of the code."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, Unavailable)


RETRIES: dict[str, Any] = {"retries": 3, "retry_delay_seconds": [5, 30, 120], "retry_condition_fn": worlds_fault}
"""Options of every task that uses the outside world."""


@prefect.task(
    task_run_name="{stage}-g{generation:04d}",
    cache_policy=NO_CACHE,
    persist_result=False,
    **RETRIES,
)
def run_stage(stage: str, generation: int, *after: Reference) -> Reference:
    """Run a stage unless its manifest marks it as done."""
    return session().run_stage(stage, generation)


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


def step(stage: str, generation: int, *after: Reference) -> Reference:
    """Run the stage as a task of the same name in the run graph, after its parts or after the references that it reads."""
    notes.publish_progress(generation, stage)
    parts = _parts(stage, generation, *after)
    return _named(run_stage, stage)(stage, generation, *(parts or after))


def _parts(stage: str, generation: int, *after: Reference) -> list[Reference]:
    """Run the parts of a stage: one after another on this machine, at the same time on its cards or on other machines."""
    current, found = session(), session().parts(stage, generation)
    here, there = _named(run_part, stage), _named(run_part_on_node, stage)
    if not current.spreads(stage):
        return [here(stage, generation, members, part, *after) for part, members in found]
    if current.cluster:
        orders = [(members, current.order(stage, generation, part)) for part, members in found]
        futures = [there.submit(stage, generation, members, order, *after) for members, order in orders]
    else:
        futures = [here.submit(stage, generation, members, part, *after) for part, members in found]
    try:
        for future in futures if current.cluster else ():
            ray_cluster.wait_for_part(future)
        return [future.result() for future in futures]
    except BaseException:  # a cancel reaches this thread only
        current.leave()
        raise


@prefect.flow(flow_run_name="{run_id}-g{generation:04d}", persist_result=False)
def run_generation(run_id: str, generation: int, population: Reference) -> Reference:
    """One generation: teachers propose, students solve, everyone learns, the weakest are replaced.

    Args:
        run_id: The run.
        generation: Its number, from 0.
        population: Reference to the artifacts that hold the population before this generation.
    """
    with notes.untagged():
        matches = step("match", generation, population)
        proposals = step("propose", generation, matches)
        tasks = step("verify", generation, proposals)
        rollouts = step("solve", generation, matches, tasks)
        grades = step("grade", generation, tasks, rollouts)
        samples = step("reward", generation, proposals, tasks, rollouts, grades)
        updated = step("update", generation, samples)
        ratings = step("rate", generation, matches, grades, updated)
        before_evolution = [ratings]
        if benchmarks_at(session().config, generation):
            before_evolution.append(step("benchmark", generation, updated))
        evolved = step("evolve", generation, *before_evolution)
        notes.publish_generation(generation)
    return evolved
