"""Which code a machine runs: its version and a digest of its sources, so that machines of other code do not share a run."""

import hashlib
import socket
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from flows.config import PROJECT
from stages.core.unavailable import Unsuited

PACKAGE = "populora-pipeline"
_PACKAGES = ("flows", "stages")


def version_of(project: Path) -> str:
    """Return the installed project's version, a digest of a folder's Python sources, and the other versions that must be equal.

    As `0.2.0+1f3a9c07 torch 2.13.0 prefect 3.8.8`. Builds of torch for CPU and CUDA count as one version.
    """
    packages = " ".join(f"{name} {version(name).partition('+')[0]}" for name in ("torch", "prefect"))
    return f"{version(PACKAGE)}+{_digest(project)} {packages}"


def own_version() -> str:
    """Return the version that this process began with: it keeps the modules that it has loaded, whatever the files are now."""
    return _OWN


def check_version(asked: str) -> None:
    """Raise Unsuited if a run asks that has other code than this machine: another worker may take the step."""
    if asked and asked != (own := own_version()):
        worker = f"the worker on {socket.gethostname()} has version {own}"
        raise Unsuited(f"{worker}, the run {asked}: install the same version there and start its worker again")


def code_stamp() -> str:
    """Return what changes when the code on this machine does: a process keeps the modules that it has loaded."""
    files = list[tuple[str, int, int]]()
    for file in _sources(PROJECT):
        with suppress(FileNotFoundError):  # gone meanwhile, as during a `git pull`
            found = file.stat()
            files.append((str(file), found.st_mtime_ns, found.st_size))
    return hashlib.sha256(repr(files).encode()).hexdigest()


def _digest(project: Path) -> str:
    """Hash names and contents. A stamp would tell copies of the same code apart."""
    found = hashlib.sha256()
    for file in _sources(project):
        with suppress(FileNotFoundError):
            content = hashlib.sha256(file.read_bytes()).digest()
            found.update(f"{file.relative_to(project).as_posix()}\0".encode() + content)
    return found.hexdigest()[:8]


def _sources(project: Path) -> list[Path]:
    """Return the modules; an editor's own files begin with a dot."""
    found = (file for package in _PACKAGES for file in sorted((project / package).rglob("*.py")))
    return [file for file in found if not file.name.startswith(".")]


_OWN = version_of(PROJECT)
