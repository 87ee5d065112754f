"""What every program's code is looked through for before it runs: a small part of the rules, loaded with what is hot."""

from opcode import opmap

from rules import COMBINING, FLAGS, SENSITIVE, VIEWS

_CODE = type((lambda: 0).__code__)
_SET_CODES = bytes(opmap[name] for name in ("BUILD_SET", "SET_ADD", "SET_UPDATE") if name in opmap)
# `&`, `|`, `-` and `^` of two views of dicts make a set; 13 more is the form with `=`
_BINARY_OP, _SET_ARGUMENTS = opmap["BINARY_OP"], (1, 7, 10, 12, 14, 20, 23, 25)
_plain, _without_views, _without_combining = (FLAGS | SENSITIVE).isdisjoint, VIEWS.isdisjoint, COMBINING.isdisjoint
# bound getters: an attribute's name, and the descriptor behind it, lie on pages of their own
_names_of, _bytes_of, _constants_of = (_CODE.__dict__[name].__get__ for name in ("co_names", "co_code", "co_consts"))


def scan(code: _CODE) -> tuple[bool, bool]:
    """Whether a name of a code object or of those inside it is in FLAGS; whether it may make a set or show a hash."""
    stack, flagged, sensitive, views, combined = [code], False, False, False, False
    for code in stack:
        names = _names_of(code)
        if not _plain(names):
            flagged = flagged or not FLAGS.isdisjoint(names)
            sensitive = sensitive or not SENSITIVE.isdisjoint(names)
        views = views or not _without_views(names)
        whole = _bytes_of(code)
        operations = whole[::2]
        for operation in _SET_CODES:
            if operation in operations:
                sensitive = True
        combined = combined or not _without_combining(names) or _combines(operations, whole)
        for constant in _constants_of(code):
            if type(constant) is _CODE:
                stack += (constant,)
            elif type(constant) is str:  # as `getattr` and `operator.methodcaller` take names
                sensitive = sensitive or constant in SENSITIVE
                views = views or constant in VIEWS
                combined = combined or constant in COMBINING
            elif type(constant) is tuple or type(constant) is frozenset:
                sensitive = sensitive or _shows_order(constant)
    return flagged, sensitive or (views and combined)


def _combines(operations: bytes, whole: bytes) -> bool:
    """Whether there is an operation that makes a set of two views."""
    place = operations.find(_BINARY_OP)
    while place >= 0:
        if whole[2 * place + 1] in _SET_ARGUMENTS:
            return True
        place = operations.find(_BINARY_OP, place + 1)
    return False


def _shows_order(constant: object) -> bool:
    """Whether a constant is or holds a set of several members: `for x in {1, 2}` makes none when it runs."""
    if type(constant) is frozenset:
        return len(constant) > 1
    if type(constant) is tuple:
        for member in constant:
            if _shows_order(member):
                return True
    return False
