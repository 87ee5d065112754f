"""The sandbox: the only place where model-written programs run.

The line between the model's fault and the world's runs through this file. Whatever a program does becomes a `Verdict`; a
sandbox that cannot answer raises `SandboxUnavailable`. A dead sandbox must never look like a wrong answer.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

# Checkouts that share a Docker daemon need an image each: a pool refuses one that holds another checkout's runner.
IMAGE = os.environ.get("POPULORA_SANDBOX_IMAGE") or "populora-sandbox:local"


class Status(StrEnum):
    """What became of a program, in the words of `populora verify`."""

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
    how often each line of the program ran: slower, within the same limits.
    """

    program: str
    input: str
    validate: bool
    trace: bool = False


@dataclass(frozen=True)
class Verdict:
    """Status, the value in canonical typed text when valid (else None), one line of detail, and the program's key.

    `program_key` is the digest of the normalised syntax tree (names canonical, comments and docstrings gone), None when the
    program does not parse and for single runs. It is computed before any of the program runs. `lines`: (line, times it ran) of a
    traced run that returned a value.
    """

    status: Status
    value: str | None
    detail: str
    program_key: str | None
    text: str | None = None  # the value as `repr` writes it (dict order as the program made it); None: write it from `value`
    lines: tuple[tuple[int, int], ...] = ()


IDLE = Job("", "", False)
"""A source that has nothing at the moment yields this very object; our sandboxes answer with TICK, out of order."""
TICK = Verdict(Status.VALID, None, "tick", None)


class Sandbox(Protocol):
    """Runs programs."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        """One verdict a job, in order, streaming. Raises `SandboxUnavailable`."""
        ...

    def attestation(self) -> dict[str, object]:
        """What walls stand (kind, image digest, runner digest, Python version, missing walls), for the manifest."""
        ...

    def close(self) -> None:
        """Ends every container and process of this sandbox."""
        ...


class SandboxUnavailable(RuntimeError):
    """The sandbox could not answer: the world's fault, to be retried, never a reward."""
