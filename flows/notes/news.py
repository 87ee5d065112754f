"""Which alarms of a generation are news: the generation before had none of the same name and subject."""

from collections.abc import Sequence

from flows.monitoring.alarms import Alarm


class News:
    """Remembers the alarms of the last generation that it was asked about."""

    def __init__(self) -> None:
        self._before: set[tuple[str, str]] = set()

    def of(self, alarms: Sequence[Alarm]) -> list[bool]:
        """Return of each alarm whether it is news. An alarm that lasts is news once."""
        before, self._before = self._before, {(alarm.name, alarm.subject) for alarm in alarms}
        return [(alarm.name, alarm.subject) not in before for alarm in alarms]
