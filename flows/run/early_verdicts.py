"""Early verdicts on this machine: files that the process of a rollout leaves for the process that judges.

No artifacts: a verdict that is missing is found by the sandbox. The files are in a folder that only this user may enter, which
the process that starts others makes and removes.
"""

import atexit
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from flows.run.stage_io import StageIO
from stages.core.judging.early import from_lines, to_lines
from stages.core.sandbox.protocol import Job, Verdict

FOLDER = "POPULORA_EARLY"
"""Where a stage process finds the folder; unset in a process that nobody started as one."""
FOUND_BY = {"verify": "propose", "grade": "solve"}
"""The stage whose completions a stage judges."""


@cache
def folder() -> Path:
    """Return the folder, which may not exist yet: the environment's, or one for this process and those that it starts."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    own = Path(tempfile.gettempdir()) / f"populora-early-{uuid.uuid4().hex}"
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def leave(io: StageIO, known: Mapping[Job, Verdict], found_under: str) -> None:
    """Write what a rollout or a part of it has found, and remove what earlier stages of the run left. Raises OSError."""
    folder().mkdir(mode=0o700, exist_ok=True)
    name = _name(io, io.stage)
    for other in folder().glob(f"{_run(io)}-*"):
        if not other.name.startswith(name):
            other.unlink(missing_ok=True)
    file = folder() / f"{name}-{io.part or 'whole'}"
    part = file.with_name(f".{file.name}")
    part.write_text("\n".join(to_lines(known, found_under)), encoding="ascii")
    part.replace(file)


def left(io: StageIO) -> list[Path]:
    """Return the files with verdicts on what the stage judges."""
    return sorted(folder().glob(f"{_name(io, FOUND_BY[io.stage])}-*"))


def read(files: list[Path], found_under: str) -> dict[Job, Verdict]:
    """Return the verdicts in the files that were found under these conditions. Raises OSError and ValueError."""
    known: dict[Job, Verdict] = {}
    for file in files:
        known |= from_lines(_lines(file), found_under)
    return known


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="ascii") as lines:
        yield from lines


def _name(io: StageIO, stage: str) -> str:
    return f"{_run(io)}-{io.generation:04d}-{stage}"


def _run(io: StageIO) -> str:
    return hashlib.sha256(f"{io.run.store.url} {io.run.run_id}".encode()).hexdigest()[:16]
