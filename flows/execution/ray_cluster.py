"""An existing Ray cluster: its nodes take the parts of update, propose, solve and benchmark, and with GPUs also whole steps that
use one, such as the start. Ray does all the scheduling there.

A node works like any other machine: a stage subprocess reads its inputs from the store, writes its outputs and commits the part's
manifest under the run's epoch. So a node needs this project, the store's credentials in the environment in which `ray start` ran,
and Docker if it judges: in the start and in benchmarks. Prefect's task runner hands the server's address on. The extra `ray`
installs the packages.

Where the cluster has GPUs, a step asks for one, and Ray chooses the card. Ray ends the process of a task that had a GPU, so an
actor on each node, which asks for no resources, keeps the processes of its cards until the run ends. Ray starts it again if it is
killed.
"""

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from flows import cards
from flows.cards import VISIBLE, Card, CardUnavailable
from flows.config import ConfigError, RunConfig, parse
from flows.execution import orphan_guard
from flows.execution.code_version import check_version, own_version
from flows.execution.run_stage import Reference, Spec
from flows.execution.slots import Slots, Tenant
from flows.execution.stage_process import WorkerLost, Workers
from flows.monitoring.progress import to_stderr
from flows.plan.estimate import too_small
from flows.run.run import Run
from flows.storage import open_store
from stages.core.engines.protocol import EngineUnavailable
from stages.core.unavailable import Unsuited

CONNECT_SECONDS = 10.0
LOOK_SECONDS = 30.0
UNSERVED_SECONDS = 600.0
OnNode = Callable[[Spec, str], Reference | None]
"""Runs a whole step, given with its interpreter, on a node; None if it belongs where the run is."""


@contextmanager
def connected(address: str, config: RunConfig) -> Iterator[OnNode | None]:
    """Join the cluster as a driver, and keep an actor on each of its nodes that has a GPU. Yields None without an address.

    Raises ConfigError without the packages or without the GPUs that `model.device` wants, EngineUnavailable if the cluster does
    not answer.
    """
    if not address:
        yield None
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
        nodes = gpu_nodes(ray.nodes(), config.model.device)
        actors = [_actor(node_id, count) for node_id, count in nodes.items()]
        with _each_part_with_a_gpu() if actors else nullcontext():
            kept = partial(_whole, threads=config.threads, gpus=bool(actors), engineless=config.engineless)
            yield partial(kept, unserved=Unserved(gpus=1))
    finally:
        ray.shutdown()  # ends what this driver still has running on the nodes, its actors too


def gpu_nodes(nodes: list[dict[str, Any]], device: str) -> dict[str, int]:
    """Return how many GPUs each living node has; none for a run that leaves them alone. Raises ConfigError if it needs one."""
    living = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in nodes if node["Alive"]}
    if device.startswith("cuda") and not any(living.values()):
        raise ConfigError(
            f"model.device: {device} was requested, but no node of the Ray cluster has a GPU (ray start --num-gpus); "
            "choose auto or cpu, or another cluster"
        )
    pins = device != "cpu" and ":" not in device  # otherwise the run names its card itself
    return {node_id: count for node_id, count in living.items() if count and pins}


def runner(address: str) -> Any:
    """Return Prefect's task runner for the cluster that this process has joined."""
    from prefect_ray import RayTaskRunner  # noqa: PLC0415

    return RayTaskRunner(address=address)


def _whole(spec: Spec, python: str, threads: int, gpus: bool, engineless: Set[str], unserved: "Unserved") -> Reference | None:
    """Run a step that is no part on a node if it uses one of the cluster's GPUs. Raises what the step raises there.

    Stages in `engineless` use no engine in this run. `unserved` is that of the run: a step that is tried again waits no longer.
    """
    import ray  # noqa: PLC0415
    from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

    if not gpus or spec.stage in engineless or not spec.uses_gpu:
        return None
    options = {"num_gpus": 1, "name": spec.stage}
    try:
        step = ray.remote(run_here).options(**options).remote(asdict(spec), python, threads, own_version())
        try:
            _wait_for(step, unserved)
        except WorkerLost:
            ray.cancel(step)  # else it would run as soon as there is a node, beside its next try
            raise
        done: Reference = ray.get(step)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise WorkerLost(f"the node of stage {spec.stage} was lost: {str(error).splitlines()[0]}") from None
    return done


class Unserved:
    """How long no node of the cluster could take a step that waits. Ray itself waits without end, and says nothing."""

    def __init__(self, gpus: int, say: Callable[[str], None] = to_stderr, clock: Callable[[], float] = time.monotonic) -> None:
        self._needs = {"CPU": 1, "GPU": gpus}
        self._say, self._clock = say, clock
        self._since: float | None = None

    def look(self, nodes: list[dict[str, Any]]) -> None:
        """Look at Ray's nodes. Say it in one line when none could take the step, and raise WorkerLost when that lasts."""
        if any(node["Alive"] and all(node["Resources"].get(of, 0) >= n for of, n in self._needs.items()) for node in nodes):
            self._since = None
            return
        wanted = "one CPU and one GPU" if self._needs["GPU"] else "one CPU"
        now = self._clock()
        if self._since is None:
            self._since = now
            minutes = f"{UNSERVED_SECONDS / 60:.0f} min"
            self._say(
                f"no node of the Ray cluster has {wanted}, which a step asks for; the run stops if none joins within {minutes}"
            )
        elif now - self._since >= UNSERVED_SECONDS:
            raise WorkerLost(f"no node of the Ray cluster has {wanted}, which a step asks for")


