"""Writes a run's notes in a separate process: `python -m flows.notes.note_writer STORE RUN PLANNED BROWSER`.

Each line of standard input is the number of a finished generation. Each line of output is one JSON object with its notes or the
fault that occurred. Half a second of drawing in the flow's own process would delay the stages of the next generation.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from flows import form_links
from flows.config import PROJECT
from flows.monitoring.alarms import Alarm, summary
from flows.monitoring.cost import cost_so_far
from flows.monitoring.cost_text import cost_line, point_text
from flows.notes.note_data import NoteBuilder
from flows.notes.note_text import NoteData, generation_note, match_rows, rating_rows, run_note
from flows.run.run import Run
from flows.storage import open_store
from stages.analysis.summary import generation_line

LARGEST = 400_000  # characters of a note; pictures are dropped first, then the note is cut
LINES = 20  # generations listed in the run's note


class NotesNotWritten(Exception):
    """The notes of a generation could not be written. The message states why."""


@dataclass(frozen=True)
class GenerationNotes:
    """The notes of one generation: Markdown, rows, alarms, and the address of its page (empty without a browser)."""

    generation: str
    ratings: list[dict[str, str]]
    matches: list[dict[str, str]]
    run: str
    alarms: list[Alarm]
    link: str


class Writer:
    """The process that writes the notes of one run. `close` stops it. It exits by itself when this process is gone.

    Raises NotesNotWritten if it cannot be started.
    """

    def __init__(self, run: Run, planned: int, browser: str) -> None:
        words = [sys.executable, "-m", "flows.notes.note_writer", run.store.url, run.run_id, str(planned), browser]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=PROJECT, start_new_session=True)
        except OSError as error:
            raise NotesNotWritten(f"the process that writes them cannot be started: {error}") from error

    def write(self, generation: int) -> GenerationNotes:
        """Wait for the notes of a generation. Raises NotesNotWritten."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(generation, file=self._process.stdin, flush=True)
        except (BrokenPipeError, ValueError):  # the process is gone, or closed
            raise NotesNotWritten("the process that writes them has exited") from None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"fault": "the process that writes them has exited"}
        if "fault" in answer:
            raise NotesNotWritten(answer["fault"])
        return GenerationNotes(**(answer | {"alarms": [Alarm(**alarm) for alarm in answer["alarms"]]}))

    def close(self) -> None:
        """Stop the process, even if it is busy."""
        with suppress(BrokenPipeError), self._process:  # which closes its pipes and waits
            self._process.kill()


def written(teller: NoteBuilder, generation: int) -> GenerationNotes:
    """Write the notes of a generation from what is stored."""
    told = teller.told(generation)
    matches = match_rows(teller.matches(generation), teller.tasks(generation), teller.grades(generation))
    link = told.at.generation(told.run_id, generation) if told.at else ""
    return GenerationNotes(fitting(told), rating_rows(told.ratings), matches, _rolling(teller), told.alarms, link)


def fitting(told: NoteData) -> str:
    """Return the note, small enough for Prefect's database. Drops pictures, then cuts text, if necessary."""
    note = generation_note(told)
    if len(note) > LARGEST:
        note = generation_note(replace(told, pictures={}))
    return note if len(note) <= LARGEST else note[:LARGEST] + "\n\n… (cut; the artifact browser has the rest)"


def _rolling(teller: NoteBuilder) -> str:
    """Return the run's note: one line for each of its newest generations."""
    watch = teller.watch
    lines = [
        generation_line(watch.of(one, "metrics"), watch.of(one, "ratings"), watch.of(one, "offspring"), watch.times(one), one)
        for one in watch.generations[-LINES:]
    ]
    cost = cost_so_far(watch)
    said = [f"Cost so far: {cost_line(cost.total)}.", *(f"{point_text(point)}." for point in cost.points)]
    return run_note(teller.run.run_id, teller.planned, lines, summary(watch.alarms()), teller.at, said)


def _serve(teller: NoteBuilder, asked: Iterable[str]) -> None:
    for line in asked:
        try:
            answer = asdict(written(teller, int(line)))
        except Exception as error:  # any fault: the run continues, and gets a report
            answer = {"fault": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    store, run_id, planned, browser = sys.argv[1:]
    _serve(NoteBuilder(Run(open_store(store), run_id), int(planned), browser, form_links.of_environment()), sys.stdin)
