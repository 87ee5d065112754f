"""A command whose server ends with it: messages about alarms, and no notes of generations, which nobody could open."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.config import load
from flows.monitoring.alarms import Alarm
from flows.notes import alarm_messages, publish
from flows.notes.aside import Aside
from flows.notes.end_text import HERE
from flows.notes.news import News
from flows.run.run import Run
from flows.store.file_store import FileStore

SLOW, SHORT, LONE = (Alarm(0, "slow", "solve", "long"), Alarm(0, "short", "", "too few"), Alarm(0, "slow", "grade", "long"))
TITLE = "populora: alarm in run r"


def test_an_alarm_is_news_until_a_generation_without_it() -> None:
    news = News()
    assert news.of([SLOW]) == [True]
    assert news.of([SHORT, SLOW, LONE]) == [True, False, True]
    assert news.of([]) == []
    assert news.of([SLOW]) == [True]


@pytest.mark.parametrize("browser", ["", "http://127.0.0.1:8750"])
def test_alarms_are_told_of_once_and_no_note_is_written(browser: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[tuple[Any, ...]] = []
    monkeypatch.setenv(HERE, "1")
    monkeypatch.setattr(alarm_messages, "tell_from_here", lambda *words: said.append(words))
    monkeypatch.setattr(publish, "Writer", lambda *_: pytest.fail("nobody reads these notes"))
    with publish.publishing(Run(FileStore(tmp_path), "r"), load("smoke"), browser):
        publish.publish_progress(0, "solve")
        for generation, alarms in enumerate(([SLOW], [SLOW, SHORT], [])):
            publish.publish_generation(generation)
            publish.publish_alarms(generation, alarms)
    links = [f"\n{browser}/runs/r/generations/{generation}" if browser else "" for generation in (0, 1)]
    assert said == [("alarm", TITLE, f"{SLOW}{links[0]}"), ("alarm", TITLE, f"{SHORT}{links[1]}")]


def test_a_fault_is_one_warning_and_the_next_job_runs(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fails(_: str) -> None:
        raise OSError("the disk is gone")

    @contextmanager
    def opened() -> Iterator[str]:
        yield "tool"
        done.append("closed")

    with caplog.at_level(logging.WARNING, "populora.notes"):
        aside = Aside("r", "nothing is written", opened)
        for job in (fails, fails, done.append):
            aside.put(job)
        aside.close(30.0)
    (warned,) = [one.getMessage() for one in caplog.records if one.name == "populora.notes"]
    assert warned == "run r: nothing is written (OSError: the disk is gone); the run continues"
    assert done == ["tool", "closed"]
