"""Prepares a template's memory so that forking it is cheap: a program's process costs little but the pages it maps and copies.

Four measures, each harmless where it does not apply: objects of the template become immortal (CPython 3.12 and newer: naming one
then writes no reference count into its page), holes in the heap are taken out of use (what a child allocates lies side by side,
on pages that need not be copied), and the interpreter's text moves to huge pages (a fork copies two entries instead of a child
faulting in hundreds of pages, and leaving them again). Standard library only.
"""

import gc
import posix
import sys

from native import Count, Number, Place, Word, function

_HUGE, _ROLLUP = 2 << 20, "/proc/self/smaps_rollup"
_READ, _WRITE, _EXECUTE, _PRIVATE_ANONYMOUS, _HUGE_PAGES, _MOVE_THERE = 1, 2, 4, 0x22, 14, 3
_CODE = type((lambda: 0).__code__)
_malloc, _free, _trim = function("malloc", Place, Word), function("free", Number, Place), function("malloc_trim", Number, Word)
_mmap = function("mmap", Place, Place, Word, Number, Number, Number, Word)
_mremap = function("mremap", Place, Place, Word, Word, Number, Place)
_madvise, _mprotect = (function(name, Number, Place, Word, Number) for name in ("madvise", "mprotect"))
_munmap, _copy = function("munmap", Number, Place, Word), function("memcpy", Place, Place, Place, Word)


def settle() -> None:
    """Called when the template holds all it will hold for now. Garbage collection is off afterwards."""
    gc.collect()
    gc.disable()
    make_immortal()
    gc.freeze()
    fill_holes()


def make_immortal() -> None:
    """Gives every object in reach the reference count of None, where that is the immortal one (PEP 683)."""
    if sys.version_info < (3, 12) or "t" in sys.abiflags or sys.byteorder != "little":
        return
    count, address, referents = Count.from_address, id, gc.get_referents
    immortal, stack = count(address(None)).value, gc.get_objects()
    while stack:
        item = stack.pop()
        field = count(address(item))
        if field.value != immortal:
            field.value = immortal
            stack += referents(item)
            if type(item) is _CODE:  # no container to the collector
                stack += item.co_consts, item.co_names


def fill_holes() -> None:
    """Takes the holes in the C heap, up to 16 KiB; whole free pages go back to the kernel."""
    _trim(0)
    top, left = _malloc(100_000), 20_000
    for size in range(16_376, 16, -16):  # large ones first: fewer blocks
        while left and (block := _malloc(size) or top) < top:
            left -= 1
        if block > top:
            _free(block)  # from beyond the last hole: kept, such blocks would be three more megabytes to fork


def join_areas() -> None:
    """Gives neighbouring areas of one file one protection, so that the kernel joins them: half as many to fork and to leave.

    Constants beside code become executable, relocated tables beside data writable: no wall against a program, which may map both.
    """
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for place, words in enumerate(areas[:-1]):
        if words[1] == "r--p" and len(words) > 5 and words[5].startswith("/"):
            first, last = words[0].split("-")
            data = areas[place + 1][1] == "rw-p" and areas[place + 1][0].startswith(last + "-")
            _mprotect(int(first, 16), int(last, 16) - int(first, 16), _READ | (_WRITE if data else _EXECUTE))


def move_text() -> None:
    """Copies the text of the interpreter and the C library to huge pages and puts them in its place, where the kernel gives them.

    A whole huge page is one entry to fork; of a part of one, the entries are copied and dropped as one batch. Both are mapped
    in a child from the start, which would else fault in its text, in pieces, and drop it page by page.
    """
    if not posix.access(_ROLLUP, posix.R_OK):
        return
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for words in areas:
        name = words[5].rpartition("/")[2] if len(words) > 5 else ""
        if words[1] == "r-xp" and name.startswith(("python", "libpython", "libc.so")):
            first, last = (int(text, 16) for text in words[0].split("-"))
            _move(first, last - first)


def _move(start: int, size: int) -> None:
    """Replaces a stretch of read-only text by its copy; the call that does it runs in the kernel, not there."""
    before, room = _huge_bytes(), size + 2 * _HUGE
    area = _mmap(None, room, _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if area in (None, 2**64 - 1):
        return
    copy = -(-area // _HUGE) * _HUGE + start % _HUGE  # where huge pages begin in the one, they begin in the other
    _madvise(area, room, _HUGE_PAGES)
    _copy(copy, start, size)
    if _huge_bytes() - before >= size and _mprotect(copy, size, _READ | _EXECUTE) == 0:
        _mremap(copy, size, size, _MOVE_THERE, start)
    _munmap(area, room)


def _huge_bytes() -> int:
    with open(_ROLLUP) as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("AnonHugePages:")) << 10
