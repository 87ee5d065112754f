"""Prepares a template's memory so that forking it is cheap: a program's process costs little but the pages it maps and copies.

Four measures, each harmless where it does not apply: objects of the template become immortal (CPython 3.12 and newer: naming one
then writes no reference count into its page), holes in both heaps are taken out of use (what a child allocates lies side by side,
on pages that need not be copied), and the interpreter's text moves to huge pages (a fork copies two entries instead of a child
faulting in hundreds of pages, and leaving them again). Standard library only.
"""

import ctypes
import gc
import os
import sys

_POOL, _POOL_HEADER, _SMALL, _HEADER = 16_384, 48, range(48, 513, 16), b"".__sizeof__()  # pymalloc's pools and sizes
_HUGE, _ROLLUP = 2 << 20, "/proc/self/smaps_rollup"
_READ, _WRITE, _EXECUTE, _PRIVATE_ANONYMOUS, _HUGE_PAGES, _MOVE_THERE = 1, 2, 4, 0x22, 14, 3
_CODE = type((lambda: 0).__code__)
_libc = ctypes.CDLL(None, use_errno=True)
_place, _size, _number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc.malloc.restype, _libc.malloc.argtypes, _libc.free.argtypes = _place, [_size], [_place]
_libc.mmap.restype, _libc.mmap.argtypes = _place, [_place, _size, _number, _number, _number, ctypes.c_long]
_libc.mremap.restype, _libc.mremap.argtypes = _place, [_place, _size, _size, _number, _place]
_libc.madvise.argtypes = _libc.mprotect.argtypes = [_place, _size, _number]
_libc.munmap.argtypes = [_place, _size]
_taken: list[int | bytes] = []


def settle() -> None:
    """Called when the template holds all it will hold for now. Garbage collection is off afterwards."""
    gc.collect()
    gc.disable()
    make_immortal()
    gc.freeze()
    fill_pools()
    fill_holes()


def make_immortal() -> None:
    """Gives every object in reach the reference count of None, where that is the immortal one (PEP 683)."""
    if sys.version_info < (3, 12) or "t" in sys.abiflags or sys.byteorder != "little":
        return
    count, address, referents = ctypes.c_uint32.from_address, id, gc.get_referents
    immortal, stack = count(address(None)).value, gc.get_objects()
    while stack:
        item = stack.pop()
        field = count(address(item))
        if field.value != immortal:
            field.value = immortal
            stack += referents(item)
            if type(item) is _CODE:  # no container to the collector
                stack += item.co_consts, item.co_names


def fill_pools() -> None:
    """Takes free blocks of Python's small-object pools, for every size until a pool has just been begun."""
    makers = [(lambda number: number + 1_000_000), *[(lambda number, size=size: bytes(size - _HEADER)) for size in _SMALL]]
    for make in makers:
        for number in range(20_000):
            _taken.append(make(number))
            if id(_taken[-1]) % _POOL == _POOL_HEADER:
                break


def fill_holes() -> None:
    """Takes the holes in the C heap, up to 16 KiB; whole free pages go back to the kernel."""
    _libc.malloc_trim(0)
    top, left = _libc.malloc(100_000), 20_000
    for size in range(24, 16_384, 16):
        while left and (block := _libc.malloc(size) or top) < top:
            left -= 1
        if block > top:
            _libc.free(block)  # from beyond the last hole: kept, such blocks would be three more megabytes to fork


def move_text() -> None:
    """Copies the interpreter's text to huge pages and puts them in its place, where the kernel gives huge pages."""
    if not os.access(_ROLLUP, os.R_OK):
        return
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    spans: list[list[int]] = []
    for words in areas:
        if len(words) > 5 and "python" in words[5].rpartition("/")[2].partition(".")[0] and words[1].startswith("r-"):
            first, last = (int(text, 16) for text in words[0].split("-"))
            if spans and spans[-1][1] == first:
                spans[-1][1] = last
            else:
                spans.append([first, last])
    for first, last in spans:
        first, last = -(-first // _HUGE) * _HUGE, last // _HUGE * _HUGE
        if last > first:
            _move(first, last - first)


def join_areas() -> None:
    """Gives neighbouring areas of one file one protection, so that the kernel joins them: half as many to fork and to leave.

    Constants beside code become executable, relocated tables beside data writable: no wall against a program, which may map both.
    """
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for words, after in zip(areas, areas[1:], strict=False):
        if words[1] == "r--p" and len(words) > 5 and words[5].startswith("/"):
            first, last = words[0].split("-")
            data = after[1] == "rw-p" and after[0].startswith(last + "-")
            _libc.mprotect(int(first, 16), int(last, 16) - int(first, 16), _READ | (_WRITE if data else _EXECUTE))


def _move(start: int, size: int) -> None:
    """Replaces an aligned stretch of read-only text by its copy; the call that does it runs in the C library, not there."""
    before = _huge_bytes()
    area = _libc.mmap(None, size + _HUGE, _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if area in (None, _place(-1).value):
        return
    aligned = -(-area // _HUGE) * _HUGE
    _libc.madvise(aligned, size, _HUGE_PAGES)
    ctypes.memmove(aligned, start, size)
    if _huge_bytes() - before >= size and _libc.mprotect(aligned, size, _READ | _EXECUTE) == 0:
        _libc.mremap(aligned, size, size, _MOVE_THERE, start)
    _libc.munmap(area, size + _HUGE)


def _huge_bytes() -> int:
    with open(_ROLLUP) as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("AnonHugePages:")) << 10
