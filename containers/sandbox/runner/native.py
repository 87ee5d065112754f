"""Functions of the C library, by `_ctypes` alone: the package `ctypes` makes two hundred types, a hundred pages more to fork."""

import _ctypes


class Word(_ctypes._SimpleCData):
    """A C long."""

    _type_ = "l"


class Number(_ctypes._SimpleCData):
    """A C int."""

    _type_ = "i"


class Place(_ctypes._SimpleCData):
    """An address."""

    _type_ = "P"


class Text(_ctypes._SimpleCData):
    """The address of a bytes object's content."""

    _type_ = "z"


class Count(_ctypes._SimpleCData):
    """Four bytes, unsigned."""

    _type_ = "I"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = Number


class _Held(_ctypes.CFuncPtr):
    """Keeps the interpreter's lock while it is called."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI
    _restype_ = Number


get_errno = _ctypes.get_errno
_library = _ctypes.dlopen(None, 0)


def function(name: str, result: type, *arguments: type) -> _Function:
    """A function of the C library with its types; arguments without a type are C ints."""
    found = _Function(_ctypes.dlsym(_library, name))
    found.restype = result
    if arguments:
        found.argtypes = arguments
    return found


def system_call() -> _Held:
    """`syscall` for small integers, without a word of Python between the call and its return."""
    return _Held(_ctypes.dlsym(_library, "syscall"))
