"""One worker of a pool: the stream to its supervisor, the jobs in flight, and the answers received."""

import hashlib
import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stages.core.sandbox.protocol import Job, Verdict

SANDBOX_FOLDER = Path(__file__).resolve().parents[3] / "containers" / "sandbox"
START_SECONDS, SILENT_SECONDS = 20, 2
_LARGEST_ANSWER = 1 << 26
# Canary tasks like those of the judge, each of equal strength: the job, its value, and the key that `runner/key.py` makes.
_ORDERED = (
    Job("def f(a, b):\n    return sorted({a: b, b: a}.items()), (a + b) / 2, str(a)", "3, 5", True),
    ("([(3, 5), (5, 3)], 4.0, '3')", "d2754a00547addc59858557855776ca0"),
)
_MIXED = (
    Job("def f(s):\n    return [s.upper(), len(s), s == 'x', None]", "'ab'", True),
    ("['AB', 2, False, None]", "611fcbd832e2b684c88c0a0d19ce6a06"),
)
_WITNESSED = (  # sets: five servers
    Job("def f(s):\n    return {s, s * 2}", "'ab'", True),
    ("{'ab', 'abab'}", "59a59928557ab3694057f8aaafc02b05"),
)
CANARIES = (_ORDERED, _MIXED) * 8 + (_WITNESSED,)


def runner_digest() -> str:
    """Return the sha256 of the runner's files in this checkout; a supervisor attests its own in the same way."""
    digest = hashlib.sha256()
    for file in sorted((SANDBOX_FOLDER / "runner").glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def core_for(workers: int, taken: Sequence[int | None]) -> int | None:
    """Return the least-used core for one of `workers` workers, or None (the kernel chooses) unless all cores get equally many.

    A program costs 10 to 20 % less on the core of its template and supervisor, because what it copies is in that core's cache.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS, where the containers run in a virtual machine of their own
        return None
    cores = sorted(os.sched_getaffinity(0))
    return min(cores, key=taken.count) if workers % len(cores) == 0 else None


def missing_walls(attestation: dict[str, Any]) -> list[str]:
    """Return the names of walls that programs' processes and the key server checked for themselves and found missing."""
    processes = [*attestation.get("program", [{}]), attestation.get("key_server", {})]
    found = {name for process in processes for name in process.get("missing", ["program_walls"])}
    first, count = attestation.get("uids", (0, 0))
    children = [process.get("child", {}) for process in processes]
    uids = [child.get("Uid", "") for child in children]
    if not all(uid.isdigit() and first <= int(uid) < first + count for uid in uids):
        found.add("own_uid")
    tried = ("fork", "open", "socket", "kill", "setuid")
    return sorted(found | {f"no_{name}" for child in children for name in tried if not child.get(name, "").startswith("refused")})


class Link(Protocol):
    """A byte stream to a supervisor."""

    def filenos(self) -> tuple[int, int]:
        """Return the descriptors to poll for reading and for writing."""
        ...

    def send(self, data: bytes | bytearray) -> int:
        """Write as many bytes as fit and return their number. Raise OSError if the other side is gone."""
        ...

    def receive(self) -> bytes | None:
        """Return the bytes received: b"" if there are none, None at end of stream."""
        ...

    def said(self) -> str:
        """Return the supervisor's last other output, for messages."""
        ...

    def close(self) -> None:
        """Stop the supervisor and everything in it."""
        ...


@dataclass(frozen=True)
class RunLimits:
    """Per run: CPU and wall seconds, MiB of address space, characters of input, extra servers for programs with sets."""

    cpu_seconds: float = 2.0
    wall_seconds: float = 10.0
    memory_mb: int = 256
    witnesses: int = 3
    input_text: int = 65_536

    @property
    def patience(self) -> float:
        """Seconds for which a worker may be silent: all runs of a task, in lean servers and again in full ones, and some more."""
        return 2 * (self.witnesses + 2) * self.wall_seconds + START_SECONDS


@dataclass
class Record:
    """A job in flight: its place in the output, its bytes, and its history."""

    index: int
    data: bytes
    validate: bool
    imports: bool = False
    canary: tuple[str, str] | None = None  # the correct value and key
    alone: bool = False
    careful: bool = False
    kills: int = 0
    ended: int = 0


@dataclass
class Worker:
    """One supervisor. `unconfirmed` holds verdicts that no later canary has confirmed yet."""

    link: Link
    started: float
    core: int | None = None
    ready: bool = False
    attestation: dict[str, object] = field(default_factory=dict)
    outgoing: bytearray = field(default_factory=bytearray)
    incoming: bytearray = field(default_factory=bytearray)
    flying: deque[Record] = field(default_factory=deque)
    unconfirmed: list[tuple[Record, Verdict]] = field(default_factory=list)
    since_canary: int = 0
    programs: int = 0
    heard: float = 0.0

    def put(self, record: Record) -> None:
        """Queue a record's bytes."""
        number = record.index & 0x7FFFFFFF
        body = struct.pack("!IB", number, record.validate | record.alone << 1 | record.imports << 2) + record.data
        if not self.flying:
            self.heard = time.monotonic()
        self.put_frame(body)
        self.flying.append(record)
        self.since_canary += 1
        self.programs += not record.canary

    def put_frame(self, body: bytes) -> None:
        """Queue a frame: its length and its bytes."""
        self.outgoing += len(body).to_bytes(4, "big") + body

    def silent(self) -> bool:
        """Return whether the worker has been silent for so long that its health should be checked."""
        waiting = bool(self.flying) or not self.ready
        return waiting and time.monotonic() - max(self.heard, self.started) > SILENT_SECONDS

    def overdue(self, limits: RunLimits) -> bool:
        """Return whether the worker has been silent for longer than any job may take."""
        now = time.monotonic()
        if not self.ready:
            return now - self.started > START_SECONDS
        return bool(self.flying) and now - self.heard > limits.patience

    def exchange(self) -> bool:
        """Move bytes both ways. Return False if the stream has ended or is invalid. `frames` returns complete frames."""
        try:
            if self.outgoing:
                del self.outgoing[: self.link.send(self.outgoing)]
            data = self.link.receive()
        except OSError:
            return False
        if data:
            self.incoming += data
            self.heard = time.monotonic()
        return data is not None and int.from_bytes(self.incoming[:4], "big") <= _LARGEST_ANSWER

    def frames(self) -> list[bytes]:
        """Remove and return the complete frames received."""
        found = []
        while len(self.incoming) >= 4 and len(self.incoming) >= 4 + (size := int.from_bytes(self.incoming[:4], "big")):
            found.append(bytes(self.incoming[4 : 4 + size]))
            del self.incoming[: 4 + size]
        return found
