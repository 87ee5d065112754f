"""Which user functions, interpreters and sandboxes a run submitted through a server may name.

A command line belongs to its user: whoever types `populora run` may name any file. Anyone with the server's password can fill in
a form there. So every worker of ours sets POPULORA_FUNCTIONS (empty: no folder), and each process of a run inherits it. Workers
of Prefect's own set nothing: a run that one of them started is known by its id, and without the variable it has no folder.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDERS = "POPULORA_FUNCTIONS"
"""Folders whose functions and interpreters this worker's runs may name, separated as in PATH."""
FLOW_RUN = "PREFECT__FLOW_RUN_ID"
"""Every worker of Prefect sets it for the flow run that it starts. Flows that a command of ours calls do not have it."""
PROJECT = Path(__file__).resolve().parent.parent
INTERPRETERS = (sys.executable, str(PROJECT / ".venv-vllm" / "bin" / "python"), "/vllm/bin/python")
"""This interpreter, the one of `make vllm`, and the one of the GPU image."""


class NotAllowed(ValueError):
    """The run names something that only a command line may name. The message is one line that states what would allow it."""

    exit_code = 2


def worker_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a worker adds to the environment of its runs."""
    return {FOLDERS: environment.get(FOLDERS, "")}


def limited() -> bool:
    """Return whether this process works for a run that came in through a server."""
    return FOLDERS in os.environ or bool(os.environ.get(FLOW_RUN))


def folders() -> list[Path]:
    """Return the folders of this worker."""
    return [Path(folder).resolve() for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def place_of_interpreter(path: str) -> Path:
    """Return where an interpreter is. Links are kept: the Python of a virtual environment links outside it."""
    return Path(os.path.abspath(PROJECT / path))


def is_known_interpreter(path: str, trusted: Iterable[Path]) -> bool:
    """Return whether an interpreter is one of the project's own, or lies in one of these folders."""
    if os.pardir in Path(path).parts:  # after a link, `..` leads elsewhere than the text says
        return False
    place = place_of_interpreter(path)
    return str(place) in INTERPRETERS or is_inside(place, trusted)


def is_inside(place: Path, trusted: Iterable[Path]) -> bool:
    """Return whether a file lies in one of these folders."""
    return any(place.is_relative_to(folder) for folder in trusted)


def check_function(key: str, path: str) -> None:
    """Raise NotAllowed unless the file of a user's function may be loaded here."""
    if limited() and not is_inside(Path(path).resolve(), folders()):
        raise NotAllowed(f"{key}: {path} is outside the folders that this worker allows (--functions FOLDER)")


def check_interpreter(path: str) -> None:
    """Raise NotAllowed unless a stage may run with this Python here."""
    if limited() and path and not is_known_interpreter(path, folders()):
        raise NotAllowed(f"engine.python: {path} is outside the folders that this worker allows (--functions FOLDER)")


def check_sandbox(kind: str) -> None:
    """Raise NotAllowed unless model-written programs run in a container, which every run of a server requires."""
    if limited() and kind != "docker":
        raise NotAllowed(f"sandbox.kind: {kind!r} does not isolate programs; runs on a server require docker")
