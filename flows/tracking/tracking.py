"""`populora track`: send the numbers of a run's tables to TensorBoard, MLflow or Weights & Biases. Off by default.

It reads only the store, so it works during a run, after it, and from another machine, and training never waits for it. A
destination remembers the last generation that it received: the same command resumes from there and repeats nothing.

Names: a metric, then its subject, as in `solve.rate`, `solve.rate/deduction`, `update.entropy/student/s0`,
`pair.solve_rate/student/s0/t1`. In addition to the table `metrics` there are `rating.mu`, `rating.sigma` and `rating.fitness` of
each member, `seconds/{stage}`, and the count of `alarms`.
"""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flows.config import ConfigError
from flows.monitoring.run_tables import RunTables
from flows.run.manifest import Json
from flows.run.planned import planned_generations
from flows.run.run import Run
from flows.storage import NotStored
from flows.tracking.secrets import without_secrets
from flows.tracking.sinks import MLflow, TensorBoard, WandB

POLL_SECONDS = 10.0


class Sink(Protocol):
    """A destination of numbers. Created with the target, the run's id, its configuration and a digest of run.json.

    Each method raises StoreUnavailable if the destination does not answer.
    """

    def last(self) -> int:
        """Return the newest generation that it has received; -1 for none."""
        ...

    def write(self, generation: int, ended: float, values: Mapping[str, float]) -> None:
        """Send all numbers of a generation that ended at this time."""
        ...

    def close(self) -> None:
        """Write everything that is pending."""
        ...


SINKS: dict[str, Callable[[str, str, Json, str], Sink]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def track(run: Run, to: str, follow: bool = False, told: Callable[[str], None] = print) -> int:
    """Send each complete generation that `to` (`tensorboard:FOLDER`, `mlflow:URI`, `wandb:FOLDER`) has not received.

    Returns how many. With `follow` it waits for more until the run is complete. Raises NotStored for a run that never started,
    ConfigError for an invalid target.
    """
    description = run.history.description()
    if description is None:
        raise NotStored(f"no run {run.run_id} in {run.store.url}")
    config = dict(description["config"])
    begun = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    sink, sent = opened(to, run.run_id, config, begun), 0
    try:
        watch = RunTables(run)
        while True:
            last = sink.last()
            ready = [generation for generation in whole(watch.look()) if generation > last]
            raised = Counter(alarm.generation for alarm in watch.alarms()) if ready else Counter[int]()
            for generation in ready:
                numbers = values(watch, generation) | {"alarms": float(raised[generation])}
                sink.write(generation, ended(watch, generation), numbers)
                sent, last = sent + 1, generation
                told(f"generation {generation} sent to {without_secrets(to)}")
            if not follow or last + 1 >= planned_generations(description, watch.newest_stages()):
                return sent
            time.sleep(POLL_SECONDS)
    finally:
        sink.close()


def opened(to: str, run_id: str, config: Json, begun: str) -> Sink:
    """Open the destination that `to` names; `begun` is a digest of run.json. Raises ConfigError, StoreUnavailable."""
    kind, _, target = to.partition(":")
    if kind not in SINKS or not target:
        raise ConfigError(
            f"--to {without_secrets(to)[:80]!r}: give one of {', '.join(f'{name}:WHERE' for name in sorted(SINKS))}"
        )
    return SINKS[kind](target, run_id, config, begun)


def whole(watch: RunTables) -> list[int]:
    """Return the finished generations."""
    return [number for number in watch.generations if any(one.stage == "evolve" for one in watch.manifests(number))]


def ended(watch: RunTables, generation: int) -> float:
    """Return when the last stage of a generation ended, by the clock of the machine that ran it."""
    clocks = [one.clock for one in watch.manifests(generation)]
    return max((float(one.get("started", 0.0)) + float(one.get("seconds", 0.0)) for one in clocks), default=0.0)


def values(watch: RunTables, generation: int) -> dict[str, float]:
    """Return the finite numbers of a generation by name."""
    found: dict[str, float] = {}
    for row in watch.of(generation, "metrics").to_pylist():
        found[_name(row)] = row["value"]
    for row in watch.of(generation, "ratings").to_pylist():
        for of in ("mu", "sigma", "fitness"):
            found[f"rating.{of}/{row['role']}/{row['member_id']}"] = row[of]
    for stage, seconds in watch.clock()[generation].items():
        found[f"seconds/{stage}"] = seconds
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def _name(row: Mapping[str, Any]) -> str:
    parts = (row["name"], row["role"], row["member_id"], row["opponent_id"], row["kind"])
    return "/".join(str(part) for part in parts if part is not None)
