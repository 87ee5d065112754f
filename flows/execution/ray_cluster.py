"""An existing Ray cluster: its nodes take the parts of update, propose, solve and benchmark. Ray does all the scheduling there.

A node works like any other machine: a stage subprocess reads its inputs from the store, writes its outputs and commits the part's
manifest under the run's epoch. So a node needs this project, the store's credentials in the environment in which `ray start` ran,
Docker if benchmarks are sharded, and the Prefect server's address. The extra `ray` installs the packages.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from flows.config import ConfigError
from flows.execution import orphan_guard
from flows.execution.run_stage import Reference, Spec
from flows.execution.stage_process import Workers
from stages.core.engines.protocol import EngineUnavailable

CONNECT_SECONDS = 10.0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Join the cluster as a driver. Raises ConfigError without the packages, EngineUnavailable if the cluster does not answer."""
    if not address:
        yield
        return
    _probe(address)
    try:
        import prefect_ray  # noqa: F401, PLC0415  an extra
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"placement.ray: {error.name} is not installed: pip install -c constraints.txt -e '.[ray]'") from None
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, namespace="prefect", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineUnavailable(f"placement.ray: the Ray cluster at {address}: {str(error).splitlines()[0]}") from error
    signal.signal(signal.SIGTERM, before)  # Ray's own handler would end the run without a report to Prefect
    try:
        yield
    finally:
        ray.shutdown()  # ends what this driver still has running on the nodes


def runner(address: str) -> Any:
    """Return Prefect's task runner for the cluster that this process has joined."""
    from prefect_ray import RayTaskRunner  # noqa: PLC0415

    return RayTaskRunner(address=address)


def run_here(spec: Reference, python: str, threads: int) -> Reference:
    """On a node: run one step in this process's warm worker."""
    return _workers(threads).run(Spec(**spec), python)


@cache
def _workers(threads: int) -> Workers:
    """Return the stage worker of this Ray process, which ends with it. Manifests name the node: a host may run several."""
    import ray  # noqa: PLC0415

    orphan_guard.start()
    os.environ["POPULORA_NODE"] = f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:8]}"
    return Workers(threads)


def _probe(address: str) -> None:
    """Check that the head answers: Ray waits long for one that does not exist."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit():
        raise ConfigError(f"placement.ray: {address!r}: write host:port of the head node, ray://host:10001, or auto")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise EngineUnavailable(f"placement.ray: no Ray cluster answers at {address} ({error.strerror or error})") from None
