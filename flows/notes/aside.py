"""Work beside a run, in a thread: one job after another, and a fault never fails or delays the run."""

import logging
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context

from prefect.client.orchestration import SyncPrefectClient, get_client

_LOG = logging.getLogger("populora.notes")

Job = Callable[[SyncPrefectClient], None]


class Aside:
    """A thread with a client of Prefect's server. Call `close` at the end. `what` it does is named in the warning of a fault."""

    def __init__(self, run_id: str, what: str) -> None:
        self._run_id, self._what = run_id, what
        self._faulty = False
        self._work: queue.Queue[Job | None] = queue.Queue()
        context = copy_context()  # which server is Prefect's
        self._thread = threading.Thread(target=context.run, args=(self._serve,), name="notes", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._work.put(job)

    def close(self, patience: float) -> None:
        """Wait up to this many seconds for what is queued. What fails later is not reported: a stopped run needs no warning."""
        self._work.put(None)
        self._thread.join(patience)
        self._faulty = True

    def _serve(self) -> None:
        try:
            with get_client(sync_client=True) as client:
                while (job := self._work.get()) is not None:
                    self._try(job, client)
        except Exception as error:
            self._log_once(error)

    def _try(self, job: Job, client: SyncPrefectClient) -> None:
        try:
            job(client)
        except Exception as error:  # any fault: nothing here may fail a run
            self._log_once(error)

    def _log_once(self, error: Exception) -> None:
        if not self._faulty:
            _LOG.warning("run %s: %s (%s: %s); the run continues", self._run_id, self._what, type(error).__name__, error)
        self._faulty = True
