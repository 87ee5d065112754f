"""Whether a run has anything left to compute. If not, it needs no card, vLLM, sandbox or other machine."""

from collections.abc import Iterator

from flows.config import ConfigError, RunConfig, apply
from flows.execution.parts import parts_of
from flows.run.planned import GENERATIONS
from flows.run.resume import intact
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored


def nothing_left(run: Run, generations: int) -> bool:
    """Return whether a resume to so many generations would compute nothing.

    The start and each step of the last generation are finished, and nothing between them is missing or marked as damaged. Only a
    run that has its last manifests is looked at closely.
    """
    description = run.history.description()
    if description is None or not _has_ended(run, generations - 1):
        return False
    try:
        config = apply(description["config"] | {GENERATIONS: generations}, [])
        whole = run.finished("start") is not None and intact(run)  # first: which parts there are is read from tables
        return whole and all(run.finished(stage, generations - 1, part) for stage, part in _steps(run, config))
    except (ConfigError, Damaged, NotStored):  # a resume says so, or makes it again
        return False


def _has_ended(run: Run, last: int) -> bool:
    try:
        return run.manifest(STAGE_NAMES[-1], last) is not None
    except Damaged:
        return False


def _steps(run: Run, config: RunConfig) -> Iterator[tuple[str, str | None]]:
    """Yield the steps of the last generation: each stage, and its parts."""
    last = config.generations - 1
    for stage in STAGE_NAMES:
        yield stage, None
        yield from ((stage, part) for part, _ in parts_of(run, config, stage, last))
