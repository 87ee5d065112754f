"""Watches a process and, when it is gone, ends what it had started: `python guard.py PID`. Standard library only.

A flow that is killed, or that Prefect ends at a SIGTERM, can clean up nothing: neither its stage workers nor the Prefect server
that was started for it may stay behind. Works where there is a /proc; elsewhere workers end themselves.
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


_guarded: set[int] = set()


def start() -> None:
    """Starts a guard for this process, outside of its process group; one is enough."""
    if os.getpid() in _guarded:
        return
    _guarded.add(os.getpid())
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid())]
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


def exit_on_sigterm() -> None:
    """Turns SIGTERM into SystemExit(143): a machine that is taken away lets go of its leases and sandboxes first."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(143)

    signal.signal(signal.SIGTERM, leave)


def leave_with_parent() -> None:
    """Sends this process SIGTERM when its parent is gone: without its Prefect worker a flow could not be cancelled any more."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(PERIOD_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="leave-with-parent", daemon=True).start()


def descendants(pid: int, named: str) -> list[int]:
    """Processes below `pid` whose command line has `named`."""
    found, open_ends = [], sorted(_children(pid))
    while open_ends:
        child = open_ends.pop()
        open_ends += sorted(_children(child))
        if lives(child, named):
            found.append(child)
    return found


def lives(pid: int, named: str) -> bool:
    """Whether there is such a process, no zombie, whose command line has `named`."""
    with suppress(OSError):
        return named.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def watch(parent: int) -> None:
    """Remembers the children of `parent`, and kills those that are left when it has ended."""
    started: set[int] = set()
    while os.getppid() == parent:
        started |= _children(parent) - {os.getpid()}
        time.sleep(PERIOD_SECONDS)
    for pid in _orphans(started):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> set[int]:
    """Processes that `pid` started and that have not ended."""
    found: set[int] = set()
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(child) for child in listing.read_text().split()}
    return found


def _orphans(pids: set[int]) -> set[int]:
    """Those of `pids` that the process which adopted us has adopted too: a number used again would have another parent."""
    adopted = set()
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getppid():
                adopted.add(pid)
    return adopted


if __name__ == "__main__":
    watch(int(sys.argv[1]))
