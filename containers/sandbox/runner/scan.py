"""What every program's code is looked through for before it runs: a small part of the rules, loaded with what is hot."""

from opcode import opmap

from rules import FLAGS, SENSITIVE

_CODE = type((lambda: 0).__code__)
_SET_CODES = bytes(opmap[name] for name in ("BUILD_SET", "SET_ADD", "SET_UPDATE") if name in opmap)
_plain = (FLAGS | SENSITIVE).isdisjoint
# bound getters: an attribute's name, and the descriptor behind it, lie on pages of their own
_names_of, _bytes_of, _constants_of = (_CODE.__dict__[name].__get__ for name in ("co_names", "co_code", "co_consts"))


def scan(code: _CODE) -> tuple[bool, bool]:
    """Whether a name of a code object or of those inside it is in FLAGS; whether it may make a set or show a hash."""
    stack, flagged, sensitive = [code], False, False
    for code in stack:
        names = _names_of(code)
        if not _plain(names):
            flagged = flagged or not FLAGS.isdisjoint(names)
            sensitive = sensitive or not SENSITIVE.isdisjoint(names)
        operations = _bytes_of(code)[::2]
        for operation in _SET_CODES:
            if operation in operations:
                sensitive = True
        for constant in _constants_of(code):
            if type(constant) is _CODE:
                stack += (constant,)
    return flagged, sensitive
