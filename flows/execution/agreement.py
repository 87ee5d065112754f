"""Check that a vLLM engine serves the weights that the trainer trains, across the two processes that hold them.

vLLM has its own environment and process. A second copy of the base model there would use as much GPU memory as the
trainer's copy. So the engine's process completes the probe and the trainer's process scores it, before every propose and every
solve: after every start and every wake. An engine that shares the trainer's process is checked there (`Backend.check_agreement`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from flows.backend import Backend
from flows.execution.run_stage import Spec
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import open_store
from stages.core import tables
from stages.core.engines.agreement import compare, probe
from stages.core.lora.adapter import Adapter

BackendOf = Callable[[Mapping[str, Any]], Backend]
CHECKED = {"propose": "teacher_adapter_id", "solve": "student_adapter_id"}


def probed(spec: Spec, backend_of: BackendOf) -> dict[str, Any]:
    """In the engine's process: return the probe's samples for the adapters that the step will use."""
    backend, adapters = _read(spec, backend_of)
    samples = probe(backend.engine(adapters), adapters, backend.config.engine.temperature)
    return {"samples": samples.to_pylist()}


def compared(spec: Spec, samples: list[dict[str, Any]], backend_of: BackendOf) -> dict[str, Any]:
    """In the trainer's process: return the drift of each adapter. Raises Disagreement."""
    backend, adapters = _read(spec, backend_of)
    found = compare(backend.scorer(), adapters, tables.table(samples, tables.SAMPLES), backend.drift_bounds())
    return {"drift": {adapter_id: asdict(drift) for adapter_id, drift in found.items()}}


def _read(spec: Spec, backend_of: BackendOf) -> tuple[Backend, dict[str, Adapter]]:
    run = Run(open_store(spec.store), spec.run_id, spec.epoch)
    description = run.history.description()
    assert description is not None, f"run {spec.run_id} has no run.json"
    backend = backend_of(description["config"] | {"generations": spec.generations})
    model = backend.config.model
    io = StageIO(run, spec.stage, spec.generation, spec.part, model.name, model.alpha, held=backend.held)
    return backend, io.adapters(io.table("matches")[CHECKED[spec.stage]].to_pylist())
