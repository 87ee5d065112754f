"""Why vLLM's engine process did not start, by what it wrote to standard error: vLLM's exception does not say. Needs no vLLM."""

import os
import re
import sys
from collections import deque
from contextlib import suppress
from itertools import takewhile
from threading import Thread

from stages.core.engines.protocol import CardUnusable, EngineUnavailable, EngineUnusable

STANDARD_ERROR = 2
KEPT = 400  # lines
LAST_WORDS_SECONDS = 2.0

NO_KERNELS = "no kernel image is available"  # a fault of one card, where a machine has several kinds
CAUSES = (
    (
        ("driver on your system is too old", "driver version is insufficient", "unsupported toolchain", "forward compatibility"),
        "the NVIDIA driver is too old for it; update the driver",
    ),
    (
        ("Failed to find C compiler", "No working C++ compiler", "Python.h: No such file"),
        "it finds no compiler for its kernels; sudo apt-get install gcc libc6-dev python3-dev",
    ),
    ((NO_KERNELS,), "it has no kernels for this card; use another card or engine.kind=transformers"),
    (
        ("No CUDA GPUs are available", "Found no NVIDIA driver", "not compiled with CUDA", "libcuda.so.1: cannot open"),
        "CUDA finds no GPU in its environment; VLLM_BUILD=cuda make vllm, and check the driver",
    ),
)
"""Signs in the messages of torch, Triton and CUDA of what no retry changes, and what is wrong."""
_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) ?)?(?:ERROR [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_ERROR = re.compile(r"^(?!Exception (?:ignored|in thread))[\w.]*(?:Error|Exception)\b:? ?\S?")
_ASIDE = re.compile(r"^Exception (?:ignored|in thread)\b")  # what Python prints of an error that ends nothing
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception")
_MORE = "Another process may use the card, or engine.memory_share or engine.window is too large for it"


class Overheard:
    """Use as a context manager: what this process and those that start in it write to standard error is passed on, and noted.

    The processes keep what they were given. What they write later is passed on until they end.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._thread: Thread | None = None

    def __enter__(self) -> "Overheard":
        sys.stderr.flush()
        self._own = os.dup(STANDARD_ERROR)
        reading, writing = os.pipe()
        os.dup2(writing, STANDARD_ERROR)
        os.close(writing)
        self._thread = Thread(target=self._pass_on, args=(reading, os.dup(self._own)), name="vllm-stderr", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.flush()
        os.dup2(self._own, STANDARD_ERROR)
        os.close(self._own)

    def lines(self) -> list[str]:
        """Return the last lines that were written, after the block, once the processes have ended or a moment later."""
        if self._thread is not None:
            self._thread.join(LAST_WORDS_SECONDS)
        return list(self._lines)

    def _pass_on(self, reading: int, own: int) -> None:
        begun = b""
        try:
            while data := os.read(reading, 1 << 16):
                with suppress(OSError):  # a reader that has gone, a full disk: read on, or the writers would wait for ever
                    rest = data
                    while rest:
                        rest = rest[os.write(own, rest) :]
                *whole, begun = (begun + data).split(b"\n")
                self._lines.extend(line.decode(errors="replace") for line in whole)
        finally:
            os.close(reading)
            os.close(own)


def start_error(lines: list[str]) -> Exception:
    """Return `EngineUnusable` for a cause that no retry changes, else `EngineUnavailable`. Both repeat the last error.

    It is `CardUnusable` where another card may do.

    A cause counts where the last error, its traceback or an error that it is chained to says it; a warning elsewhere does not.
    """
    said = [_PREFIX.sub("", line).rstrip() for line in lines]
    block, last = _last_error(said)
    if any("CalledProcessError" in line for line in block):  # a compiler says why before Python does
        block += [line for line in said if "fatal error:" in line]
    if "memory" not in last.lower():  # a card without room is not beyond repair
        for signs, cause in CAUSES:
            if any(sign in line for line in block for sign in signs):
                error = CardUnusable if NO_KERNELS in signs else EngineUnusable
                return error(f"vLLM cannot start on this machine: {cause}" + (f" ({last})" if last else ""))
    return EngineUnavailable(f"vLLM did not start: {last or 'its messages say why'}. {_MORE}")


def _last_error(said: list[str]) -> tuple[list[str], str]:
    """Return the lines of the last error that Python raised, chained ones included, and the line that names it."""
    at = _error_before(said, len(said))
    while at is not None:
        begin = _begin(said, at)
        if begin == 0 or not _ASIDE.match(said[begin - 1]):
            more = takewhile(lambda line: line and line != _TRACEBACK and not _ASIDE.match(line), said[at + 1 :])
            return [*said[begin : at + 1], *more], said[at]
        at = _error_before(said, begin)
    return [], ""


def _error_before(said: list[str], end: int) -> int | None:
    return next((place for place in reversed(range(end)) if _ERROR.match(said[place])), None)


def _begin(said: list[str], at: int) -> int:
    """Return where the traceback of the error at a line begins, or that of the first error in its chain."""
    begin = at
    while begin and said[begin - 1].startswith(" "):
        begin -= 1
    if not begin or said[begin - 1] != _TRACEBACK:
        return at
    begin -= 1
    before = next((place for place in reversed(range(begin)) if said[place]), None)
    if before is None or not said[before].startswith(_CHAINED):
        return begin
    earlier = _error_before(said, before)
    return begin if earlier is None else _begin(said, earlier)
