"""The sandbox: the only place where model-written programs run.

This file separates failures of the model from failures of the infrastructure. Whatever a program does becomes a `Verdict`; a
sandbox that cannot answer raises `SandboxUnavailable`. A dead sandbox must never look like a wrong answer.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from stages.core.unavailable import Unavailable

# Checkouts that share a Docker daemon each need their own image: a pool rejects an image with another checkout's runner.
IMAGE = os.environ.get("POPULORA_SANDBOX_IMAGE") or "populora-sandbox:local"


class Status(StrEnum):
    """Outcome of a program, named as in `populora verify`."""

    VALID = "valid"
    UNPARSED = "unparsed"
    BANNED = "banned"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    NONDETERMINISTIC = "nondeterministic"
    UNSUPPORTED_VALUE = "unsupported_value"
    CRASH = "crash"


@dataclass(frozen=True)
class Job:
    """Run `f(*input)` of `program` once, or `validate` it: twice, in two servers with different hash seeds, values equal.

    `input` is comma-separated Python literals as in a call; it is parsed as data and never spliced into code. `trace` also counts
    how often each line of the program ran, which is slower, within the same limits.
    """

    program: str
    input: str
    validate: bool
    trace: bool = False


@dataclass(frozen=True)
class Verdict:
    """Status, the value in canonical typed text when valid (else None), one line of detail, and the program's key.

    `program_key` is the digest of the normalised syntax tree (canonical names, no comments or docstrings), None for single runs
    and if the program does not parse. It is computed before any part of the program runs. `lines`: (line, times it ran) of a
    traced run that returned a value. `limits_used`: processor or wall time of its longest run, in limits of one run; 0 below 0.8.
    """

    status: Status
    value: str | None
    detail: str
    program_key: str | None
    text: str | None = None  # the value as `repr` writes it (dict order as in the program); None: derive it from `value`
    lines: tuple[tuple[int, int], ...] = ()
    # not part of the outcome: the same run takes another time on another day
    limits_used: float = field(default=0.0, compare=False)


IDLE = Job("", "", False)
"""A source that has no item at the moment yields this object; our sandboxes answer with TICK, out of order."""
TICK = Verdict(Status.VALID, None, "tick", None)


class Sandbox(Protocol):
    """Runs programs."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        """Yield one verdict per job, in order. Raise `SandboxUnavailable`."""
        ...

    def attestation(self) -> dict[str, object]:
        """Return the active walls (kind, image digest, runner digest, Python version, missing walls), for the manifest."""
        ...

    def close(self) -> None:
        """Stop every container and process of this sandbox."""
        ...


class SandboxUnavailable(Unavailable):
    """The sandbox could not answer: an infrastructure failure, to be retried, never a reward."""
