"""Parts of a stage that run beside others: what is waited for, and what is not."""

from typing import Any

import pytest

from flows.generation import Begun


class Part:
    """A future of Prefect: it has a result, has failed, or runs on."""

    def __init__(self, result: object) -> None:
        self._result = result

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


RUNNING = Part(TimeoutError("Task run did not complete within 0 seconds"))


def test_a_part_that_runs_is_not_waited_for_and_one_that_failed_is_told() -> None:
    Begun((RUNNING, Part({"stage": "update"}))).check()
    with pytest.raises(RuntimeError, match="no memory"):
        Begun((RUNNING, Part(RuntimeError("no memory")))).check()
