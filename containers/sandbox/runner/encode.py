"""The trusted encoder: a value of exact builtin types to wire text, with budgets. Standard library only; runs in the sandbox.

Everything it uses was captured before any model code ran, it looks at exact types (`type(x) is T`, never `isinstance`), and it
never calls `repr`, `str`, `==` or the iteration of an object that is not exactly a builtin. Wire text is ASCII Python literal
text (complex as a call), dict order kept; the host sorts and compares.
"""

from _functools import partial as held  # see program.py

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_TEXT, MAX_DEPTH, MAX_NODES, MAX_DIGITS = 65_536, 50, 10_000, 4_300


class Refused(Exception):
    """The value cannot be encoded: `tag` is X (unsupported) or O (too large)."""

    def __init__(self, tag: bytes, reason: str):
        self.tag, self.reason = tag, reason


def make_encoder() -> "Callable[[object], str]":
    """The encoder as a closure over captured primitives."""
    kind_of, length, identity, text_of = type, len, id, ascii
    float_text, int_text, pairs, joined = held(float.__repr__), held(int.__repr__), dict.items, ", ".join
    too_large, none, refused, name_of = 10**MAX_DIGITS, type(None), Refused, type.__dict__["__name__"].__get__
    too_small = -too_large
    t_bool, t_int, t_float, t_complex, t_str, t_bytes = bool, int, float, complex, str, bytes
    t_list, t_tuple, t_dict, t_set, t_frozen, exception = list, tuple, dict, set, frozenset, TypeError
    max_text, max_nodes, max_depth, too_deep = MAX_TEXT, MAX_NODES, MAX_DEPTH, "nested deeper than 50"

    nodes = size = 0
    path: set[int] = t_set()
    enter, leave = path.add, path.discard

    def grow(amount: int) -> None:
        nonlocal size
        size += amount
        if size > max_text:
            raise refused(b"O", "value text over 65536 characters")

    def walk(x: object, depth: int) -> str:
        nonlocal nodes
        nodes += 1
        kind = kind_of(x)
        if kind is t_int:
            if not too_small < x < too_large:
                raise refused(b"X", "an integer over 4300 digits")
            text = int_text(x)
        elif kind is t_str or kind is t_bytes:
            grow(length(x) + 2)
            return text_of(x)
        elif kind is t_bool or kind is none:
            text = "None" if x is None else "True" if x is True else "False"
        elif kind is t_float:
            text = float_text(x)
        elif kind is t_complex:
            if depth >= max_depth:  # a call: its arguments stand one deeper
                raise refused(b"X", too_deep)
            text = "complex(" + float_text(x.real) + ", " + float_text(x.imag) + ")"
        else:
            return container(x, kind, depth)
        grow(length(text))
        return text

    def container(x: object, kind: type, depth: int) -> str:
        if not (kind is t_list or kind is t_tuple or kind is t_dict or kind is t_set or kind is t_frozen):
            raise refused(b"X", "a value of type " + name_of(kind))
        inside = depth + 2 if kind is t_frozen else depth + 1  # a frozenset is written as a call with a set in it
        if inside > max_depth:
            raise refused(b"X", too_deep)
        mark = identity(x)
        if mark in path:
            raise refused(b"X", "a value that contains itself")
        enter(mark)
        grow(2 * length(x) + 2 if kind is not t_dict else 4 * length(x) + 2)
        if kind is t_dict:
            text = "{" + joined([walk(k, inside) + ": " + walk(v, inside) for k, v in pairs(x)]) + "}"
        else:
            members = joined([walk(item, inside) for item in x])
            if kind is t_list:
                text = "[" + members + "]"
            elif kind is t_tuple:
                text = "(" + members + (",)" if length(x) == 1 else ")")
            elif kind is t_set:
                text = "{" + members + "}" if members else "set()"
            else:
                text = "frozenset({" + members + "})" if members else "frozenset()"
        leave(mark)
        return text

    def encode(value: object) -> str:
        nonlocal nodes, size
        nodes = size = 0
        try:
            text = walk(value, 0)
        except exception as error:  # only a tampered builtin can get here
            raise refused(b"X", "the value could not be walked") from error
        if nodes > max_nodes:
            raise refused(b"X", "more than 10000 nodes")
        return text

    return encode
