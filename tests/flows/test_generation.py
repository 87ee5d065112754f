"""Parts of a stage that run beside others: what is waited for, and what is not."""

from types import SimpleNamespace
from typing import Any

import pytest

from flows import generation, train
from flows.generation import Begun
from flows.run.lease import LeaseLost
from flows.storage import StoreRefused, StoreUnavailable


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


class Told:
    """A flow's logger that keeps its lines, and a clock that does not wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines, self.waited = list[str](), list[float]()
        monkeypatch.setattr(generation, "get_run_logger", lambda: self)
        monkeypatch.setattr(generation.time, "sleep", self.waited.append)

    def warning(self, line: str, *values: object) -> None:
        self.lines.append(line % values)


def test_what_the_flow_asks_the_store_is_asked_again_as_a_task_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told, answers = Told(monkeypatch), [StoreUnavailable("no answer"), StoreUnavailable("no answer"), 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert generation.bridged(ask) == 7 and told.waited == [5, 30]
    assert told.lines == ["no answer; trying again in 5 s", "no answer; trying again in 30 s"]
    told.waited.clear()
    answers[:] = [StoreUnavailable("no answer")] * 4
    with pytest.raises(StoreUnavailable):
        generation.bridged(ask)
    assert told.waited == [5, 30, 120]
    for final in (LeaseLost("ours no more"), StoreRefused("no such bucket")):
        told.waited.clear()
        answers[:] = [final]
        with pytest.raises(type(final)):
            generation.bridged(ask)
        assert not told.waited


def test_a_line_that_cannot_be_printed_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def refuse(number: int) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(train, "log_line", lambda: lines.append)
    current = SimpleNamespace(config=SimpleNamespace(generations=3), report_generation=refuse)
    train._report(current, 2)  # type: ignore[arg-type]
    assert lines == ["generation 2 is complete, but could not be reported: no answer"]
