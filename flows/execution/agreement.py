"""Check that a vLLM engine serves the weights that the trainer trains, across the two processes that hold them.

vLLM has its own environment and process. A second copy of the base model there would use as much GPU memory as the
trainer's copy. So the engine's process completes the probe and the trainer's process scores it, before every propose and every
solve: after every start and every wake. An adapter whose drift would stop the run is first asked again, with a larger probe. An
engine that shares the trainer's process is checked there (`Backend.check_agreement`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flows.backend import Backend
from flows.execution.run_stage import Spec
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.steps.part_work import propose_work, solve_work
from flows.storage import open_store
from stages.core import tables
from stages.core.engines.agreement import beyond, compare, measured, probe

BackendOf = Callable[[Mapping[str, Any]], Backend]
CHECKED = ("propose", "solve")


def probed(spec: Spec, backend_of: BackendOf, again: Sequence[str] = ()) -> dict[str, Any]:
    """In the engine's process: return the probe's samples for the adapters that the step will use; none if it uses none.

    `again` has those that are beyond the bounds: the larger sample is theirs alone, and the engine goes on serving all.
    """
    backend, io = _opened(spec, backend_of)
    work = propose_work(io, backend.config) if spec.stage == "propose" else solve_work(io, backend.config, backend)
    if not work.adapters:
        return {"adapters": [], "samples": []}
    adapters = io.adapters(work.adapters)
    samples = probe(backend.engine(adapters), adapters, backend.config.engine.temperature, again)
    return {"adapters": list(adapters), "samples": samples.to_pylist()}


def compared(spec: Spec, probe: Mapping[str, Any], backend_of: BackendOf, again: Sequence[str] = ()) -> dict[str, Any]:
    """In the trainer's process: return the drift of each adapter that was asked, and which are beyond the bounds.

    All of the step's adapters are in the trainer's stack, also for the larger sample: its size is what the memory plan counts.
    Raises Disagreement if any of `again` are beyond the bounds.
    """
    if not probe["samples"]:
        return {"drift": {}, "beyond": []}
    backend, io = _opened(spec, backend_of)
    adapters, bounds, scorer = io.adapters(probe["adapters"]), backend.drift_bounds(), backend.scorer()
    samples = tables.table(probe["samples"], tables.SAMPLES)
    found = compare(scorer, adapters, samples, bounds) if again else measured(scorer, adapters, samples)
    return {"drift": {adapter_id: asdict(drift) for adapter_id, drift in found.items()}, "beyond": beyond(found, bounds)}


def _opened(spec: Spec, backend_of: BackendOf) -> tuple[Backend, StageIO]:
    run = Run(open_store(spec.store), spec.run_id, spec.epoch)
    description = run.history.description()
    assert description is not None, f"run {spec.run_id} has no run.json"
    backend = backend_of(description["config"] | {"generations": spec.generations})
    model = backend.config.model
    return backend, StageIO(run, spec.stage, spec.generation, spec.part, model.name, model.alpha, held=backend.held)
