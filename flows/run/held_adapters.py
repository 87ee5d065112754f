"""Adapters that a process holds in memory from one stage to the next, in place of reading and hashing their files again.

An update reads what the one before it wrote, weights and moments, and its metrics compare the weights that played. So a process
holds, of each member, the weights of the two newest generations and the moments of the newest. Files that no stage has asked for
in the last two generations, such as those of a member that was replaced, are let go. What is held counts only for the digest in a
manifest, so that nothing stale is used, and is read-only, so that nobody changes it.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from flows.config import ConfigError
from flows.run.manifest import Ref
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import WEIGHTS_FILE

LIMIT = "POPULORA_HELD_GB"
DEFAULT_GB, MOST_GB = "16", 1e6
STARTED = -1  # the generation of what was there before the first
NEWEST = {WEIGHTS_FILE: 2}
"""How many files of a member are held, if more than one."""


@dataclass
class _Held:
    digest: str
    arrays: Weights
    size: int
    asked_in: int  # the generation of the stage that last wrote it or asked for it


class HeldAdapters:
    """The arrays of adapters' files, at most `limit` bytes; with 0, none. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[tuple[str, str, int], _Held] = {}  # by member, file and generation; the one held longest first
        self._lock = threading.Lock()

    def find(self, ref: Ref, now: int) -> Weights | None:
        """Return the arrays of a file with this digest, or None. `now` is the generation of the stage that asks."""
        with self._lock:
            held = self._held.get(_place(ref.uri))
            if held is None or held.digest != ref.sha256:
                return None
            held.asked_in = max(held.asked_in, now)
            return held.arrays

    def hold(self, ref: Ref, arrays: Weights, now: int) -> None:
        """Hold the arrays of a file in place of older ones of its member, unless they do not fit.

        Newer ones of its member stay: a benchmark of the start must not displace what the next update reads.
        """
        if not self._limit:
            return
        member, name, generation = _place(ref.uri)
        size = sum(array.nbytes for array in arrays.values())
        with self._lock:
            known = {one for *file, one in self._held if file == [member, name]} | {generation}
            newest = sorted(known)[-NEWEST.get(name, 1) :]
            if size > self._limit or generation not in newest:
                return
            for old in known.difference(newest) | {generation}:
                self._held.pop((member, name, old), None)
            for place in [place for place, held in self._held.items() if held.asked_in < now - 1]:
                del self._held[place]
            while sum(held.size for held in self._held.values()) + size > self._limit:
                del self._held[next(iter(self._held))]
            for array in arrays.values():
                array.flags.writeable = False
            self._held[member, name, generation] = _Held(ref.sha256, arrays, size, now)


def held_by_process(environment: Mapping[str, str] = os.environ) -> HeldAdapters:
    """Return what a process may hold. Raises ConfigError for a wrong limit."""
    text = environment.get(LIMIT, "").strip() or DEFAULT_GB
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit <= MOST_GB:
        raise ConfigError(f"{LIMIT}={text}: give the gigabytes of adapters that a process may hold in memory, or 0 for none")
    return HeldAdapters(int(limit * 1e9))


def _place(uri: str) -> tuple[str, str, int]:
    """Return member, file and generation of `adapters/t0-g0007/optimizer.safetensors` or `adapters/t0-start/…`."""
    adapter_id, _, name = uri.removeprefix("adapters/").partition("/")
    member, _, when = adapter_id.rpartition("-")
    return member, name, int(when[1:]) if when[1:].isdecimal() else STARTED
