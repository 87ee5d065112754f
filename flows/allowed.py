"""What a run that came in through a server may name: the user's functions, interpreters, and never the sandbox that is no wall.

A command line is its user's own: whoever types `populora run` may name any file. A form on a server is not: everybody who has its
password fills it in. So every worker sets POPULORA_FUNCTIONS (empty: no folder), and each process of a run inherits it.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDERS = "POPULORA_FUNCTIONS"
"""Folders whose functions and interpreters runs of this worker may name, separated as in PATH. Absent: no worker, no limit."""
PROJECT = Path(__file__).resolve().parent.parent
INTERPRETERS = (sys.executable, str(PROJECT / ".venv-vllm" / "bin" / "python"), "/vllm/bin/python")
"""Those of `make vllm` and of the GPU image."""


class NotAllowed(ValueError):
    """The run names something that only a command line may name; one line that says what would allow it."""

    exit_code = 2


def worker_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a worker adds to the environment of its runs."""
    return {FOLDERS: environment.get(FOLDERS, "")}


def check_function(key: str, path: str) -> None:
    """Raises NotAllowed unless the file of a user's function may be loaded here."""
    if FOLDERS in os.environ and not _inside(Path(path).resolve()):
        raise NotAllowed(f"{key}: {path} is in no folder that this worker was allowed (--functions FOLDER)")


def check_interpreter(path: str) -> None:
    """Raises NotAllowed unless a stage may run with this Python here."""
    if FOLDERS not in os.environ or not path:
        return
    place = os.path.abspath(PROJECT / path)  # not resolved: the Python of a virtual environment is a link out of it
    if place not in INTERPRETERS and not _inside(Path(place)):
        raise NotAllowed(f"engine.python: {path} is in no folder that this worker was allowed (--functions FOLDER)")


def check_sandbox(kind: str) -> None:
    """Raises NotAllowed for model-written programs outside a container, which nobody may ask of a server."""
    if FOLDERS in os.environ and kind != "docker":
        raise NotAllowed(f"sandbox.kind: {kind} has no walls; runs of a server use docker")


def _inside(place: Path) -> bool:
    folders = [Path(folder).resolve() for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    return any(place.is_relative_to(folder) for folder in folders)
