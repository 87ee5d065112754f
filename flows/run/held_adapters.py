"""Adapters that a process keeps in memory from one stage to the next, so that it reads and hashes each file at most once.

An update reads what the one before it wrote, weights and moments, and its metrics compare the weights that played. So a process
keeps, of each member, the weights of the two newest generations and the moments of the newest, whether it wrote or read them.
What it keeps counts only for the digest in a manifest, so that nothing stale is used. All who ask share the arrays, and nobody
changes them in place.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from flows.run.manifest import Ref
from flows.store.errors import StoreRefused
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import WEIGHTS_FILE

LIMIT = "POPULORA_HELD_GB"
DEFAULT_GB = "16"
STARTED = -1  # the generation of what was there before the first
NEWEST = {WEIGHTS_FILE: 2}
"""How many files of a member are kept, if more than one."""


@dataclass(frozen=True)
class _Held:
    digest: str
    arrays: Weights
    size: int


class HeldAdapters:
    """The arrays of adapters' files, at most `limit` bytes; with 0, none. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[tuple[str, str, int], _Held] = {}  # by member, file and generation; the one kept longest first
        self._lock = threading.Lock()

    def find(self, ref: Ref) -> Weights | None:
        """Return the arrays of a file with this digest, or None."""
        with self._lock:
            held = self._held.get(_place(ref.uri))
        return held.arrays if held is not None and held.digest == ref.sha256 else None

    def keep(self, ref: Ref, arrays: Weights) -> None:
        """Keep the arrays of a file in place of older ones of its member, unless they do not fit.

        Newer ones stay: whoever reads the past, such as a benchmark of the start, must not displace what is next.
        """
        member, name, generation = _place(ref.uri)
        size = sum(array.nbytes for array in arrays.values())
        with self._lock:
            known = {one for *file, one in self._held if file == [member, name]} | {generation}
            newest = sorted(known)[-NEWEST.get(name, 1) :]
            if size > self._limit or generation not in newest:
                return
            for old in known.difference(newest) | {generation}:
                self._held.pop((member, name, old), None)
            while sum(held.size for held in self._held.values()) + size > self._limit:
                self._held.pop(next(iter(self._held)))
            self._held[member, name, generation] = _Held(ref.sha256, arrays, size)


def of_process(environment: Mapping[str, str] = os.environ) -> HeldAdapters:
    """Return what a process may keep. Raises StoreRefused for a wrong limit."""
    text = environment.get(LIMIT, "").strip() or DEFAULT_GB
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise StoreRefused(f"{LIMIT}={text}: give the gigabytes of adapters that a process may keep in memory, or 0 for none")
    return HeldAdapters(int(limit * 1e9))


def _place(uri: str) -> tuple[str, str, int]:
    """Return member, file and generation of `adapters/t0-g0007/optimizer.safetensors` or `adapters/t0-start/…`."""
    adapter_id, _, name = uri.removeprefix("adapters/").partition("/")
    member, _, when = adapter_id.rpartition("-")
    return member, name, int(when[1:]) if when[1:].isdecimal() else STARTED
