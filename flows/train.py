"""The outer loop as a Prefect flow: start or resume a run, then one generation after another."""

from typing import Any

import prefect
from prefect.cache_policies import NO_CACHE

from flows.config import RunConfig
from flows.generation import run_generation
from flows.session import open_session, session


@prefect.task(task_run_name="start", cache_policy=NO_CACHE, persist_result=False)
def start() -> dict[str, Any]:
    """Starting adapters, ratings and seed tasks."""
    return session().run_stage("start", None)


@prefect.flow(name="train", flow_run_name="{run_id}", persist_result=False)
def train(config: RunConfig, run_id: str = "smoke", store: str = "runs") -> str:
    """Train a population of adapters, or go on with a run that exists under this id with the same configuration.

    Args:
        config: Every setting of the run.
        run_id: Its name: lowercase letters, digits and dashes.
        store: Where artifacts go: a folder, file:///folder, or s3://bucket/prefix.

    Returns the digest of the last manifest, which stands for the whole run.
    """
    with open_session(config, run_id, store) as current:
        population = start()
        for generation in range(current.first_generation(), config.generations):
            population = run_generation(run_id, generation, population)
            current.report_generation(generation)
            current.retire(generation)
        return current.finish()
