"""Early verdicts on this machine: files that the process of a rollout leaves for the process that judges.

No artifacts: a verdict that is missing is found by the sandbox. Their folder belongs to the session of the run, which makes and
removes it; only this user may enter it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.run.stage_io import StageIO
from stages.core.judging.early import from_lines, to_lines
from stages.core.sandbox.protocol import Job, Verdict

FOUND_BY = {"verify": "propose", "grade": "solve"}
"""The stage whose completions a stage judges."""


def leave(io: StageIO, known: Mapping[Job, Verdict], found_under: str) -> None:
    """Write what a rollout or a part of it has found, and remove what earlier stages left. Raises OSError."""
    assert io.verdicts is not None
    name = _name(io, io.stage)
    for other in io.verdicts.glob("[0-9]*"):
        if not other.name.startswith(name):
            other.unlink(missing_ok=True)
    file = io.verdicts / f"{name}{io.part or 'whole'}"
    part = file.with_name(f".{file.name}")
    part.write_text("\n".join(to_lines(known, found_under)), encoding="ascii")
    part.replace(file)


def left(io: StageIO) -> list[Path]:
    """Return the files with verdicts on what the stage judges."""
    return [] if io.verdicts is None else sorted(io.verdicts.glob(f"{_name(io, FOUND_BY[io.stage])}*"))


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
    return f"{io.generation:04d}-{stage}-"
