"""Messages about a run's alarms, for a command with a private server: nobody can open its UI, so that notes would not be seen.

Drawing and storing the notes of a generation takes more than a second of a processor, which is a third of a short generation.
"""

from uuid import UUID

from flows.monitoring.meter import Reading
from flows.monitoring.run_tables import RunTables
from flows.notes.aside import Aside
from flows.notes.news import News
from flows.notes.telling import tell_from_here
from flows.run.run import Run


class AlarmMessages:
    """Tells of the alarms of one run, after each generation. Call `close` at the end."""

    def __init__(self, run: Run) -> None:
        self._run_id, self._tables, self._news = run.run_id, RunTables(run), News()
        self._aside = Aside(run.run_id, "nobody is told of alarms")

    def generation_done(self, generation: int, flow_run: UUID | None) -> None:
        """Queue the messages about a finished generation."""
        self._aside.put(lambda _: self._tell(generation))

    def stage_runs(self, generation: int | None, stage: str, reading: Reading | None) -> None:
        """Do nothing: progress is shown in the terminal."""

    def close(self, patience: float) -> None:
        """Wait up to this many seconds for what is queued."""
        self._aside.close(patience)

    def _tell(self, generation: int) -> None:
        alarms = [alarm for alarm in self._tables.look().alarms() if alarm.generation == generation]
        for alarm, news in zip(alarms, self._news.of(alarms), strict=True):
            if news:
                tell_from_here("alarm", f"populora: alarm in run {self._run_id}", str(alarm))
