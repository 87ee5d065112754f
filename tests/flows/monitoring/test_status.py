"""The text of `populora status`."""

from pathlib import Path

from flows.monitoring.status import status
from tests.support.report_run import made


def test_alarms_of_earlier_generations_are_counted_by_kind_and_the_newest_are_shown(tmp_path: Path) -> None:
    with made(tmp_path, "one", 9) as run:
        found = status(run).splitlines()
    assert found[-1] == "alarms     1 in earlier generations (slow 1): the report and the run's page list them"
    with made(tmp_path, "two", 8) as run:
        found = status(run).splitlines()
    assert found[-1].startswith("alarm      g0007 slow: ") and not any(line.startswith("alarms ") for line in found)
