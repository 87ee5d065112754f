"""A key server: a process that parses programs, digests their trees, and runs none. Standard library only.

A key needs a syntax tree, whose objects would cost a program's short process as much as half of all else it does. This process
stays, so they cost it nothing. It has a program's walls and an own uid, gets only texts that have compiled in a program's
process, and leaves after a second of CPU time: a text that needs more meets the limit that a program meets.
"""

import _warnings
import os
import posix
import sys
import unicodedata  # noqa: F401 (the parser asks for it where a name is not ASCII, and nothing can be loaded then)
from time import process_time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # `-P` keeps the script's folder out

from key import program_key
from serve import CONTROL, look_around
from walls import Walls

LARGEST = 32_768  # bytes; a program has at most half of that
_ENOUGH = 1.0  # CPU seconds


def main() -> None:
    memory_mb, ceiling, uid = (int(text) for text in sys.argv[1:4])
    _warnings.filters.insert(0, ("ignore", None, Warning, None, 0))
    limits = Walls(memory_mb, ceiling)
    limits.template()
    posix.write(CONTROL, look_around(limits.drop, uid, tuple(limits.missing)))
    while program := posix.read(CONTROL, LARGEST):
        posix.write(CONTROL, answer(program.decode()))
        if process_time() > _ENOUGH:
            break
    posix._exit(0)


def answer(program: str) -> bytes:
    """`K` and the key, or `U` and why there is none."""
    try:
        return b"K" + program_key(compile(program, "program", "exec", 0x400, True)).encode()
    except Exception as error:  # a tree that is too deep or too large
        return b"U" + f"{type(error).__name__}: {error}"[:200].encode("ascii", "backslashreplace")


if __name__ == "__main__":
    main()
