"""Which alarms of a generation are news: the generation before had none of the same name and subject.

`forgetting` is news once: it is raised where a benchmark was scored, and most generations have none that could end it.
"""

from collections.abc import Sequence

from flows.monitoring.alarms import Alarm

FORGETTING = "forgetting"


class News:
    """Remembers the alarms of the last generation that it was asked about."""

    def __init__(self) -> None:
        self._before: set[tuple[str, str]] = set()

    def of(self, alarms: Sequence[Alarm]) -> list[bool]:
        """Return of each alarm whether it is news. An alarm that lasts is news once."""
        before, raised = self._before, {(alarm.name, alarm.subject) for alarm in alarms}
        self._before = raised | {one for one in before if one[0] == FORGETTING}
        return [(alarm.name, alarm.subject) not in before for alarm in alarms]
