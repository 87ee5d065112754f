"""Watch a process and, when it is gone, kill what it had started: `python orphan_guard.py PID`. Standard library only.

A flow that is killed, or that Prefect ends at a SIGTERM, cannot clean up. Neither its stage workers nor the Prefect server
started for it may stay behind. Requires /proc; on other systems workers exit by themselves.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

PERIOD_SECONDS = 0.5
TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM stopped, as a shell reports it."""
STAGE_WORKER = "flows.worker"
"""Names a process whose group ends with it: vLLM's engine process is in it, has the card, and does not watch its parent.

Other groups stay: the flows in the group of Prefect's worker end by themselves and report it.
"""

WORKER = "POPULORA_WORKER_PID"
"""Names, in the environment of a flow run, the `populora worker` that stands above it."""

_guarded: set[int] = set()


def start() -> None:
    """Start a guard for this process, outside its process group. One is enough."""
    if os.getpid() in _guarded:
        return
    _guarded.add(os.getpid())
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid())]
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


class Terminated(SystemExit):
    """SIGTERM was received. It ends a process that does not catch it with TERMINATED."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


def exit_on_sigterm() -> None:
    """Turn SIGTERM into Terminated, so that a preempted machine releases its leases and sandboxes first.

    Inside a flow, Prefect handles SIGTERM: it reports the run as crashed and then calls this handler. The end of a terminal
    (SIGHUP) is a SIGTERM, too.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, leave)
    for number in hang_ups():
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))


def hang_ups() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, which the processes of a terminal get at its end; nothing where it is ignored, as under nohup."""
    return () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)


def leave_with_parent() -> None:
    """Send this process SIGTERM when its parent is gone: without its Prefect worker, a flow can no longer be cancelled.

    A parent that was gone before, while this process loaded its libraries, is missed where the environment names no worker.
    """
    parent, worker = os.getppid(), os.environ.get(WORKER, "")
    above = _ancestors(parent)[1:]  # our parent is Prefect's worker, or whoever has adopted us: as process 1, even the named one
    adopted = worker.isdecimal() and Path("/proc/self/stat").exists() and int(worker) not in above

    def wait() -> None:
        while os.getppid() == parent and not adopted:
            time.sleep(PERIOD_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="leave-with-parent", daemon=True).start()


def descendants(pid: int, named: str) -> list[int]:
    """Return the descendants of `pid` whose command line contains `named`."""
    found, open_ends = [], sorted(_children(pid))
    while open_ends:
        child = open_ends.pop()
        open_ends += sorted(_children(child))
        if lives(child, named):
            found.append(child)
    return found


def lives(pid: int, named: str) -> bool:
    """Return whether the process exists, is not a zombie, and has `named` in its command line."""
    with suppress(OSError):
        return named.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def watch(parent: int) -> None:
    """Record the children of `parent`, and kill those that are left when it has ended, a stage worker with its group."""
    started: set[int] = set()
    while os.getppid() == parent:
        started |= _children(parent) - {os.getpid()}
        time.sleep(PERIOD_SECONDS)
    for pid in _orphans(started):
        with suppress(ProcessLookupError):
            if lives(pid, STAGE_WORKER) and os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> set[int]:
    """Return the processes that `pid` started and that have not ended."""
    found: set[int] = set()
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(child) for child in listing.read_text().split()}
    return found


def _ancestors(pid: int) -> list[int]:
    """Return the process and those above it, up to the one that has no parent here."""
    found: list[int] = []
    while pid > 0:
        found.append(pid)
        pid = _parent(pid)
    return found


def _orphans(pids: set[int]) -> set[int]:
    """Return those of `pids` adopted by the same process as this one. A reused process id would have another parent."""
    return {pid for pid in pids if _parent(pid) == os.getppid()}


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 if it has none here, or has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


if __name__ == "__main__":
    watch(int(sys.argv[1]))
