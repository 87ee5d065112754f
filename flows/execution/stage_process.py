"""The flow's side of warm stage subprocesses: started on first use, one per interpreter and card, killed as a group."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from flows import cards
from flows.base_model.hub import ModelMissing
from flows.cards import Card, CardUnavailable, Claim
from flows.config import PROJECT, ConfigError, RunConfig, dump, identity
from flows.execution.agreement import CHECKED
from flows.execution.preflight import HOURS, cards_for, stage_hours
from flows.execution.run_stage import WHERE, Spec
from flows.monitoring.meter import Reading
from flows.run.lease import Fenced, LeaseLost
from flows.run.run import Overtaken, Retired
from flows.stages import stage_of
from flows.storage import AccessRefused, Damaged, NotStored, StoreRefused, StoreUnavailable
from stages.core.child_process import ChildProcess, Json
from stages.core.engines.agreement import Disagreement
from stages.core.engines.protocol import CardUnusable, EngineUnavailable, EngineUnusable
from stages.core.sandbox.protocol import SandboxUnavailable
from stages.core.suites.math_grader import HOME_PYTHON, GraderUnavailable
from stages.core.unavailable import Unsuited

_KNOWN: dict[str, Callable[[str], Exception]] = {
    error.__name__: error
    for error in (
        *(ConfigError, ModelMissing, StoreUnavailable, Overtaken, LeaseLost, Fenced, Unsuited),
        *(StoreRefused, AccessRefused, NotStored, Retired),
        *(EngineUnavailable, EngineUnusable, CardUnusable, CardUnavailable),
        *(SandboxUnavailable, GraderUnavailable, Disagreement),
    )
}
_KNOWN[Damaged.__name__] = lambda message: Damaged(*message.partition(": ")[::2])


LAST_WORDS_SECONDS = 2.0
IDLE_SECONDS = 5.0
REST = "rest"
"""An order that is no step: put the engine to sleep."""
CANCELLED = "the run of this step was cancelled"


class StageFailed(RuntimeError):
    """A step failed with an error that a retry does not fix. The worker's standard error has the traceback."""

    exit_code = 1


class WorkerLost(EngineUnavailable):
    """The worker process died (killed, out of memory). This is an external fault: the step is retried in a new worker."""


Told = Callable[[Reading], None]
_early: dict[tuple[str, int, Card | None], ChildProcess] = {}  # by interpreter, threads and card: started, but not yet in use
_early_claims: dict[Card, Claim] = {}


def interpreter(config: RunConfig, stage: str, part: str | None = None, joins: bool = False) -> str:
    """Return the Python that runs a step, empty for this one: vLLM has its own environment.

    Joining the shards of propose or solve needs no engine, and must not wake the one that sleeps for the update; nor does a
    generator in the teachers' place.
    """
    generates = stage_of(stage).uses_engine(part, joins) and stage not in config.engineless
    return config.engine.python if config.engine.kind == "vllm" and generates else ""


def known_error(message: str) -> Exception | None:
    """Return the error named in a message `...: StoreUnavailable: its text`; None if callers do not act on it."""
    found = re.search(rf"\b({'|'.join(_KNOWN)}|WorkerLost): (.*)", message, re.S)
    return (_KNOWN | {"WorkerLost": WorkerLost})[found[1]](found[2]) if found else None


