"""Check that a vLLM engine serves the weights that the trainer trains, across the two processes that hold them.

vLLM has its own environment and process. A second copy of the base model there would use as much GPU memory as the
trainer's copy. So the engine's process completes the probe and the trainer's process scores it, before every propose and every
solve: after every start and every wake. A drift that would stop the run is measured again first, on a larger probe. An engine
that shares the trainer's process is checked there (`Backend.check_agreement`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from flows.backend import Backend
from flows.execution.run_stage import Spec
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.steps.part_work import propose_work, solve_work
from flows.storage import open_store
from stages.core import tables
from stages.core.engines.agreement import beyond, compare, probe

BackendOf = Callable[[Mapping[str, Any]], Backend]
CHECKED = ("propose", "solve")


def probed(spec: Spec, backend_of: BackendOf, more: bool = False) -> dict[str, Any]:
    """In the engine's process: return the probe's samples for the adapters that the step will use; none if it uses none."""
    backend, io = _opened(spec, backend_of)
    work = propose_work(io, backend.config) if spec.stage == "propose" else solve_work(io, backend.config, backend)
    if not work.adapters:
        return {"samples": []}
    adapters = io.adapters(work.adapters)
    samples = probe(backend.engine(adapters), adapters, backend.config.engine.temperature, more)
    return {"samples": samples.to_pylist()}


def compared(spec: Spec, samples: list[dict[str, Any]], backend_of: BackendOf, more: bool = False) -> dict[str, Any]:
    """In the trainer's process: return the drift of each adapter, and which are beyond the bounds.

    Raises Disagreement if any are on samples of `more`.
    """
    if not samples:
        return {"drift": {}, "beyond": []}
    backend, io = _opened(spec, backend_of)
    adapters, bounds = io.adapters(row["adapter_id"] for row in samples), backend.drift_bounds()
    probed = tables.table(samples, tables.SAMPLES)
    found = compare(backend.scorer(), adapters, probed, bounds) if more else backend.scorer().drift(adapters, probed)
    return {"drift": {adapter_id: asdict(drift) for adapter_id, drift in found.items()}, "beyond": beyond(found, bounds)}


def _opened(spec: Spec, backend_of: BackendOf) -> tuple[Backend, StageIO]:
    run = Run(open_store(spec.store), spec.run_id, spec.epoch)
    description = run.history.description()
    assert description is not None, f"run {spec.run_id} has no run.json"
    backend = backend_of(description["config"] | {"generations": spec.generations})
    model = backend.config.model
    return backend, StageIO(run, spec.stage, spec.generation, spec.part, model.name, model.alpha, held=backend.held)
