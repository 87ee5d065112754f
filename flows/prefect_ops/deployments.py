"""What can be started from the Prefect UI: pools, deployments with their forms, the schedule, and the heartbeat automation.

`deploy` is idempotent: it creates what is missing and updates what exists, so each start of a server calls it.
"""

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.flows import EntrypointType  # type: ignore[attr-defined]
from prefect.schedules import Cron, Schedule

from flows.config import configurations, dump, load
from flows.execution import flow_cleanup
from flows.execution.pools import stage
from flows.prefect_ops import flows as flows_
from flows.prefect_ops.forms import FORMS, Forms
from flows.storage import StoreUnavailable
from flows.train import train

POOLS = {"cpu": "Complete runs, benchmarks, reports, and stages that need Docker.", "gpu": "Stages that need a GPU."}
TRAIN_QUEUE, JOB_QUEUE, STAGE_QUEUE = "train", "jobs", "stages"
QUEUES = {TRAIN_QUEUE: 1, JOB_QUEUE: 2, STAGE_QUEUE: None}
"""Maximum number of concurrent runs of a queue, over all machines of its pool."""
STAGE_TYPES = ("process", "docker", "kubernetes")
"""Pools of these types that others have created take stages too: a placement may name them."""
TEMPLATE: dict[str, Any] = {
    # The machine that takes the run finds the interpreter on its PATH. Without a command, Prefect resolves a workspace.
    "job_configuration": {
        "command": "python -m prefect.engine",
        "labels": {},
        "name": None,
        "stream_output": True,
        "working_dir": None,
    },
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""How our pools start a run. Prefect's own template lets each run set its command, environment and folder. Ours has no
variables, so the server refuses a run that sets any, and a worker has nowhere to put them (not even `env`: a dictionary there
would be merged with the run's)."""
OUTLIVES_SERVER = timedelta(minutes=20)
"""A worker ends by itself, with its runs, when the server is away for a quarter of an hour; some minutes are added to that."""
NIGHTLY = "0 3 * * *"
SLUG = "nightly"
DEFAULT_PRESET = "quickstart"


def deploy(store: str, timezone: str = "UTC") -> list[str]:
    """Create or update everything for runs in `store` and return the names of the deployments. Raises the server's errors."""
    with get_client(sync_client=True) as client:
        for name, description in POOLS.items():
            _pool(client, name, description)
        _automation(client)
        others = {pool.name: pool.base_job_template for pool in client.read_work_pools() if pool.type in STAGE_TYPES}
        pools = {name: others.get(name, TEMPLATE) for name in dict.fromkeys([*POOLS, *sorted(others)])}
        schedules = _first_schedules(client, timezone)
    made = [*_training(store), *_jobs(store, schedules), *(_stages(pool, template) for pool, template in pools.items())]
    for deployment in made:
        if not deployment.schedules:
            deployment.model_fields_set.discard("schedules")  # sent as an empty list, it would delete schedules without a slug
        deployment.apply()
    with suppress(StoreUnavailable):  # a worker fills the forms later
        Forms().refresh()
    return [f"{deployment.flow_name}/{deployment.name}" for deployment in made]


def workers_heard(own: str = "", within: timedelta = OUTLIVES_SERVER) -> bool:
    """Return whether a worker of our pools may be alive: it was heard within `within`. `own` names one that is known not to run.

    A server that was away cannot tell from a worker's silence whether it works: its runs live on without the server.
    """
    with get_client(sync_client=True) as client:
        known = {pool.name for pool in client.read_work_pools()}
        workers = [worker for pool in POOLS if pool in known for worker in client.read_workers_for_work_pool(pool)]
    since = datetime.now(UTC) - within
    heard = [worker.last_heartbeat_time for worker in workers if worker.name != own]
    return any(last is not None and last > since for last in heard)


def local_timezone() -> str:
    """Return the name of this machine's time zone, or UTC if it has none: schedules use local time."""
    return os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2] or "UTC"


def _training(store: str) -> list[RunnerDeployment]:
    """Return `train/train` with the default preset's values in its form, and one deployment per preset with its values."""
    made = []
    for preset in configurations():
        names = ["train", preset] if preset == DEFAULT_PRESET else [preset]
        for name in names:
            made.append(
                _deployment(
                    train,
                    name,
                    TRAIN_QUEUE,
                    {"config": dump(load(preset)), "run_id": preset, "store": store},
                    [f"preset:{preset}"] if name == preset else [],
                    description=f"Train a population. The form starts with the configuration `{preset}` of infra/runs/.\n\n"
                    "A new run id starts a new run. The id of an existing run resumes it.",
                )
            )
    return made


def _first_schedules(client: Any, timezone: str) -> list[Schedule]:
    """Return the nightly schedule for a new server. On a known one, what users did to it stays: moved, paused or deleted."""
    try:
        client.read_deployment_by_name("benchmark/benchmark")
    except ObjectNotFound:
        return [Cron(NIGHTLY, timezone=timezone, slug=SLUG)]
    return []


def _jobs(store: str, schedules: list[Schedule]) -> list[RunnerDeployment]:
    return [
        _deployment(flows_.benchmark, "benchmark", JOB_QUEUE, {"store": store}, schedules=schedules),
        _deployment(flows_.report, "report", JOB_QUEUE, {"store": store}),
        *(_deployment(flow, name, JOB_QUEUE, {"store": store}) for name, flow in FORMS.items()),
    ]


def _stages(pool: str, template: dict[str, Any]) -> RunnerDeployment:
    about = f"One stage of a run, on a machine of pool {pool}."
    return _deployment(stage, pool, STAGE_QUEUE, {}, pool=pool, description=about, job_variables=_beating(template))


def _beating(template: dict[str, Any]) -> dict[str, Any]:
    """Return the variables with which runs of a pool beat as often as the automation expects, if its template takes any.

    Others have made these pools, and their workers are Prefect's own, with Prefect's interval of 180 s.
    """
    takes = "env" in template.get("variables", {}).get("properties", {})
    return {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(flow_cleanup.HEARTBEAT_SECONDS)}} if takes else {}


def _deployment(
    flow: Any, name: str, queue: str, parameters: dict[str, Any], tags: list[str] | None = None, pool: str = "cpu", **more: Any
) -> RunnerDeployment:
    return flow.to_deployment(
        name=name,
        parameters=parameters,
        tags=["populora", *(tags or [])],
        work_pool_name=pool,
        work_queue_name=queue,
        entrypoint_type=EntrypointType.MODULE_PATH,
        **more,
    )


def _pool(client: Any, name: str, description: str) -> None:
    try:
        client.read_work_pool(name)
        client.update_work_pool(name, WorkPoolUpdate(description=description, base_job_template=TEMPLATE))
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", description=description, base_job_template=TEMPLATE))
    for queue, limit in QUEUES.items():
        try:
            client.read_work_queue_by_name(queue, work_pool_name=name)
        except ObjectNotFound:
            client.create_work_queue(queue, concurrency_limit=limit, work_pool_name=name)


def _automation(client: Any) -> None:
    wanted = flow_cleanup.lost_runs()
    found = client.read_automations_by_name(wanted.name)
    if found:
        client.update_automation(found[0].id, wanted)
    else:
        client.create_automation(wanted)
