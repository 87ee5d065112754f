"""Messages about a run's alarms, for a command with a private server: nobody can open its UI, so generations get no notes.

Drawing and storing the notes of a generation takes about a second of a processor, which is a quarter of a short generation.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from uuid import UUID

from flows.monitoring.alarms import Alarm
from flows.monitoring.meter import Reading
from flows.notes.aside import Aside
from flows.notes.news import News
from flows.notes.telling import tell_from_here
from flows.run.addresses import Addresses


class AlarmMessages:
    """Tells of the alarms of one run. `at` gives the addresses of the pages to link to. Call `close` at the end."""

    def __init__(self, run_id: str, at: Addresses | None) -> None:
        self._run_id, self._at, self._news = run_id, at, News()
        self._aside = Aside[None](run_id, "nobody is told of alarms", nullcontext)

    def alarms_raised(self, generation: int, alarms: Sequence[Alarm]) -> None:
        """Queue the messages about a finished generation."""
        self._aside.put(lambda _: self._tell(generation, alarms))

    def generation_done(self, generation: int, flow_run: UUID | None) -> None:
        """Do nothing: its line is shown in the terminal."""

    def stage_runs(self, generation: int | None, stage: str, reading: Reading | None) -> None:
        """Do nothing: progress is shown in the terminal."""

    def close(self, patience: float) -> None:
        """Wait up to this many seconds for what is queued."""
        self._aside.close(patience)

    def _tell(self, generation: int, alarms: Sequence[Alarm]) -> None:
        link = self._at.generation(self._run_id, generation) if self._at else ""
        for alarm, news in zip(alarms, self._news.of(alarms), strict=True):
            if news:
                tell_from_here("alarm", f"populora: alarm in run {self._run_id}", f"{alarm}\n{link}".strip())
