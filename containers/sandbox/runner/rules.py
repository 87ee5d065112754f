"""The static filter: what a program may import and name. A task-quality tool with a second layer at run time, never a wall.

The reward's honesty rests on process isolation and host-side comparison. What the filter is for: programs that depend on the
clock, the process, the machine or memory addresses in a way that two runs need not reveal.
"""

import _ast as ast  # the module `ast` would load more than a program's process should carry
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ALLOWED_TEXT = """
__future__ abc array ast base64 binascii bisect calendar cmath collections colorsys contextlib copy csv dataclasses datetime
decimal difflib enum fractions functools graphlib hashlib heapq html io itertools json keyword math numbers operator pprint
queue re reprlib statistics string struct sys textwrap types typing unicodedata urllib weakref zlib
"""
ALLOWED = frozenset(_ALLOWED_TEXT.split())
SUBMODULES = frozenset(["collections.abc", "urllib.parse", "html.entities", "json.decoder", "json.encoder"])
PRELOAD = sorted(ALLOWED | SUBMODULES)  # in the servers for programs that import; the others hold none of it
_SYS_ALLOWED_TEXT = """
maxsize setrecursionlimit getrecursionlimit float_info int_info maxunicode exit intern
"""
SYS_ALLOWED = frozenset(_SYS_ALLOWED_TEXT.split())
_NAMES_TEXT = """
eval exec compile open globals locals vars breakpoint help __import__ __builtins__ __loader__ __spec__ __file__
__build_class__
"""
NAMES = frozenset(_NAMES_TEXT.split())
_ATTRIBUTES_TEXT = """
__globals__ __code__ __closure__ __subclasses__ __bases__ __base__ __mro__ __builtins__ __import__ __loader__ __spec__
__reduce__ __reduce_ex__ __getattribute__ __func__ __self__ __wrapped__ tb_frame tb_next f_back f_globals f_locals f_builtins
f_code gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_origin ag_frame ag_code co_code co_consts __traceback__ __weakref__
__objclass__ __cached__ __file__
"""
ATTRIBUTES = frozenset(_ATTRIBUTES_TEXT.split())
CLOCK = frozenset(["now", "today", "utcnow"])
IO_BANNED = frozenset(["open", "open_code", "FileIO", "text_encoding"])
FLAGS = NAMES | ATTRIBUTES
# Names whose presence means that an order, an identity or a hash may show: such programs are run in the witness servers as well.
_SENSITIVE_TEXT = """
set frozenset hash id intersection union difference symmetric_difference __hash__ __repr__ __str__ __format__ repr ascii object
literal_eval
"""
SENSITIVE = frozenset(_SENSITIVE_TEXT.split())
VIEWS = frozenset(["keys", "items"])  # sets of them are sets
_COMBINING_TEXT = """
and_ or_ sub xor iand ior isub ixor __and__ __or__ __sub__ __xor__ __rand__ __ror__ __rsub__ __rxor__
"""
COMBINING = frozenset(_COMBINING_TEXT.split())  # what makes a set of two views without an operator


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below a node, in no order to rely on; contexts (load, store, delete) are left out."""
    found: list[ast.AST] = []
    for value in node.__dict__.values():
        kind = type(value)
        if kind is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif kind is not int and kind is not str and kind is not ast.Load and isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and everything below it, in no order to rely on."""
    nodes = [node]
    for found in nodes:
        nodes += children(found)
    return nodes


class Banned(Exception):
    """The program imports or names what it may not; the text names the node and its line."""


def check(tree: ast.Module) -> None:
    """Raises Banned with the first offending node."""
    bound = {node.id for node in walk(tree) if type(node) is ast.Name and type(node.ctx) is not ast.Load}
    bound |= {node.arg for node in walk(tree) if type(node) is ast.arg}
    bound |= {node.name for node in walk(tree) if type(node) in (ast.FunctionDef, ast.ClassDef)}
    modules: dict[str, str] = {}
    for node in walk(tree):
        for name, module in _imports(node):
            modules[name] = module
    found = [(getattr(node, "lineno", 1), reason) for node in walk(tree) if (reason := _reason(node, bound, modules))]
    if found:
        raise Banned("line {}: {}".format(*min(found)))


