"""Run one step of a run, wherever it runs: in the flow's own process, in a warm worker, or alone on another machine."""

import os
import platform
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flows import cards
from flows.backend import Backend
from flows.choices import check_sources
from flows.config import ConfigError, RunConfig, parse
from flows.execution.energy import Energy, card_counters, processor_counters
from flows.execution.freed_memory import give_back_freed_memory
from flows.execution.parts import step_of
from flows.execution.peak_memory import forget_peaks, peaks
from flows.monitoring.prices import of_machine
from flows.run.lease import STEP_PATIENCE
from flows.run.manifest import digest, folder_of
from flows.run.planned import GENERATIONS
from flows.run.run import Manifest, Run
from flows.run.stage_io import StageIO
from flows.settings import Cost
from flows.stages import STAGE_NAMES, START, stage_of
from flows.storage import open_store
from stages.core.engines.counted import TokenCount
from stages.core.row_errors import RowFailed

WHERE = signal.SIGUSR1
"""Makes a worker write where it is to standard error, even in the middle of one long call."""


@dataclass(frozen=True)
class Spec:
    """Identifies a step: `generation` None means `start`, `part` names one of a stage's parallel parts.

    `epoch` is the right to commit (flows.run.lease); None where the caller has none.
    """

    store: str
    run_id: str
    stage: str
    generation: int | None
    part: str | None
    epoch: int | None
    generations: int  # may have been raised since run.json was written
    cost: dict[str, Any] = field(default_factory=dict, compare=False)  # the run's prices (flows.settings.Cost), for the clock
    verdicts: str = field(default="", compare=False)  # folder for early verdicts; empty: rollouts and judges share no machine
    joins: bool = field(default=False, compare=False)  # the stage's parts are done, and this step joins them

    @property
    def uses_gpu(self) -> bool:
        """Whether the step uses a GPU where there is one."""
        return stage_of(self.stage).uses_gpu(self.part, self.joins)


REQUIRED = tuple(one.name for one in fields(Spec) if one.default is MISSING and one.default_factory is MISSING)
OPTIONAL = tuple(one.name for one in fields(Spec) if one.name not in REQUIRED)


def read_spec(values: object) -> Spec:
    """Return the step that a JSON object names. Raises ConfigError, in one line, if it names none."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"step: give a JSON object with {', '.join(REQUIRED)}")
    if unknown := [str(name) for name in values if name not in (*REQUIRED, *OPTIONAL)]:
        raise ConfigError(f"step: there is no field {', '.join(unknown)}; it takes {', '.join((*REQUIRED, *OPTIONAL))}")
    if missing := [name for name in REQUIRED if name not in values]:
        raise ConfigError(f"step: {', '.join(missing)} missing; it requires {', '.join(REQUIRED)}")
    try:
        spec = _SPEC.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"step: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if spec.stage not in (START.name, *STAGE_NAMES):
        raise ConfigError(f"step: there is no stage {spec.stage!r}; choose one of {', '.join((START.name, *STAGE_NAMES))}")
    return spec


_SPEC = TypeAdapter(Spec)
Reference = dict[str, Any]


def execute(spec: Spec, backend_of: Callable[[Mapping[str, Any]], Backend]) -> Reference:
    """Run the step unless it is done, and return its small reference: manifest digest and outputs' rows."""
    run = Run(open_store(spec.store, STEP_PATIENCE), spec.run_id, spec.epoch)
    if finished := run.finished(spec.stage, spec.generation, spec.part):
        return reference(finished)
    description = run.history.description()
    assert description is not None, f"run {spec.run_id} has no run.json"
    check_sources(parse(description["config"]), description["versions"], spec.run_id)
    backend = backend_of(description["config"] | {"generations": spec.generations})
    return reference(perform(run, spec, backend.config, backend))


def perform(run: Run, spec: Spec, config: RunConfig, backend: Backend) -> Manifest:
    """Run the step and commit it."""
    verdicts = Path(spec.verdicts) if spec.verdicts else None
    io = StageIO(run, spec.stage, spec.generation, spec.part, config.model.name, config.model.alpha, verdicts, backend.held)
    rule, tokens = of_machine(Cost.model_validate(spec.cost)), replace(backend.tokens)
    began, cpu = time.monotonic(), time.process_time()
    started = time.time()
    forget_peaks()
    energy = Energy(card_counters(config.model.device) if spec.uses_gpu else {}, processor_counters())
    try:
        with energy:
            step_of(io, config)(io, config, backend)
    except RowFailed as error:
        place = f"{spec.run_id}/{folder_of(spec.generation)}"
        where = f"{place}/{error.table}.parquet" if error.table else f"{place}, not stored yet"
        raise RowFailed(where, error.row, error.problem) from error
    finally:
        give_back_freed_memory()
    return io.commit(
        {
            "started": started,
            GENERATIONS: spec.generations,
            "seconds": round(time.monotonic() - began, 3),
            "cpu_seconds": round(time.process_time() - cpu, 3),
            **peaks(),
            **cards.recorded(),
            **cost_recorded(rule, energy.recorded(), tokens, backend.tokens),
            "host": os.environ.get("POPULORA_NODE") or socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
        }
    )


def cost_recorded(rule: Cost, energy: Mapping[str, Any], before: TokenCount, after: TokenCount) -> dict[str, Any]:
    """Return what a manifest's clock says about the cost of a step, besides its seconds. What is not known has no key.

    `watts` are for an estimate, and stand there only if the processor's energy was not measured.
    """
    tokens = {name: count - asdict(before)[name] for name, count in asdict(after).items()}
    priced = rule.machine_hour or rule.kwh
    return (
        ({"tokens": tokens} if any(tokens.values()) else {})
        | ({"energy": dict(energy)} if energy else {})
        | ({"watts": rule.watts} if rule.watts and "processor" not in energy else {})
        | ({"price": {"machine_hour": rule.machine_hour, "kwh": rule.kwh, "currency": rule.currency}} if priced else {})
    )


def reference(manifest: Manifest) -> Reference:
    """Return what Prefect tasks pass to each other: small, plain, the same for equal runs."""
    return {
        "stage": manifest.stage,
        "generation": manifest.generation,
        "manifest": digest(manifest),
        "rows": {ref.uri: ref.rows for ref in manifest.outputs if ref.rows is not None},
    }
