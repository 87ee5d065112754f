"""Jobs in a thread next to a run, one after another: a fault never fails or delays the run."""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Generic, TypeVar

_LOG = logging.getLogger("populora.notes")

Tool = TypeVar("Tool")


class Aside(Generic[Tool]):
    """A thread that opens a tool and hands it to each job. Call `close` at the end. `fault` begins the warning of a fault."""

    def __init__(self, run_id: str, fault: str, opened: Callable[[], AbstractContextManager[Tool]]) -> None:
        self._run_id, self._fault, self._opened = run_id, fault, opened
        self._faulty = False
        self._work: queue.Queue[Callable[[Tool], None] | None] = queue.Queue()
        context = copy_context()  # which server is Prefect's
        self._thread = threading.Thread(target=context.run, args=(self._serve,), name="notes", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[Tool], None]) -> None:
        """Queue a job."""
        self._work.put(job)

    def close(self, patience: float) -> None:
        """Wait up to this many seconds for what is queued. What fails later is not reported: a stopped run needs no warning."""
        self._work.put(None)
        self._thread.join(patience)
        self._faulty = True

    def _serve(self) -> None:
        try:
            with self._opened() as tool:
                while (job := self._work.get()) is not None:
                    self._try(job, tool)
        except Exception as error:
            self._log_once(error)

    def _try(self, job: Callable[[Tool], None], tool: Tool) -> None:
        try:
            job(tool)
        except Exception as error:  # any fault: nothing here may fail a run
            self._log_once(error)

    def _log_once(self, error: Exception) -> None:
        if not self._faulty:
            _LOG.warning("run %s: %s (%s: %s); the run continues", self._run_id, self._fault, type(error).__name__, error)
        self._faulty = True
