"""Run one step of a run, wherever it runs: in the flow's own process, in a warm worker, or alone on another machine."""

import os
import platform
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flows.backend import Backend
from flows.choices import check_sources
from flows.config import RunConfig, parse
from flows.execution import cards
from flows.execution.parts import step_of
from flows.run.manifest import digest, folder_of
from flows.run.run import Manifest, Run
from flows.run.stage_io import StageIO
from flows.storage import open_store
from stages.core.row_errors import RowFailed

WHERE = signal.SIGUSR1
"""Makes a worker write where it is to standard error, even in the middle of one long call."""


@dataclass(frozen=True)
class Spec:
    """Identifies a step: `generation` None means `start`, `part` names one of a stage's parallel parts."""

    store: str
    run_id: str
    stage: str
    generation: int | None
    part: str | None
    epoch: int | None
    generations: int  # may have been raised since run.json was written


Reference = dict[str, Any]


def execute(spec: Spec, backend_of: Callable[[Mapping[str, Any]], Backend]) -> Reference:
    """Run the step unless it is done, and return its small reference: manifest digest and outputs' rows."""
    run = Run(open_store(spec.store), spec.run_id, spec.epoch)
    if finished := run.finished(spec.stage, spec.generation, spec.part):
        return reference(finished)
    description = run.history.description()
    assert description is not None, f"run {spec.run_id} has no run.json"
    check_sources(parse(description["config"]), description["versions"], spec.run_id)
    backend = backend_of(description["config"] | {"generations": spec.generations})
    return reference(perform(run, spec, backend.config, backend))


def perform(run: Run, spec: Spec, config: RunConfig, backend: Backend) -> Manifest:
    """Run the step and commit it."""
    io = StageIO(run, spec.stage, spec.generation, spec.part, config.model.name, config.model.alpha)
    began, cpu = time.monotonic(), time.process_time()
    started = time.time()
    forget_gpu_memory()
    try:
        step_of(io, config)(io, config, backend)
    except RowFailed as error:
        place = f"{spec.run_id}/{folder_of(spec.generation)}"
        where = f"{place}/{error.table}.parquet" if error.table else f"{place}, not stored yet"
        raise RowFailed(where, error.row, error.problem) from error
    return io.commit(
        {
            "started": started,
            "seconds": round(time.monotonic() - began, 3),
            "cpu_seconds": round(time.process_time() - cpu, 3),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **gpu_memory(),
            **cards.recorded(),
            "host": os.environ.get("POPULORA_NODE") or socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
        }
    )


def reference(manifest: Manifest) -> Reference:
    """Return what Prefect tasks pass to each other: small, plain, the same for equal runs."""
    return {
        "stage": manifest.stage,
        "generation": manifest.generation,
        "manifest": digest(manifest),
        "rows": {ref.uri: ref.rows for ref in manifest.outputs if ref.rows is not None},
    }


def forget_gpu_memory() -> None:
    """Reset the peak that `gpu_memory` reports. Does nothing unless this process has loaded torch and uses a GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def gpu_memory() -> dict[str, int]:
    """Return the peak memory of this process's tensors, empty without a GPU. vLLM's separate process is not counted."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"peak_gpu_memory_mb": int(torch.cuda.max_memory_allocated()) >> 20}
