"""A command whose server ends with it: messages about alarms, and no notes, which nobody could open."""

import logging
from pathlib import Path
from typing import Any

import pytest

from flows.config import load
from flows.monitoring.alarms import Alarm
from flows.notes import alarm_messages, publish
from flows.notes.alarm_messages import AlarmMessages
from flows.notes.end_text import HERE
from flows.notes.news import News
from flows.run.run import Run
from flows.store.file_store import FileStore

SLOW, SHORT, LONE = (
    Alarm(0, "slow", "solve", "took long"),
    Alarm(0, "short", "", "too few"),
    Alarm(0, "slow", "grade", "took long"),
)


def test_an_alarm_is_news_until_a_generation_without_it() -> None:
    news = News()
    assert news.of([SLOW]) == [True]
    assert news.of([SHORT, SLOW, LONE]) == [True, False, True]
    assert news.of([]) == []
    assert news.of([SLOW]) == [True]


class Stored:
    """The alarms of three generations, as `RunTables` gives those of a run so far."""

    def look(self) -> "Stored":
        return self

    def alarms(self) -> list[Alarm]:
        return [Alarm(number, "slow", "solve", f"took {number} s") for number in (0, 1)] + [Alarm(1, "short", "", "too few")]


@pytest.mark.flow
def test_alarms_are_told_of_once_and_no_note_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[tuple[Any, ...]] = []
    monkeypatch.setenv(HERE, "1")
    monkeypatch.setattr(alarm_messages, "tell_from_here", lambda *words: said.append(words))
    monkeypatch.setattr(alarm_messages, "RunTables", lambda _: Stored())
    monkeypatch.setattr(publish, "Writer", lambda *_: pytest.fail("nobody reads these notes"))
    with publish.publishing(Run(FileStore(tmp_path), "r"), load("smoke")):
        publish.publish_progress(0, "solve")
        for generation in range(3):
            publish.publish_generation(generation)
    title = "populora: alarm in run r"
    assert said == [("alarm", title, "g0000 slow: took 0 s"), ("alarm", title, "g0001 short: too few")]


@pytest.mark.flow
def test_a_fault_is_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def look(self) -> None:
            raise OSError("the disk is gone")

    monkeypatch.setattr(alarm_messages, "RunTables", lambda _: Broken())
    with caplog.at_level(logging.WARNING, "populora.notes"):
        told = AlarmMessages(Run(FileStore(tmp_path), "r"))
        for generation in range(2):
            told.generation_done(generation, None)
        told.close(30.0)
    (warned,) = [one.getMessage() for one in caplog.records if one.name == "populora.notes"]
    assert warned == "run r: nobody is told of alarms (OSError: the disk is gone); the run continues"