def wait_for_part(future: Any) -> None:
    """Wait for a part that Prefect's task runner has submitted. Raises WorkerLost if no node can take it for long."""
    from prefect_ray.context import RemoteOptionsContext  # noqa: PLC0415

    _wait_for(future.wrapped_future, Unserved(RemoteOptionsContext.get().current_remote_options.get("num_gpus", 0)))


def _wait_for(reference: Any, unserved: Unserved) -> None:
    import ray  # noqa: PLC0415

    while not ray.wait([reference], timeout=LOOK_SECONDS)[0]:
        unserved.look(ray.nodes())


def run_here(spec: Reference, python: str, threads: int, version: str = "") -> Reference:
    """On a node: run one step in its warm worker. With a GPU from Ray, the node's actor has one for that card."""
    import ray  # noqa: PLC0415
    from ray.exceptions import RayActorError, RayTaskError  # noqa: PLC0415

    check_version(version)
    node_id = ray.get_runtime_context().get_node_id()
    try:
        given = [str(name) for name in ray.get_gpu_ids()]  # Ray may have been told not to set CUDA_VISIBLE_DEVICES
        actor = ray.get_actor(_name(node_id)) if given else None
    except ValueError:  # the node is younger than the run
        actor = None
    if actor is None:
        return _workers(threads, node_id).run(Spec(**spec), python)
    try:
        done: Reference = ray.get(actor.run.remote(given[0], spec, python, threads, _node(node_id)))
    except RayActorError as error:
        raise WorkerLost(f"the actor of node {_node(node_id)} ended: {str(error).splitlines()[0]}") from None
    except RayTaskError as error:
        raise error.cause from None
    return done


class NodeCards:
    """What a node's actor keeps: the processes of each card that Ray has given to a part of this run."""

    def __init__(self) -> None:
        orphan_guard.start()
        self._kept: dict[str, Slots] = {}
        self._changing = threading.Lock()

    def run(self, name: str, spec: Reference, python: str, threads: int, node: str) -> Reference:
        """Run one step on the card of this name. Raises Unsuited if a process outside Ray has it or it is no longer used."""
        with self._changing:
            if name not in self._kept:
                os.environ["POPULORA_NODE"] = node
                card = _named(name, node)
                _check_size(card, Spec(**spec), node)
                self._kept[name] = Slots([card], Tenant(threads))
        return self._kept[name].run(Spec(**spec), python)

    def end(self) -> None:
        """End the processes."""
        for slots in self._kept.values():
            slots.__exit__()


def _check_size(card: Card, spec: Spec, node: str) -> None:
    """Raise Unsuited for a card that is smaller than the run's plan."""
    description = Run(open_store(spec.store), spec.run_id).history.description() if card.memory_mb else None
    if description is None:  # the card does not tell its size, or the step will say that its run is gone
        return
    if lack := too_small(parse(description["config"]), card.memory_mb * 2.0**20):
        raise Unsuited(f"{card} of node {node} has {card.memory_mb / 1024:.1f} GiB, but {lack}; start Ray there without it")


def _named(name: str, node: str) -> Card:
    """Return the card that Ray gave; without nvidia-smi, its word counts. Raises CardUnavailable for one that is not listed."""
    if found := cards.cards(os.environ | {VISIBLE: name}):
        return found[0]
    if shutil.which("nvidia-smi") is not None:
        raise CardUnavailable(
            f"card {name} of node {node} is gone: nvidia-smi does not list it; start Ray there again without it"
        )
    return Card(name, name)


def _actor(node_id: str, count: int) -> Any:
    """Start the actor of a node. It belongs to this driver and ends with it."""
    import ray  # noqa: PLC0415
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    where = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    options = {"num_cpus": 0, "num_gpus": 0, "max_concurrency": count, "name": _name(node_id), "scheduling_strategy": where}
    options |= {"max_restarts": -1}  # a killed one comes back without processes; what it was doing is lost, and tried again
    return ray.remote(NodeCards).options(**options).remote()


def _each_part_with_a_gpu() -> Any:
    """Let Prefect's task runner ask Ray for one GPU a task."""
    from prefect_ray.context import remote_options  # noqa: PLC0415

    return remote_options(num_gpus=1)


def _name(node_id: str) -> str:
    """Return the name of a node's actor: one of each driver, which Ray calls a job."""
    import ray  # noqa: PLC0415

    return f"populora-{ray.get_runtime_context().get_job_id()}-{node_id}"


def _node(node_id: str) -> str:
    return f"{socket.gethostname()}/{node_id[:8]}"


@cache
def _workers(threads: int, node_id: str) -> Workers:
    """Return the stage worker of this Ray process, which ends with it. Manifests name the node: a host may run several."""
    orphan_guard.start()
    os.environ["POPULORA_NODE"] = _node(node_id)
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