class Workers:
    """The warm workers of one flow process, or of one card of it. Use as a context manager.

    Attributes:
        card: The only card that the workers see; None leaves them the environment's.
        left: Whether `leave` was called.
        stuck: The processes that do not end although they were killed. The card stays claimed: they may still hold its memory.
        parallel: How many steps can run at the same time.
    """

    parallel = 1

    def __init__(self, threads: int, card: Card | None = None) -> None:
        self.card, self.left = card, False
        self.stuck: list[int] = []
        self._threads = threads
        self._running: dict[str, ChildProcess] = {}
        self._claim: Claim | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        deadline = time.monotonic() + IDLE_SECONDS
        for python in list(self._running):
            self._end(python, patience=max(0.0, deadline - time.monotonic()))
        if self._claim is not None and not self.stuck:
            self._claim.release()
            self._claim = None

    def claim(self) -> bool:
        """Return whether the card is ours, until the workers end. An early worker's claim is taken over."""
        if self.card is not None and self._claim is None:
            self._claim = _early_claims.pop(self.card, None) or cards.claim(self.card)
        return self._claim is not None

    def warm(self, python: str) -> bool:
        """Return whether that interpreter's worker is running, or an early one waits for its first step."""
        python = python or sys.executable
        return python in self._running or (python, self._threads, self.card) in _early

    def hang_up(self) -> None:
        """Let idle workers end by themselves, all at the same time."""
        for worker in list(self._running.values()):
            worker.hang_up()

    def leave(self) -> None:
        """Kill the workers and start no others, because the run is cancelled. May be called while a step runs."""
        self.left = True
        for worker in list(self._running.values()):
            worker.kill()

    def run(self, spec: Spec, python: str = "", told: Told = lambda reading: None) -> dict[str, Any]:
        """Run one step in the worker of that interpreter and return its small reference. `told` receives its progress.

        A step that names an interpreter uses vLLM there: it is first compared with the trainer, see flows.execution.agreement.
        Before an optimizer step, engines in other interpreters sleep, which frees the card. They do not where the attempts are
        written: a sleep that fails ends the engine and repeats the step, but loses no rollouts.
        """
        step = asdict(spec)
        if stage_of(spec.stage).trains and spec.part is not None:
            for other in [other for other in self._running if other != (python or sys.executable)]:
                if not self._running[other].running:
                    self._end(other, patience=0.0)
                    continue
                self.ask({REST: True}, other, f"the engine before {spec.stage}", told)
        if python and spec.stage in CHECKED:
            self._check(spec, python, told)
        return self.ask(step, python, f"stage {spec.stage}", told)

    def _check(self, spec: Spec, python: str, told: Told) -> None:
        """Compare that interpreter's engine with the trainer, and adapters that differ on a small sample on a larger one.

        Raises Disagreement if they differ there, too.
        """
        step, again = asdict(spec), list[str]()
        for _ in range(2):
            probe = self.ask({"probe": step, "again": again}, python, f"the probe before {spec.stage}", told)
            check = {"compare": step, "probe": probe, "again": again}
            again = self.ask(check, sys.executable, f"the check before {spec.stage}", told)["beyond"]
            if not again:
                return

    def ask(self, order: dict[str, Any], python: str, what: str, told: Told = lambda reading: None) -> dict[str, Any]:
        """Return the answer of that interpreter's worker to an order. `told` receives its progress."""
        python = python or sys.executable
        worker = self._running.get(python)
        if worker is None or not worker.running:
            self._end(python, patience=0.0)  # one that died while idle may have left an engine process on the card
            worker = self._running[python] = self._start(python)
        try:
            if self.left:  # looked at after the start: whoever leaves kills those that have started
                raise StageFailed(CANCELLED)
            _tell(worker, order)
            answer = _listen_until(worker, what, stage_hours(), told)
        except BaseException as error:  # also on a cancel: a half-read answer leaves the worker unusable
            self._end(python, patience=0.0)
            if self.left and isinstance(error, WorkerLost):
                raise StageFailed(CANCELLED) from None
            raise
        if answer is None or answer.get("error") == EngineUnavailable.__name__:  # a dead engine is dead for every retry here
            self._end(python)
            if self.left:
                raise StageFailed(CANCELLED)
        return _done(worker, answer, what)

    def _start(self, python: str) -> ChildProcess:
        ready = _early.pop((python, self._threads, self.card), None)
        return ready if ready is not None and ready.running else _launch(python, self._threads, self.card)

    def _end(self, python: str, patience: float = IDLE_SECONDS) -> None:
        worker = self._running.pop(python, None)
        if worker is not None and not worker.end(patience):
            self.stuck.append(worker.process.pid)
            where = "" if self.card is None else f"; {self.card} is not used again"
            with suppress(OSError):  # a line that cannot be printed hides no error
                print(f"process {worker.process.pid} was killed and does not end{where}", file=sys.stderr, flush=True)


