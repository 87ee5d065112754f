"""A pool of sandbox workers behind one streaming call: dispatch, order, canaries, retries, quarantine. Docker and local share it.

This module decides which failures are infrastructure failures. A worker that dies, sends an invalid reply or fails a canary loses
all its unconfirmed results, and those jobs run again on other workers. A program that is twice alone in a worker when the worker
dies is a `crash`. If no worker can be started, `SandboxUnavailable` is raised; there is never a verdict.
"""

import json
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from stages.core.sandbox.link import CANARIES, Link, Record, RunLimits, Worker, core_for, runner_digest
from stages.core.sandbox.protocol import IDLE, TICK, Job, SandboxUnavailable, Status, Verdict
from stages.core.sandbox.verdicts import (
    NEAR,
    SERVER_ENDED,
    MalformedReply,
    ProgramRun,
    near_limit,
    needs_modules,
    over,
    parse_runs,
    payload,
    verdict,
)


def _with_modules(record: Record, found: Verdict) -> bool:
    """Return whether servers with modules decided; where a server ended, any program may have gone on to one."""
    return record.imports or (found.status is Status.CRASH and found.detail == SERVER_ENDED)


@dataclass
class _Stream:
    """The state of one call of `run`."""

    source: Iterator[Job]
    queue: deque[Record] = field(default_factory=deque)
    alone: deque[Record] = field(default_factory=deque)
    done: dict[int, Verdict] = field(default_factory=dict)
    taken: int = 0
    given: int = 0
    exhausted: bool = False
    idle: bool = False


