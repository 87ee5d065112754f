"""Invariant of the tasks that the generator drew: the draw is repeated from the earlier tables and compared."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from flows.choices import chosen_curriculum
from flows.config import RunConfig
from stages.core.method.curriculum import RECENT
from stages.core.seed_model.programs import ProgramKeys
from stages.generate import generate, records_of

COMPARED = ("proposal_id", "kind", "program", "inputs", "seed")


class RecentGrades:
    """TASKS and GRADES of the last generations, which draws depend on; None once a table of them could not be read."""

    def __init__(self) -> None:
        self._recent: deque[tuple[pa.Table, pa.Table] | None] = deque(maxlen=RECENT)

    def add(self, found: Mapping[str, pa.Table]) -> None:
        """Go on to the next generation."""
        self._recent.append((found["tasks"], found["grades"]) if {"tasks", "grades"} <= set(found) else None)

    def tables(self) -> list[tuple[pa.Table, pa.Table]] | None:
        """Return them, oldest first."""
        whole = [one for one in self._recent if one is not None]
        return whole if len(whole) == len(self._recent) else None


class GeneratorCheck:
    """Draws the proposals of generations again. The programs that are kept out are read once."""

    def __init__(self, held_out: Callable[[RunConfig], ProgramKeys]) -> None:
        self._read = held_out
        self._held_out: ProgramKeys | None = None

    def problems(
        self,
        found: Mapping[str, pa.Table],
        config: RunConfig,
        recent: Sequence[tuple[pa.Table, pa.Table]] | None,
        generation: int,
    ) -> Iterator[tuple[str, str]]:
        """Yield (table, problem) where the proposals are not those due; nothing where that cannot be known."""
        if not config.propose.curriculum or recent is None or not {"matches", "proposals"} <= set(found):
            return
        self._held_out = self._held_out or self._read(config)
        due = generate(
            found["matches"],
            records_of(recent, config.kinds),
            chosen_curriculum(config),
            config.proposals_per_teacher,
            config.propose.num_inputs,
            self._held_out,
            config.seed,
            generation,
        )
        if due.select(COMPARED).to_pylist() != found["proposals"].select(COMPARED).to_pylist():
            yield "proposals", "they are not what the generator draws from the earlier grades"
