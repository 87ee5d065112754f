"""Random generators for every draw of a run, keyed by fixed integers, never by a global state or a clock.

Names enter the key by crc32, since Python's `hash` differs between processes.
"""

import zlib

import numpy as np


def _key(seed: int, generation: int, names: tuple[str | int, ...]) -> list[int]:
    return [seed, generation, *(zlib.crc32(name.encode()) if isinstance(name, str) else name for name in names)]


def generator(seed: int, generation: int, *names: str | int) -> np.random.Generator:
    """Return the generator of one place in the run, such as (seed, 7, "propose", "t0")."""
    return np.random.default_rng(_key(seed, generation, names))


def completion_seed(seed: int, generation: int, *names: str | int) -> int:
    """Return the 63-bit seed of one completion: its draw depends on its place in the run, not on its batch."""
    return int(np.random.SeedSequence(_key(seed, generation, names)).generate_state(1, np.uint64)[0] >> np.uint64(1))
