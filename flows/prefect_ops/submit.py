"""`populora run --detach`: submit a run to a Prefect server, whose worker runs it."""

import os
from typing import Any

from flows.config import ConfigError, RunConfig, dump
from flows.execution.session import check_resumable
from flows.prefect_ops import prefect_api, serve
from flows.program import program
from flows.run.run import Run
from flows.storage import open_store

TRAIN = "train/train"
POOL = "cpu"


def submit(config: RunConfig, run_id: str, store: str, placement: dict[str, str]) -> str:
    """Start the deployment with this configuration and return the lines to print. Raises ServerUnreachable or ConfigError."""
    url = os.environ.get("PREFECT_API_URL") or f"{(serve.address() or {}).get('url', 'http://127.0.0.1:4200')}/api"
    serve.sign_in(url)
    prefect_api.require(url)
    check_resumable(Run(open_store(store), run_id), config)
    os.environ.update({"PREFECT_API_URL": url, "DO_NOT_TRACK": "1"})
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    from prefect.client.orchestration import get_client  # noqa: PLC0415  reads the address on import
    from prefect.deployments import run_deployment  # noqa: PLC0415
    from prefect.exceptions import ObjectNotFound  # noqa: PLC0415

    from flows.execution.pools import check_pools  # noqa: PLC0415

    parameters = {"config": dump(config), "run_id": run_id, "store": store, "placement": placement}
    with prefect_api.client_of_environment():
        check_pools(placement)
        try:
            begun: Any = run_deployment(TRAIN, parameters=parameters, timeout=0, flow_run_name=run_id, as_subflow=False)
        except ObjectNotFound:
            raise ConfigError(f"the server at {url} has no deployment {TRAIN}: was it started with populora serve?") from None
        with get_client(sync_client=True) as client:
            workers = client.read_workers_for_work_pool(POOL)
    page = os.environ.get("PREFECT_UI_URL") or url.removesuffix(
        "/api"
    )  # the API has another name inside a container than outside
    lines = [f"submitted  {run_id}", f"watch it   {page}/runs/flow-run/{begun.id}"]
    if not any(worker.status == "ONLINE" for worker in workers):
        lines.append(f"waiting    no worker takes work from the pool {POOL} yet; start one with: {program('worker', POOL)}")
    return "\n".join(lines)