class Pool:
    """Pool of workers made by `start(number)`, kept warm between calls of `run`.

    Every worker must attest the runner of this checkout: another runner would be a different judge. `mend` is the message shown
    if it does not.
    """

    mend = "the sandbox's runner is not this checkout's"

    def __init__(
        self,
        start: Callable[[int], Link],
        workers: int,
        limits: RunLimits,
        uid: int,
        window: int = 64,
        recycle_after: int = 10_000,
        apart: int = 64,
    ):
        self.runner = runner_digest()
        self.start, self.size, self.limits, self.uid, self.apart = start, workers, limits, uid, apart
        self.window, self.recycle_after = window, recycle_after
        self.workers: list[Worker] = []
        self.started = self.deaths = self.canaries = 0
        self.busy = False
        self.counts = {"workers_started": 0, "workers_lost": 0, "canaries": 0, "alone": 0, "quarantined": 0}

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        """Yield one verdict per job, in order, and TICK at times while the source yields IDLE. Raise SandboxUnavailable."""
        if self.busy:
            raise RuntimeError("this sandbox is running another stream")
        self.busy, stream = True, _Stream(iter(jobs))
        try:
            while True:
                self._fill(stream)
                idle, stream.idle = stream.idle, False
                given = stream.given
                while stream.given in stream.done:
                    stream.given += 1
                    yield stream.done.pop(stream.given - 1)
                if stream.exhausted and stream.given == stream.taken:
                    return
                if idle:
                    yield TICK
                # a verdict given in this turn may have made the next job ready
                self._exchange(stream, (0.0 if stream.given > given else 0.02) if idle else 1.0)
        finally:
            self.busy = False
            for worker in [worker for worker in self.workers if worker.flying or worker.unconfirmed]:
                self._discard(worker)

    def attestation(self) -> dict[str, object]:
        """Return what the first worker read back about its walls; start a worker if there is none."""
        if not any(worker.ready for worker in self.workers):
            list(self.run([CANARIES[0][0]]))
        return next(worker.attestation for worker in self.workers if worker.ready)

    def check(self) -> None:
        """Raise SandboxUnavailable if the workers' host is gone. Called when a worker has been silent for long."""

    def close(self) -> None:
        """Stop every worker."""
        for worker in list(self.workers):
            self._discard(worker)

    # --- sending

    def _fill(self, stream: _Stream) -> None:
        """Give jobs to workers with room, the least busy first. A job that ran near a limit runs again when nothing else runs."""
        if not any(worker.flying and worker.flying[0].alone for worker in self.workers):
            ready = [worker for worker in self._open_workers(stream) if not any(record.careful for record in worker.flying)]
            while ready:
                worker = min(ready, key=lambda worker: len(worker.flying))
                record = self._next(stream) if len(worker.flying) < self.window else None
                if record is None:
                    break
                if record.careful and worker.flying:
                    stream.queue.appendleft(record)
                    break
                worker.put(record)
                if record.careful:
                    ready.remove(worker)
            self._send_alone(stream)
        for worker in self.workers:
            self._vouch(worker, stream)

    def _open_workers(self, stream: _Stream) -> list[Worker]:
        """Return the workers that take jobs. Replace worn-out workers once empty; start missing ones if there is work."""
        for worker in [worker for worker in self.workers if worker.programs >= self.recycle_after]:
            if not worker.flying and not worker.unconfirmed:
                self._discard(worker)
        waiting = stream.queue or stream.alone or self._refill(stream)
        if waiting:
            while len(self.workers) < self.size:
                self._start_worker()
        return [worker for worker in self.workers if worker.ready and worker.programs < self.recycle_after]

    def _next(self, stream: _Stream) -> Record | None:
        return stream.queue.popleft() if stream.queue or self._refill(stream) else None

    def _refill(self, stream: _Stream) -> bool:
        """Take one job that needs a run from the source, if the ordering window allows."""
        while not (stream.exhausted or stream.idle) and stream.taken - stream.given < 64 * self.window:
            job = next(stream.source, None)
            if job is None:
                stream.exhausted = True
            elif job is IDLE:
                stream.idle = True
            else:
                data = payload(job, self.limits.input_text)
                stream.taken += 1
                if isinstance(data, bytes):
                    stream.queue.append(Record(stream.taken - 1, data, job.validate, needs_modules(job.program)))
                    return True
                stream.done[stream.taken - 1] = data
        return False

    def _send_alone(self, stream: _Stream) -> None:
        busy = any(worker.flying for worker in self.workers)
        ready = [worker for worker in self.workers if worker.ready]
        if stream.alone and not busy and not stream.queue and ready:
            record = stream.alone.popleft()
            record.alone = record.careful = True
            self.counts["alone"] += 1
            ready[0].put(record)

    def _vouch(self, worker: Worker, stream: _Stream) -> None:
        """Send a canary after every 128 programs and after the last program."""
        if (not worker.flying and not worker.unconfirmed) or (worker.flying and worker.flying[-1].canary):
            return
        drained = not worker.flying  # the worker got no more jobs: it is worn out, or the ordering window is full
        last = not stream.queue and (stream.exhausted or stream.idle or len(worker.flying) < self.window)
        if drained or worker.since_canary >= 128 or (last and not any(record.careful for record in worker.flying)):
            job, expected = CANARIES[self.canaries % len(CANARIES)]
            self.canaries += 1
            self.counts["canaries"] += 1
            data = payload(job)
            assert isinstance(data, bytes)
            # in servers like those of the last program: it vouches for the verdicts of such servers alone
            with_modules = worker.flying[-1].imports if worker.flying else _with_modules(*worker.unconfirmed[-1])
            worker.put(Record(0x7FFFFFFF, data, job.validate, with_modules, canary=expected))
            worker.since_canary = 0

    # --- receiving

    def _exchange(self, stream: _Stream, seconds: float) -> None:
        """Write, wait and read once; replace workers that failed."""
        poll, places = select.poll(), {}
        for worker in self.workers:
            reading, writing = worker.link.filenos()
            events = {reading: select.POLLIN}
            if worker.outgoing:
                events[writing] = events.get(writing, 0) | select.POLLOUT
            for descriptor, event in events.items():
                poll.register(descriptor, event)
                places[descriptor] = worker
        if not places:
            time.sleep(min(seconds, 0.02))
            return
        touched = {id(places[descriptor]): places[descriptor] for descriptor, _ in poll.poll(seconds * 1000)}
        for worker in touched.values():
            if not self._talk(worker, stream):
                self._lost(worker, stream)
        if any(worker.silent() for worker in self.workers):
            self.check()
        for worker in [worker for worker in self.workers if worker.overdue(self.limits)]:
            self._lost(worker, stream)

    def _talk(self, worker: Worker, stream: _Stream) -> bool:
        """Move bytes both ways and take the answers. Return False if the worker is gone or its reply is invalid."""
        alive = worker.exchange()
        try:
            for body in worker.frames():
                self._answer(worker, body, stream)
        except MalformedReply:
            return False
        return alive

    def _answer(self, worker: Worker, body: bytes, stream: _Stream) -> None:
        if not worker.ready:
            if body[:5] != b"\xff\xff\xff\xff\x00":
                raise MalformedReply("no attestation")
            try:
                worker.attestation, worker.ready = json.loads(body[5:]), True
            except ValueError as error:
                raise MalformedReply("no attestation") from error
            if worker.attestation.get("runner_sha256") != self.runner:
                self._discard(worker)
                raise SandboxUnavailable(self.mend)
            return
        number, runs = parse_runs(body)
        record = worker.flying[0] if worker.flying else None
        if record is None or number != record.index & 0x7FFFFFFF or not runs:
            raise MalformedReply("an answer to no question")
        found = verdict(over(runs, self.limits.cpu_seconds, self.limits.wall_seconds))
        if record.canary and (asked := verdict(runs)) and (asked.text, asked.program_key) != record.canary:
            raise MalformedReply("a wrong canary")
        # only here, where nothing can raise any more: a worker with an invalid reply must return all its jobs
        worker.flying.popleft()
        if record.canary:
            self._confirm(worker, stream, record.imports)
        else:
            self._judge(worker, record, runs, found, stream)

    def _judge(self, worker: Worker, record: Record, runs: list[ProgramRun], found: Verdict, stream: _Stream) -> None:
        limits = self.limits
        outside = runs[-1].letter == b"C" and runs[-1].text == SERVER_ENDED  # with another letter, a program wrote the text
        if outside and record.ended < 2:
            record.ended += 1
            stream.queue.appendleft(record)
        elif not record.alone and (outside or near_limit(runs, limits.cpu_seconds, limits.wall_seconds)):
            stream.alone.append(record)  # later, when a shortage of memory that others caused may be over
        else:
            used = max(max(run.cpu / limits.cpu_seconds, run.wall / limits.wall_seconds) for run in runs)  # waiting counts, too
            # what is near the limit ran alone; less was measured beside other runs, and is not the same on another day
            worker.unconfirmed.append((record, replace(found, limits_used=used if used >= NEAR else 0.0)))

    def _confirm(self, worker: Worker, stream: _Stream, with_modules: bool) -> None:
        """Give the verdicts of servers of this kind; the others wait for a canary in theirs."""
        self.deaths = 0
        waiting = []
        for record, found in worker.unconfirmed:
            if _with_modules(record, found) == with_modules:
                stream.done[record.index] = found
            else:
                waiting.append((record, found))
        worker.unconfirmed = waiting

    # --- workers

    def _start_worker(self) -> None:
        self.started += 1
        self.counts["workers_started"] += 1
        core = core_for(self.size, [worker.core for worker in self.workers])
        worker = Worker(self.start(self.started), time.monotonic(), core)
        limits = self.limits
        config: dict[str, object] = {"cpu_seconds": limits.cpu_seconds, "wall_seconds": limits.wall_seconds, "core": core}
        config |= {
            "memory_mb": limits.memory_mb,
            "witnesses": limits.witnesses,
            "uid": self.uid + self.apart * (self.started % 64),
        }
        worker.put_frame(json.dumps(config).encode())
        self.workers.append(worker)

    def _lost(self, worker: Worker, stream: _Stream) -> None:
        """Take back the worker's jobs; blame a program only if it was the only one there."""
        self._discard(worker)
        self.counts["workers_lost"] += 1
        self.deaths += 1
        flying = [record for record in worker.flying if not record.canary]
        if len(flying) == 1 and flying[0].careful:
            flying[0].kills += 1
        for record in flying:
            record.careful = True
        again = [record for record, _ in worker.unconfirmed] + flying
        for record in reversed(again):
            if record.kills >= 2:
                self.counts["quarantined"] += 1
                stream.done[record.index] = Verdict(Status.CRASH, None, "ended its container twice", None)
            else:
                stream.queue.appendleft(record)
        if self.deaths > 4 + 2 * self.size + 2 * len(flying):
            raise SandboxUnavailable(f"{self.deaths} sandbox workers ended one after another: {worker.link.said()}")

    def _discard(self, worker: Worker) -> None:
        self.workers.remove(worker)
        worker.link.close()
