"""What a process computes at the moment, small enough to travel in the heartbeat of its lease.

The process that runs a run writes this record every two seconds; whoever reads the store can see it. Nothing is decided by it:
a step is done when its manifest exists.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flows.monitoring.meter import Reading
from flows.stages import STAGE_NAMES

Json = dict[str, Any]
STEPS = 16  # steps in one record, the earliest in the order of a generation: more run or wait on a cluster
COUNTS = 4
TEXT = 80  # characters of a name in a record


@dataclass(frozen=True)
class Step:
    """A step that is running: how long so far, and its newest reading, if it has reported any."""

    stage: str
    generation: int | None
    part: str | None
    seconds: float
    reading: Reading | None = None


@dataclass
class _Running:
    stage: str
    generation: int | None
    part: str | None
    began: float
    reading: Reading | None = None


class Working:
    """The steps that this process runs. `record` is called from the heartbeat's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.planned = 0
        self._clock = clock
        self._steps: list[_Running] = []
        self._lock = threading.Lock()

    @contextmanager
    def step(self, stage: str, generation: int | None, part: str | None) -> Iterator[Callable[[Reading], None]]:
        """List a step while the block runs. Yields a function for its readings."""
        step = _Running(stage, generation, part, self._clock())

        def told(reading: Reading) -> None:
            step.reading = reading

        with self._lock:
            self._steps.append(step)
        try:
            yield told
        finally:
            with self._lock:
                self._steps.remove(step)

    def record(self) -> Json:
        """Return the planned generations and the running steps as JSON values, of bounded size."""
        now = self._clock()
        with self._lock:
            steps = sorted(self._steps, key=_order)[:STEPS]
        return {"planned": self.planned, "steps": [_written(step, now) for step in steps]}


def _order(step: _Running) -> tuple[int, int]:
    known = step.stage in STAGE_NAMES
    return -1 if step.generation is None else step.generation, STAGE_NAMES.index(step.stage) if known else -1


def _written(step: _Running, now: float) -> Json:
    reading = step.reading
    values: Json = {"stage": step.stage, "generation": step.generation, "part": step.part, "seconds": round(now - step.began, 1)}
    if reading is not None:
        values["reading"] = {
            "counts": [list(count) for count in reading.counts[:COUNTS]],
            "tokens": reading.tokens,
            "tokens_a_second": reading.tokens_a_second,
            "seconds_left": reading.seconds_left,
            "left_of": reading.left_of,
        }
    return values


def steps_of(record: Mapping[str, Any]) -> tuple[Step, ...]:
    """Return the steps in a record. What does not have its shape, such as another version's, is left out."""
    given = record.get("steps")
    return tuple(step for one in (given if isinstance(given, list) else [])[:STEPS] if (step := _step(one)) is not None)


def planned_by(record: Mapping[str, Any]) -> int:
    """Return the generations that the process in a record plans, which may exceed those of run.json; 0 if it states none."""
    planned = record.get("planned")
    return planned if isinstance(planned, int) and not isinstance(planned, bool) else 0


def _step(values: Any) -> Step | None:
    try:
        generation, part = values["generation"], values["part"]
        return Step(
            str(values["stage"])[:TEXT],
            None if generation is None else int(generation),
            None if part is None else str(part)[:TEXT],
            _finite(values["seconds"]),
            _reading(values.get("reading")),
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None


def _reading(values: Any) -> Reading | None:
    if not values or not values["counts"]:
        return None
    rate, left = values["tokens_a_second"], values["seconds_left"]
    return Reading(
        tuple((str(what)[:TEXT], _finite(done), _finite(total)) for what, done, total in values["counts"][:COUNTS]),
        int(values["tokens"]),
        None if rate is None else _finite(rate),
        None if left is None else _finite(left),
        str(values["left_of"])[:TEXT],
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number
