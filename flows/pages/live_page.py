"""The live page of a run: its state in fields, bars and rows of text, for the page itself and for each event of its stream."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from flows.monitoring.live import Follower, LiveState, Tail
from flows.monitoring.live_text import about, counts_text, headline, place_of, program_text, speed_text, statuses_text, step_text
from flows.monitoring.meter import duration
from flows.monitoring.run_tables import RunTables
from flows.pages.keys import link
from flows.pages.library import Library
from flows.program import PLAIN, Commands
from flows.run.addresses import Addresses
from flows.run.manifest import Json
from flows.run.run import Run
from stages.core.highlight import visible

LOOK_SECONDS = 1.5  # a run is not read more often, however many pages follow it
KEPT = 16  # runs whose followers are kept
CELL = 120
GOOD = ("valid", "correct")
_AT = Addresses()


class Followers:
    """One follower for each run that somebody follows, shared by all pages and streams."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def state(self, run_id: str) -> LiveState:
        """Return the run's state, at most LOOK_SECONDS old. Raises NotStored or StoreUnavailable."""
        run = self._library.run(run_id)
        with self._lock:
            kept = self._kept.get(run_id)
            if kept is None or kept.run is not run:  # a later run may have taken the name
                kept = self._kept[run_id] = _Kept(run, Follower(run, RunTables(run), self._library.states))
            self._kept.move_to_end(run_id)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept.state()


class _Kept:
    def __init__(self, run: Run, follower: Follower) -> None:
        self.run, self._follower, self._lock = run, follower, threading.Lock()
        self._state: LiveState | None = None
        self._looked = 0.0

    def state(self) -> LiveState:
        with self._lock:
            if self._state is None or monotonic() - self._looked > LOOK_SECONDS:
                self._state, self._looked = self._follower.look(), monotonic()
            return self._state


def live_page(state: LiveState, commands: Commands = PLAIN) -> Json:
    """Return what the page shows: plain text and numbers only. The page's script writes it as text, the template escapes it."""
    left = state.left
    return {
        "run": state.run_id,
        "condition": state.condition,
        "fields": {
            "headline": commands.named(headline(state)),
            "place": place_of(state) if state.stage else "–",
            "speed": speed_text(state),
            "stage_left": about(left.stage),
            "generation_left": about(left.generation),
            "run_left": about(left.run),
            "done_title": _done_title(state),
            "tasks_title": _title(state.tasks),
            "verdicts_title": _title(state.verdicts),
        },
        "shares": {"run": round(state.share, 4), "stage": None if state.stage_share is None else round(state.stage_share, 4)},
        "rows": {
            "steps": [[_cell(step_text(step))] for step in state.steps],
            "alarms": [[_cell(line)] for line in (*state.alarms, *state.faults)],
            "done": [
                [_cell(one.stage), _cell(duration(one.seconds)), _cell(counts_text(one.counts) or "–")] for one in state.done
            ],
            "tasks": _tasks(state.run_id, state.tasks),
            "verdicts": _verdicts(state.run_id, state.verdicts),
        },
    }


def _done_title(state: LiveState) -> str:
    where = "the start" if state.newest is None else f"generation {state.newest}"
    return f"of {where}" if state.done else f"none yet of {where}"


def _title(tail: Tail | None) -> str:
    return "none yet" if tail is None else f"generation {tail.generation}: {statuses_text(tail)}"


def _tasks(run_id: str, tail: Tail | None) -> list[list[Json]]:
    return [
        [
            _cell(row["task_id"], _AT.task(run_id, row["task_id"])),
            _cell(row["teacher_id"], link(run_id, "teacher_id", row["teacher_id"])),
            _cell(row["kind"]),
            _verdict(row),
            _cell(program_text(row["program"]), look="program"),
        ]
        for row in _rows(tail)
    ]


def _verdicts(run_id: str, tail: Tail | None) -> list[list[Json]]:
    return [
        [
            _cell(row["rollout_id"], _AT.attempt(run_id, row["rollout_id"])),
            _cell(row["student_id"], _AT.member(run_id, row["student_id"])),
            _cell(row["kind"]),
            _verdict(row),
        ]
        for row in _rows(tail)
    ]


def _rows(tail: Tail | None) -> Sequence[Mapping[str, Any]]:
    return () if tail is None else tail.rows


def _verdict(row: Mapping[str, Any]) -> Json:
    return _cell(row["status"], look="valid" if row["status"] in GOOD else "wrong")


def _cell(text: object, address: str = "", look: str = "") -> Json:
    return {"text": visible(str(text), CELL), "href": address, "look": look}
