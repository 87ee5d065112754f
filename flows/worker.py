"""The stage subprocess: runs steps of a run under the configured interpreter, without Prefect.

    python -m flows.worker STAGE --spec FILE      one step, then exit
    python -m flows.worker --warm                 orders from standard input, one JSON object per line, until it closes

An order is a step, or a request to the engine (flows.execution.remote_engine). A step is an object with the fields of
flows.execution.run_stage.Spec, which `--help` names. Answers are JSON lines on standard output. Readings of the step's progress,
{"progress": ...}, come before its answer. What stages print goes to standard error. A warm worker keeps imports and the base
model between steps, and performs either side of the check before them (flows.execution.agreement). Exit codes are those of the
command line.
"""

import argparse
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from flows.backend import Backend
from flows.base_model.hub import ModelMissing
from flows.config import ConfigError, RunConfig, parse
from flows.execution.agreement import compared, probed
from flows.execution.remote_engine import KEY, Served
from flows.execution.run_stage import OPTIONAL, REQUIRED, WHERE, execute, read_spec
from flows.execution.stage_process import REST
from flows.monitoring.meter import Meter, Reading
from flows.run.held_adapters import HeldAdapters
from stages.core.child_process import PROGRESS, answer, orders


def main() -> int:
    """Run one step or serve many; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m flows.worker", description="Run steps of a run without Prefect.")
    parser.add_argument("stage", nargs="?")
    needed = ", ".join(name for name in REQUIRED if name != "stage")
    parser.add_argument(
        "--spec", type=Path, metavar="FILE", help=f"JSON object with {needed}; {', '.join(OPTIONAL)} may be left out"
    )
    parser.add_argument("--warm", action="store_true", help="serve steps from standard input")
    parser.add_argument(
        "--early", action="store_true", help="read a run's configuration from the first line, check it, then load its model"
    )
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    faulthandler.register(WHERE, all_threads=True)
    os.dup2(2, 1)  # output that a library prints must not break the protocol
    if arguments.warm:
        _die_with_parent()
        backends = _Backends(answers)
        specs = orders(sys.stdin)
        if arguments.early:
            _begin(next(specs), answers, backends)
        return _serve(specs, answers, backends)
    if arguments.spec is None or arguments.stage is None:
        parser.error("give STAGE --spec FILE, or --warm")
    read, code = _answer(partial(_order, arguments.spec, arguments.stage))
    if code:
        answer(answers, read)
        return code
    return _serve(iter([read["done"]]), answers, _Backends(answers, holds=False))


def _order(file: Path, stage: str) -> dict[str, Any]:
    """Return the step that a file describes. Raises ConfigError for a file that is no JSON object, or cannot be read."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: give a JSON object")
    return values | {"stage": stage}


class _Backends:
    """The backends of this process, one per configuration. While a step runs, their progress is printed among the answers."""

    def __init__(self, answers: TextIO, holds: bool = True) -> None:
        """`holds`: adapters stay in memory for a next step."""
        self._answers, self._made, self._running = answers, dict[RunConfig, Backend](), False
        self._holds = holds
        self._meter = Meter(self._hand_on)
        self._served = Served(self.of)

    def of(self, config: RunConfig) -> Backend:
        """Return the backend of a configuration, creating it on first use."""
        if config not in self._made:
            made = self._made[config] = Backend(config, self._meter)
            if not self._holds:
                made.held = HeldAdapters(0)
        return self._made[config]

    def work(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run a step, or one side of the check before it, and report its progress."""
        self._meter.begin()
        self._running = True
        try:
            if KEY in order:
                return self._served.answer(order)
            if REST in order:
                return self._rest()
            if "compare" in order:
                return compared(read_spec(order["compare"]), order["probe"], self._stored, order["again"])
            if "probe" in order:
                return probed(read_spec(order["probe"]), self._stored, order["again"])
            return execute(read_spec(order), self._stored)
        finally:
            self._running = False

    def _rest(self) -> dict[str, Any]:
        for backend in self._made.values():
            backend.rest()
        return {}

    def _stored(self, values: Mapping[str, Any]) -> Backend:
        return self.of(parse(dict(values)))

    def close(self) -> None:
        """Close what the backends hold."""
        for backend in self._made.values():
            backend.close()

    def _hand_on(self, reading: Reading) -> None:
        if self._running:  # no one listens before a step
            answer(self._answers, {PROGRESS: asdict(reading)})


def _begin(order: dict[str, Any], answers: TextIO, backends: _Backends) -> None:
    """Report whether a run of this configuration can begin, then prepare what its first steps need."""
    config = parse(order["config"])
    values, code = _answer(partial(_check, config, backends))
    answer(answers, values)
    if code == 0 and order["prepare"] and config.engine.kind != "vllm":  # vLLM has its own interpreter and worker
        with suppress(Exception):  # the step that needs it will report it
            backends.of(config).suites.probe_keys()
            backends.of(config).engine({})


def _serve(specs: Iterator[dict[str, Any]], answers: TextIO, backends: _Backends) -> int:
    """Answer each spec and return the exit code of the last one. Backends are kept by configuration."""
    code = 0
    try:
        for spec in specs:
            values, code = _answer(partial(backends.work, spec))
            answer(answers, values)
    finally:
        backends.close()
    return code


def _check(config: RunConfig, backends: _Backends) -> dict[str, Any]:
    backends.of(config).check_run()
    return {}


def _answer(work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """Return what the work returns, or what went wrong, as JSON values, with the exit code."""
    try:
        return {"done": work()}, 0
    except ModelMissing as error:
        return {"error": "ModelMissing", "message": str(error)}, 2
    except ConfigError as error:
        return {"error": "ConfigError", "message": str(error)}, 2
    except Exception as error:
        if of_device(error):
            traceback.print_exc()
            return {"error": "EngineUnavailable", "message": str(error)}, 3
        if not hasattr(error, "exit_code"):  # no error of ours that explains itself in one line
            traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error)}, getattr(error, "exit_code", 1)


def of_device(error: Exception) -> bool:
    """Return whether a card or its driver failed: an external fault. That a card's memory is full is a fault of the plan."""
    return isinstance(error, RuntimeError) and any(name in str(error) for name in ("CUDA error", "cuDNN", "CUDNN", "NVML"))


def _die_with_parent() -> None:
    """Kill this process group when the parent is gone: a killed flow must not leave a worker on the GPU."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
