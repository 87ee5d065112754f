"""Stage processes that outlive a stage's flow run, on a machine with cards: `populora worker gpu` keeps them, flow runs ask it.

Prefect starts a process for each flow run. The engine that this process would start would end with it, so the worker itself holds
the processes: one set a card, until another run needs the card, nothing has asked for a while, or the worker ends. They talk in
JSON lines over a Unix socket in a folder that only this user may enter. Whoever hangs up ends what it had asked for.
"""

import hashlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from flows.cards import Card
from flows.config import ConfigError
from flows.execution.code_version import check_version, code_stamp, own_version
from flows.execution.run_stage import Reference, Spec
from flows.execution.slots import Slots, Tenant
from flows.execution.stage_process import CANCELLED, StageFailed, Told, WorkerLost, Workers, result_of
from flows.monitoring.meter import Reading
from stages.core.child_process import PROGRESS

ADDRESS = "POPULORA_RESIDENTS"
"""Where a flow run finds the processes that its worker keeps; unset where it keeps none."""
IDLE_MINUTES = "POPULORA_IDLE_MINUTES"
DEFAULT_IDLE_MINUTES = 60.0
LOOK_SECONDS = 5.0
ADDRESS_BYTES = 100


def idle_minutes(environment: Mapping[str, str] = os.environ) -> float:
    """Return after how long without a step processes end. Raises ConfigError."""
    text = environment.get(IDLE_MINUTES, str(DEFAULT_IDLE_MINUTES))
    with suppress(ValueError):
        if 0 < (minutes := float(text)) < float("inf"):
            return minutes
    raise ConfigError(
        f"{IDLE_MINUTES}={text}: give the minutes after which an idle engine ends, such as {DEFAULT_IDLE_MINUTES:.0f}"
    )


class Residents:
    """The worker's side. Use as a context manager: nothing outlives it, and `address` stands in the environment meanwhile."""

    def __init__(self, found: Sequence[Card], minutes: float) -> None:
        self._slots, self._seconds = Slots(found, Tenant(1)), minutes * 60
        self._folder = _socket_folder()
        self.address = f"{self._folder}/socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._ended = threading.Event()

    def __enter__(self) -> "Residents":
        self._listener.bind(self.address)
        self._listener.listen()
        os.environ[ADDRESS] = self.address
        for work in (self._accept, self._end_idle):
            threading.Thread(target=work, name="residents", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(ADDRESS, None)
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a call of accept in another thread returns
        self._listener.close()
        self._slots.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                caller, _ = self._listener.accept()
            except OSError:  # closed, or out of file descriptors for a moment
                self._ended.wait(0.1)
                continue
            threading.Thread(target=self._serve, args=(caller,), name="resident", daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        """Answer one order."""
        with suppress(OSError, ValueError), caller, caller.makefile("rw", encoding="utf-8") as lines:
            order = json.loads(lines.readline())

            def tell(values: Mapping[str, Any]) -> None:
                with suppress(OSError):  # it hung up
                    lines.write(json.dumps(values) + "\n")
                    lines.flush()

            try:
                tell({"done": self._work(order, caller, lambda reading: tell({PROGRESS: asdict(reading)}))})
            except Exception as error:
                tell({"error": type(error).__name__, "message": str(error)})
            caller.shutdown(socket.SHUT_RDWR)

    def _work(self, order: dict[str, Any], caller: socket.socket, told: Told) -> Reference:
        check_version(order["version"])
        spec, python = Spec(**order["spec"]), order["python"]
        tenant = Tenant(order["threads"], (*order["identity"], code_stamp()))
        try:
            asking = _Caller(caller, self._slots.look_again)
            with self._slots.seat(tenant, spec, python, asking.waits) as workers, asking.waits_for(workers):
                return workers.run(spec, python, told)
        except StageFailed:
            if self._ended.is_set():  # the step was ended because we end: another machine repeats it
                raise _ended_before(spec.stage) from None
            raise

    def _end_idle(self) -> None:
        while not self._ended.wait(min(LOOK_SECONDS, self._seconds)):
            self._slots.end_idle(self._seconds)


def _socket_folder() -> str:
    """Make a folder of mode 0700, in a place whose name leaves room: a socket's address has at most 108 bytes, 104 on macOS."""
    folder = tempfile.mkdtemp(prefix="populora-residents-")
    if len(os.fsencode(f"{folder}/socket")) > ADDRESS_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="populora-residents-", dir="/tmp")
    return folder


class _Caller:
    """Whoever asked for a step. A caller says nothing after its order; one that hangs up ends its step, also while it waits."""

    def __init__(self, line: socket.socket, look_again: Callable[[], None]) -> None:
        self._line, self._look_again = line, look_again
        self._deciding, self._there = threading.Lock(), True
        self._workers: Workers | None = None
        threading.Thread(target=self._listen, name="caller", daemon=True).start()

    def waits(self) -> bool:
        """Return whether it has not hung up."""
        return self._there

    @contextmanager
    def waits_for(self, workers: Workers) -> Iterator[None]:
        """Kill the workers if the caller hangs up before the step is done. Raises StageFailed if it already has."""
        with self._deciding:
            if not self._there:
                raise StageFailed(CANCELLED)
            self._workers = workers
        try:
            yield
        finally:
            with self._deciding:
                self._workers = None

    def _listen(self) -> None:
        with suppress(OSError):
            self._line.recv(1, socket.MSG_PEEK)
        with self._deciding:
            self._there = False
            if self._workers is not None:
                self._workers.leave()
        self._look_again()


def run_resident(address: str, order: Mapping[str, Any], told: Told) -> Reference:
    """Run one step (see `order_of`) in the processes that this machine's worker keeps. Raises WorkerLost if it is gone."""
    answer = _asked(address, order, told)
    if answer is None:
        raise _ended_before(order["spec"]["stage"])
    return result_of(answer)


def _ended_before(stage: str) -> WorkerLost:
    return WorkerLost(f"the worker of this machine ended before stage {stage} did")


def order_of(spec: Spec, description: Mapping[str, Any], threads: int, python: str) -> dict[str, Any]:
    """Return the order for a step. Processes stay for steps of equal `identity`: one run, as its run.json describes it."""
    described = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    identity = [spec.store, spec.run_id, str(spec.epoch), str(spec.generations), described]
    return {"spec": asdict(spec), "python": python, "threads": threads, "identity": identity, "version": own_version()}


def _asked(address: str, order: Mapping[str, Any], told: Told) -> dict[str, Any] | None:
    """Return the answer; None if there is none."""
    with socket.socket(socket.AF_UNIX) as worker, suppress(OSError):
        worker.connect(address)
        worker.sendall(json.dumps(order).encode() + b"\n")
        with worker.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                said: dict[str, Any] = json.loads(line)
                if PROGRESS not in said:
                    return said
                told(Reading(**said[PROGRESS]))
    return None
