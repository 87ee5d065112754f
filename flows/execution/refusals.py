"""Machines of a pool that cannot take a step: they keep out of the way for a moment, and the run asks the pool again for a while.

Without the pause, a machine that fails every step at once is always the free one, and takes each retry from those that could.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flows.base_model.hub import ModelMissing
from flows.execution.preflight import CardTooSmall
from flows.execution.run_stage import Spec
from flows.execution.stage_process import CANCELLED, StageFailed, known_error
from flows.monitoring.progress import to_stderr
from stages.core.engines.protocol import EngineUnusable
from stages.core.unavailable import Unsuited

HOLD_SECONDS = 60.0
ASK_AGAIN_SECONDS = 5.0
PATIENCE_SECONDS = 30 * 60.0


@contextmanager
def naming_this_machine() -> Iterator[None]:
    """Raise Unsuited, with this machine's name, for what another machine may have: cards, the model, access to it."""
    try:
        yield
    except (CardTooSmall, EngineUnusable, ModelMissing, Unsuited) as error:
        here, text = f"the worker on {socket.gethostname()}", str(error)
        raise Unsuited(text if text.startswith(here) else f"{here}: {text}") from error


def hold_if_unsuited(message: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait, after a flow run that failed with this message: while it waits, its worker takes no other run in its place."""
    if isinstance(known_error(message), Unsuited):
        sleep(HOLD_SECONDS)


class Patience:
    """How long a run asks a pool whose machines refuse a step, beside the retries of the step's task."""

    def __init__(self, say: Callable[[str], None] = to_stderr, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._named, self._since = set[str](), dict[Spec, float]()

    def wait(self, spec: Spec, pool: str, refusal: Unsuited, leaving: threading.Event) -> None:
        """Wait before the pool is asked again. Each refusal is told of once.

        Raises the refusal if the step has been refused for too long, StageFailed once `leaving` is set.
        """
        if str(refusal) not in self._named:
            self._named.add(str(refusal))
            minutes = f"{PATIENCE_SECONDS / 60:.0f} min"
            self._say(f"pool {pool}: {refusal}; steps that it refuses are offered to the pool's other machines for {minutes}")
        now = self._clock()
        if now - self._since.setdefault(spec, now) >= PATIENCE_SECONDS:
            raise refusal
        if leaving.wait(ASK_AGAIN_SECONDS):
            raise StageFailed(CANCELLED)

    def forget(self, spec: Spec) -> None:
        """A machine has taken the step: if it is lost there, the pool is asked as long again."""
        self._since.pop(spec, None)
