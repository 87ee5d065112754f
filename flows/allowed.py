"""Which user functions, interpreters and sandboxes a run submitted through a server may name.

A command line belongs to its user: whoever types `populora run` may name any file. Anyone with the server's password can fill in
a form there. So every worker sets POPULORA_FUNCTIONS (empty: no folder), and each process of a run inherits it.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDERS = "POPULORA_FUNCTIONS"
"""Folders whose functions and interpreters this worker's runs may name, separated as in PATH. Unset: no worker, no limit."""
PROJECT = Path(__file__).resolve().parent.parent
INTERPRETERS = (sys.executable, str(PROJECT / ".venv-vllm" / "bin" / "python"), "/vllm/bin/python")
"""This interpreter, the one of `make vllm`, and the one of the GPU image."""


class NotAllowed(ValueError):
    """The run names something that only a command line may name. The message is one line that states what would allow it."""

    exit_code = 2


def worker_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a worker adds to the environment of its runs."""
    return {FOLDERS: environment.get(FOLDERS, "")}


def check_function(key: str, path: str) -> None:
    """Raise NotAllowed unless the file of a user's function may be loaded here."""
    if FOLDERS in os.environ and not _inside(Path(path).resolve()):
        raise NotAllowed(f"{key}: {path} is outside the folders that this worker allows (--functions FOLDER)")


def check_interpreter(path: str) -> None:
    """Raise NotAllowed unless a stage may run with this Python here."""
    if FOLDERS not in os.environ or not path:
        return
    place = os.path.abspath(PROJECT / path)  # not resolved: the Python of a virtual environment links outside it
    if place not in INTERPRETERS and not _inside(Path(place)):
        raise NotAllowed(f"engine.python: {path} is outside the folders that this worker allows (--functions FOLDER)")


def check_sandbox(kind: str) -> None:
    """Raise NotAllowed unless model-written programs run in a container, which every run of a server requires."""
    if FOLDERS in os.environ and kind != "docker":
        raise NotAllowed(f"sandbox.kind: {kind!r} does not isolate programs; runs on a server require docker")


def _inside(place: Path) -> bool:
    folders = [Path(folder).resolve() for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    return any(place.is_relative_to(folder) for folder in folders)
