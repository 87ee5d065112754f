"""A side of a bench in a process of its own: a script that builds it once, then answers each turn.

The script is run by the interpreter and in the checkout that the side belongs to, with its specification as JSON in the first
argument. It answers each line of standard input with a line `side: ` and a JSON object.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

_ANSWER = "side: "
VLLM_CACHE = "3"  # GiB


class Side:
    """The process. `spec` holds what the script needs, and `threads`."""

    def __init__(self, script: str, python: str, checkout: Path, spec: dict[str, Any]) -> None:
        self._command = [python, "-P", script, json.dumps(spec)]
        self._checkout, self._threads = checkout, spec["threads"]

    def __enter__(self) -> "Side":
        environment = os.environ | {"PYTHONPATH": str(self._checkout), "OMP_NUM_THREADS": str(self._threads)}
        # on a CPU vLLM takes half the machine's memory by default, and the sides share it
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", VLLM_CACHE)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(self._command, cwd=self._checkout, env=environment, **pipes)  # type: ignore[call-overload]
        return self

    def turn(self) -> dict[str, Any]:
        """Return what the script says of one turn. Raise RuntimeError if the process has ended."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # engines print lines of their own
            if line.startswith(_ANSWER):
                found: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
                return found
        raise RuntimeError(f"a side of the bench ended with code {self._process.wait()}: {self._command}")

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)  # closes its pipes, and with them its loop
