"""The stage subprocess: runs steps of a run where the configuration says so, without Prefect.

    python -m flows.worker STAGE --spec FILE      one step, then exit
    python -m flows.worker --warm                 steps from standard input, a JSON object a line, until it closes

A spec is {"store", "run_id", "generation", "stage", "part", "epoch"}. Answers are JSON lines on standard output; what stages
print goes to standard error. A warm worker keeps imports and the base model between steps. Exit codes are the command line's.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from flows.backend import Backend
from flows.config import ConfigError, RunConfig, parse
from flows.execution.run_stage import Spec, execute
from flows.storage import StoreUnavailable
from stages.core.engines.protocol import EngineUnavailable
from stages.core.sandbox.protocol import SandboxUnavailable

UNREACHABLE = (StoreUnavailable, EngineUnavailable, SandboxUnavailable)


def main() -> int:
    """Runs one step or serves many; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m flows.worker", description="Runs steps of a run without Prefect.")
    parser.add_argument("stage", nargs="?")
    parser.add_argument("--spec", type=Path, help="JSON file that names store, run, generation and part")
    parser.add_argument("--warm", action="store_true", help="serve steps from standard input")
    parser.add_argument(
        "--early", action="store_true", help="the first line names a run's configuration: check it, then load its model"
    )
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library that prints must not break the protocol
    if arguments.warm:
        _die_with_parent()
        backends: dict[RunConfig, Backend] = {}
        specs = _lines(sys.stdin)
        if arguments.early:
            _begin(next(specs), answers, backends)
        return _serve(specs, answers, backends)
    if arguments.spec is None or arguments.stage is None:
        parser.error("give STAGE --spec FILE, or --warm")
    spec = json.loads(arguments.spec.read_text(encoding="utf-8")) | {"stage": arguments.stage}
    return _serve(iter([spec]), answers, {})


def _lines(stream: TextIO) -> Iterator[dict[str, Any]]:
    for line in stream:
        yield json.loads(line)


def _begin(order: dict[str, Any], answers: TextIO, backends: dict[RunConfig, Backend]) -> None:
    """Says whether a run of this configuration can begin, and then makes ready what its first steps will want."""
    config = parse(order["config"])
    answer, code = _answer(partial(_check, config, backends))
    print(json.dumps(answer), file=answers)
    if code == 0 and order["prepare"] and config.engine.kind != "vllm":  # vLLM has an interpreter and a worker of its own
        with suppress(Exception):  # the step that needs it will say it
            backends[config].probe_keys()
            backends[config].engine({})


def _serve(specs: Iterator[dict[str, Any]], answers: TextIO, backends: dict[RunConfig, Backend]) -> int:
    """Answers each spec; the exit code of the last one. Backends are kept by configuration."""
    code = 0
    try:
        for values in specs:
            answer, code = _answer(partial(_execute, Spec(**values), backends))
            print(json.dumps(answer), file=answers)
    finally:
        for backend in backends.values():
            backend.close()
    return code


def _check(config: RunConfig, backends: dict[RunConfig, Backend]) -> dict[str, Any]:
    _backend(config, backends).check()
    return {}


def _execute(spec: Spec, backends: dict[RunConfig, Backend]) -> dict[str, Any]:
    return execute(spec, lambda values: _backend(parse(dict(values)), backends))


def _answer(work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """What the work gives, or what went wrong, as JSON values; with the exit code."""
    try:
        return {"done": work()}, 0
    except ConfigError as error:
        return {"error": "ConfigError", "message": str(error)}, 2
    except UNREACHABLE as error:
        return {"error": type(error).__name__, "message": str(error)}, 3
    except Exception as error:
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error)}, 1


def _backend(config: RunConfig, backends: dict[RunConfig, Backend]) -> Backend:
    if config not in backends:
        backends[config] = Backend(config)
    return backends[config]


def _die_with_parent() -> None:
    """Ends this process group when the parent is gone: a killed flow must not leave a worker on the GPU."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
