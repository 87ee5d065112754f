"""One generation as a Prefect flow: every stage a task, every value a small reference to stored artifacts."""

from typing import Any

import prefect
from prefect.cache_policies import NO_CACHE

from flows import notes
from flows.scoring import benchmarks_at
from flows.session import session
from flows.storage import StoreUnavailable
from stages.core.engine import EngineUnavailable
from stages.core.sandbox import SandboxUnavailable

Reference = dict[str, Any]


def _worlds_fault(task: Any, task_run: Any, state: Any) -> bool:
    """Retry what the world broke (Docker, storage, a lost worker), never what the code did."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StoreUnavailable | EngineUnavailable | SandboxUnavailable)


@prefect.task(
    task_run_name="{stage}-g{generation:04d}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=[5, 30, 120],
    retry_condition_fn=_worlds_fault,
)
def run_stage(stage: str, generation: int, *after: Reference) -> Reference:
    """Runs a stage unless its manifest says that it is done."""
    return session().run_stage(stage, generation)


@prefect.task(
    task_run_name="update-g{generation:04d}-{part}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=[5, 30, 120],
    retry_condition_fn=_worlds_fault,
)
def update_group(generation: int, part: str, *after: Reference) -> Reference:
    """One adapter group's optimizer step."""
    return session().run_stage("update", generation, part)


def step(stage: str, generation: int, *after: Reference) -> Reference:
    """The stage as a task of its own name in the run graph, after the references that it reads."""
    notes.publish_progress(generation, stage)
    return run_stage.with_options(name=stage)(stage, generation, *after)


@prefect.flow(flow_run_name="{run_id}-g{generation:04d}", persist_result=False)
def run_generation(run_id: str, generation: int, population: Reference) -> Reference:
    """One generation: teachers propose, students solve, everyone learns, the weakest are replaced.

    Args:
        run_id: The run.
        generation: Its number, from 0.
        population: Reference to the artifacts that hold the population before this generation.
    """
    matches = step("match", generation, population)
    proposals = step("propose", generation, matches)
    tasks = step("verify", generation, proposals)
    rollouts = step("solve", generation, matches, tasks)
    grades = step("grade", generation, tasks, rollouts)
    samples = step("reward", generation, proposals, tasks, rollouts, grades)
    groups = [update_group(generation, part, samples) for part in session().update_parts(generation)]
    updated = step("update", generation, *groups)
    ratings = step("rate", generation, matches, grades, updated)
    before_evolution = [ratings]
    if benchmarks_at(session().config, generation):
        before_evolution.append(step("benchmark", generation, updated))
    evolved = step("evolve", generation, *before_evolution)
    notes.publish_generation(generation)
    return evolved
