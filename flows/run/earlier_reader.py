"""The index of the tasks before a generation, kept in a process: each earlier table is read once, whatever stages ask for it."""

from dataclasses import dataclass, field

from flows.run.manifest import Ref, folder_of
from flows.run.run import Run
from flows.run.stage_io import StageIO
from stages.core.earlier_tasks import EarlierTasks


@dataclass
class _Known:
    """The index before `generation`, and the tables that it was read from. `before` is the digest of the manifest before it."""

    generation: int
    before: str
    seeds: Ref
    index: EarlierTasks
    tasks: list[Ref] = field(default_factory=list)


class EarlierReader:
    """Holds the index of one run and extends it generation by generation.

    The chain of manifests identifies what was read: a digest covers everything before it. With another run, a fork or an earlier
    generation the digest differs, and the index is read again from the start.
    """

    def __init__(self) -> None:
        self._known: _Known | None = None

    def tasks(self, io: StageIO, seeds: bool = True) -> EarlierTasks:
        """Return the index for the generation of `io`. Its tables become inputs of the stage, the seeds only if it uses them."""
        known = self._before(io.run, io.generation)
        io.use([known.seeds, *known.tasks] if seeds else known.tasks)
        return known.index

    def replayed(self, io: StageIO, task_ids: set[str], generations: set[int | None]) -> list[dict]:
        """Return these stored tasks, oldest first; only the tables of `generations` (None: the seeds) become inputs."""
        known = self._before(io.run, io.generation)
        used = [known.seeds] if None in generations else []
        io.use(used + [ref for number, ref in enumerate(known.tasks) if number in generations])
        return known.index.rows(task_ids)

    def _before(self, run: Run, generation: int) -> _Known:
        before = run.history.previous("match", generation)
        known = self._known
        if known is None or known.generation > generation or not _continues(run, known, generation, before):
            seeds = run.history.find("start/seeds.parquet")
            known = _Known(0, "", seeds, EarlierTasks(run.read_table(seeds, "seeds")))
        self._known = None  # an index that was extended halfway must not be used
        for number in range(known.generation, generation):
            ref = run.history.find(f"{folder_of(number)}/tasks.parquet")
            known.index.add(run.read_table(ref, "tasks"))
            known.tasks.append(ref)
        known.generation, known.before = generation, before
        self._known = known
        return known


def _continues(run: Run, known: _Known, generation: int, before: str) -> bool:
    """Return whether what is known is the beginning of this run."""
    return known.before == (before if known.generation == generation else run.history.previous("match", known.generation))
