"""The heartbeat of a lease: it renews the lease, survives any error, and stops the run before the lease could be lost.

Two threads. One renews the lease and may hang for minutes in a store that does not answer. The other counts how long ago the
newest renewal began and interrupts the main thread when that is too long. It counts its own waits instead of reading a clock,
so that a frozen process (Ctrl-Z, SIGSTOP) gets a chance to renew first.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

JOIN_SECONDS = 5.0


class Heartbeat:
    """Call `renew` every `beat_seconds`. Once another process has the run, `renew` returns a reason and the heartbeat stops.

    `taken` then holds the reason. If no renewal succeeds for `give_up_seconds`, `lost` does. Either way, the main thread gets
    SIGTERM (SIGINT where nothing handles SIGTERM), which interrupts whatever it waits for.
    """

    def __init__(self, run_id: str, renew: Callable[[int], str], beat_seconds: float, give_up_seconds: float) -> None:
        self.lost, self.taken = "", ""
        self._run_id, self._renew = run_id, renew
        self._beat_seconds, self._give_up_seconds = beat_seconds, give_up_seconds
        self._awake, self._newest = 0.0, 0.0  # seconds counted by the watch: in total, and when the newest renewal began
        self._fault = ""
        self._stop = threading.Event()
        self._beating = threading.Thread(target=self._beat, name=f"lease-{run_id}", daemon=True)
        self._watching = threading.Thread(target=self._watch, name=f"lease-watch-{run_id}", daemon=True)

    def start(self) -> None:
        """Start the heartbeat."""
        self._beating.start()
        self._watching.start()

    def stop(self) -> bool:
        """Stop the heartbeat. Return whether the newest renewal has ended: a store that hangs may keep it for minutes."""
        self._stop.set()
        self._watching.join()
        self._beating.join(JOIN_SECONDS)
        return not self._beating.is_alive()

    def _beat(self) -> None:
        beat = 0
        while not self._stop.wait(self._beat_seconds):
            beat += 1
            began = self._awake  # an observer may have seen the new beat from here on
            try:
                taken = self._renew(beat)
            except Exception as error:  # any error may be transient; the watch decides when it has lasted too long
                self._say_fault(error)
                continue
            if taken:
                self.taken = taken
                if not self._stop.is_set():  # else the run is ending, of the same cause or another
                    self._stop.set()
                    _interrupt_main_thread()  # it could commit nothing of what it still computes
                return
            self._newest = began
            if self._fault:
                self._say("the heartbeat succeeds again")
                self._fault = ""

    def _say_fault(self, error: Exception) -> None:
        first = not self._fault
        self._fault = (str(error) or type(error).__name__).splitlines()[0]
        if first:
            limit = f"{self._give_up_seconds:.0f} s"
            self._say(f"the heartbeat failed ({self._fault}); retrying, and stopping the run after {limit} without success")

    def _watch(self) -> None:
        tick = min(self._beat_seconds, self._give_up_seconds / 10)
        before = time.monotonic()
        while not self._stop.wait(tick):
            now = time.monotonic()
            self._awake += min(now - before, 2 * tick)
            before = now
            if self._awake - self._newest > self._give_up_seconds:
                why = self._fault or "the store does not answer"
                self.lost = (
                    f"run {self._run_id}: no heartbeat for {self._give_up_seconds:.0f} s ({why}); stopped before another process "
                    "takes the run over; the same command resumes it"
                )
                _interrupt_main_thread()
                return

    def _say(self, what: str) -> None:
        with suppress(OSError):  # a full disk behind standard error is no fault of the heartbeat
            print(f"run {self._run_id}: {what}", file=sys.stderr, flush=True)


def _interrupt_main_thread() -> None:
    """Wake the main thread from whatever it waits for, with a signal that it turns into an exception."""
    main = threading.main_thread().ident
    number = next((one for one in (signal.SIGTERM, signal.SIGINT) if callable(signal.getsignal(one))), None)
    if main is not None and number is not None:  # otherwise the fence stops it at its next commit
        signal.pthread_kill(main, number)
