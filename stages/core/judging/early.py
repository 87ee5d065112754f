"""Early judging: what is learned from completions that end before the stage that judges them.

Early verdicts answer single runs, by job, so that a stage asks the sandbox for fewer of them and decides as always. They hold
under the conditions under which they were found: the same sandbox and limits. Only verdicts on which load has no influence last;
every other run is made again by the stage.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from stages.core.judging.judge import AnswerItem, TaskItem
from stages.core.sandbox.protocol import IDLE, TICK, Job, Sandbox, Status, Verdict

Item = TaskItem | AnswerItem
Read = Callable[[], Item | None]
"""Reads one ended completion: what is to be judged, or None."""
Early = Callable[[Read], None]
"""Takes what reads a completion, when it ends. Returns at once, because decoding waits for it."""
Completed = TypeVar("Completed")

STEADY = frozenset({Status.VALID, Status.UNPARSED, Status.BANNED, Status.ERROR, Status.OUTPUT_LIMIT, Status.UNSUPPORTED_VALUE})
"""Statuses that follow from the program alone. Time-outs, memory, crashes and differing values may be the machine's."""


def lasts(verdict: Verdict) -> bool:
    """Return whether the verdict may be used later: a steady status of a run that was not near a limit."""
    return verdict.status in STEADY and verdict.limits_used == 0


def handing(early: Early, read: Callable[[int, Completed], Item | None]) -> Callable[[int, Completed], None]:
    """Return an engine's callback that hands each ended completion on, to be read elsewhere."""
    return lambda place, completion: early(partial(read, place, completion))


class Recorder:
    """Implements `Sandbox` by another one, and notes the verdicts that last.

    Attributes:
        known: They, by job.
        flying: Number of jobs without a verdict yet.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._inner = sandbox
        self.known: dict[Job, Verdict] = {}
        self.flying = 0

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        """Yield the other sandbox's verdicts."""
        sent: deque[Job] = deque()
        for verdict in self._inner.run(self._noted(jobs, sent)):
            if verdict is not TICK:
                self.flying -= 1
                job = sent.popleft()
                if lasts(verdict):
                    self.known[job] = verdict
            yield verdict

    def _noted(self, jobs: Iterable[Job], sent: deque[Job]) -> Iterator[Job]:
        for job in jobs:
            if job is not IDLE:
                sent.append(job)
                self.flying += 1
            yield job

    def attestation(self) -> dict[str, object]:
        """Return the other sandbox's active walls."""
        return self._inner.attestation()

    def close(self) -> None:
        """Stop the other sandbox."""
        self._inner.close()


def conditions(walls: Mapping[str, object], limits: Mapping[str, object]) -> str:
    """Return the digest of the sandbox's walls (with image and runner) and of the limits of its runs."""
    return hashlib.sha256(json.dumps([walls, limits], sort_keys=True, default=str).encode()).hexdigest()


def to_lines(known: Mapping[Job, Verdict], found_under: str) -> Iterator[str]:
    """Yield the verdicts as JSON lines, the conditions under which they were found first."""
    yield json.dumps(found_under)
    for job, verdict in known.items():
        values = [verdict.status, verdict.value, verdict.detail, verdict.program_key, verdict.text, verdict.lines]
        yield json.dumps([[job.program, job.input, job.validate, job.trace], values])


def from_lines(lines: Iterable[str], found_under: str) -> dict[Job, Verdict]:
    """Return the verdicts in JSON lines; none if they were found under other conditions. Raise ValueError."""
    rows = iter(lines)
    if json.loads(next(rows, "null")) != found_under:
        return {}
    return dict(_pair(*json.loads(row)) for row in rows)


def _pair(job: list[Any], values: list[Any]) -> tuple[Job, Verdict]:
    status, value, detail, program_key, text, lines = values
    counts = tuple((line, times) for line, times in lines)
    return Job(*job), Verdict(Status(status), value, detail, program_key, text, counts)