@contextmanager
def early_worker(config: RunConfig, prepare: bool) -> Iterator[Callable[[], None]]:
    """Start the worker of the run's first step. Yields a function that waits until the worker reports that the run can begin.

    That function raises ConfigError for a missing model or an unknown choice and SandboxUnavailable for a sandbox that does not
    answer, before anything is written. With `prepare`, the worker then loads the model while the flow loads its own libraries, on
    the first free card if there are cards. Raises CardUnavailable if other runs have all of them.
    """
    card = _first_free(cards_for(config)) if prepare else None
    key = (sys.executable, config.threads, card)
    worker = _early[key] = _launch(*key, "--early")
    try:
        _tell(worker, {"config": identity(dump(config)), "prepare": prepare})  # the form in which its steps read it from run.json
        yield lambda: _check(worker)
    finally:
        unused = _early.pop(key, None)
        if unused is not None:
            unused.end()
        if card is not None and (claim := _early_claims.pop(card, None)) is not None:
            claim.release()


def _first_free(found: list[Card]) -> Card | None:
    """Return the first card that no other run has, and claim it; None without cards. Raises CardUnavailable."""
    for card in found:
        if (claim := cards.claim(card)) is not None:
            _early_claims[card] = claim
            return card
    if found:
        raise cards.in_use(found)
    return None


def _tell(worker: ChildProcess, order: Mapping[str, Any]) -> None:
    """Send an order. Raises WorkerLost if the worker has died in the meantime."""
    try:
        worker.send(order)
    except BrokenPipeError as error:
        raise WorkerLost("the worker exited before it received its step") from error


def _listen_until(worker: ChildProcess, asked: str, hours: float, told: Told) -> Json | None:
    """Return the worker's answer. At the deadline, print the worker's stack on standard error, kill it and raise StageFailed.

    The clock runs in this process, because a single long call in the worker (such as a regular expression) would block one there.
    """
    deadline = time.monotonic() + hours * 3600
    answer = worker.answer(deadline, lambda values: told(Reading(**values)))
    if answer is None and time.monotonic() >= deadline:
        answer = worker.last_words(WHERE, LAST_WORDS_SECONDS)
        if answer is None:
            raise StageFailed(
                f"{asked} took longer than {hours:g} h and was stopped; standard error shows its stack. If it is only slow, "
                f"resume the run with a larger {HOURS}"
            )
    return answer


def _done(worker: ChildProcess, answer: Json | None, asked: str) -> Json:
    if answer is None:
        raise WorkerLost(f"the worker of {asked} exited with code {worker.process.poll()}")
    return result_of(answer)


def result_of(answer: Json) -> Json:
    """Return the result in an answer. Raises the error that it names."""
    if "error" in answer:
        raise (_KNOWN | {"WorkerLost": WorkerLost}).get(answer["error"], StageFailed)(answer["message"])
    done: Json = answer["done"]
    return done


def _check(worker: ChildProcess) -> None:
    _done(worker, worker.answer(), "the check")


def _launch(python: str, threads: int, card: Card | None, *more: str) -> ChildProcess:
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR"}  # otherwise 200 lines at every start; the user's setting wins
    environment = quiet | dict(os.environ) | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    environment |= cards.pinned(card)
    environment.setdefault(HOME_PYTHON, sys.executable)
    try:
        return ChildProcess([python, "-m", "flows.worker", "--warm", *more], environment, PROJECT, group=True)
    except OSError as error:
        if python == sys.executable:
            raise
        raise Unsuited(f"engine.python: {python} does not start: {error.strerror}; run make vllm, or give another") from error