def _imports(node: ast.AST) -> "Iterator[tuple[str, str]]":
    """(bound name, module) of an import; raises Banned for modules and members outside the rules."""
    if type(node) is ast.Import:
        for alias in node.names:
            _check_module(alias.name, node.lineno)
            yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
    elif type(node) is ast.ImportFrom:
        module = node.module or ""
        if node.level:
            raise Banned(f"line {node.lineno}: a relative import")
        _check_module(module, node.lineno)
        for alias in node.names:
            reason = _member(module, alias.name)
            if reason:
                raise Banned(f"line {node.lineno}: {reason}")
            if f"{module}.{alias.name}" in SUBMODULES:
                yield alias.asname or alias.name, f"{module}.{alias.name}"


def _check_module(name: str, line: int) -> None:
    """Standard modules outside the list are banned; a module that does not exist is the program's own error."""
    root = name.split(".")[0]
    known = root in sys.stdlib_module_names or root.startswith("_")
    if (known and root not in ALLOWED) or ("." in name and root in ALLOWED and name not in SUBMODULES):
        raise Banned(f"line {line}: import {name}")


def _member(module: str, name: str) -> str:
    if module == "sys" and name not in SYS_ALLOWED:
        return f"sys.{name}"
    if module == "io" and name in IO_BANNED:
        return f"io.{name}"
    if module != "__future__" and name.startswith("_"):
        return f"{module}.{name}"
    inner = f"{module}.{name}"
    if name in sys.stdlib_module_names and inner not in SUBMODULES and name not in _OWN.get(module, ()):
        return inner
    return ""


_OWN = {"datetime": ("datetime", "time"), "copy": ("copy",), "pprint": ("pprint",), "array": ("array",), "bisect": ("bisect",)}
_OWN |= {
    "unicodedata": ("decimal",),
    "ast": ("keyword", "operator"),
    "string": (),
    "calendar": ("calendar",),
    "types": (),
    "operator": ("operator",),
    "collections": (),
    "html": ("html",),
}


def _reason(node: ast.AST, bound: set[str], modules: dict[str, str]) -> str:
    kind = type(node)
    if kind is ast.Name:
        name = node.id
        if name in NAMES and name not in bound:
            return name
        if modules.get(name) == "sys" and type(node.ctx) is ast.Load and not getattr(node, "member", False):
            return ""  # judged at the attribute
        return name if name in ATTRIBUTES else ""
    if kind is ast.Attribute:
        return _attribute(node, modules)
    if kind is ast.Constant and type(node.value) is str:
        return f"the name {node.value!r}" if node.value in ATTRIBUTES else ""
    if kind is ast.MatchClass:
        return next((name for name in node.kwd_attrs if name in ATTRIBUTES), "")
    if kind is ast.Call and type(node.func) is ast.Name and any(_is_sys(argument, modules) for argument in node.args):
        return "sys as a value"
    return ""


def _is_sys(node: ast.AST, modules: dict[str, str]) -> bool:
    return type(node) is ast.Name and modules.get(node.id) == "sys"


def _attribute(node: ast.Attribute, modules: dict[str, str]) -> str:
    if node.attr in ATTRIBUTES:
        return f"attribute {node.attr}"
    if node.attr in CLOCK and "datetime" in {module.split(".")[0] for module in modules.values()}:
        return f"attribute {node.attr}"
    if type(node.value) is ast.Name and node.value.id in modules:
        module = modules[node.value.id]
        if node.attr == "__dict__":
            return f"{module}.__dict__"
        return _member(module, node.attr) if not (node.attr.startswith("__") and node.attr == "__name__") else ""
    return ""
