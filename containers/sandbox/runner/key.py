"""The program's key: a digest of the normalised syntax tree. Standard library only; runs in the sandbox, before the program.

Comments, layout and docstrings are gone; names of functions, arguments and variables are numbered by order of appearance in the
scope that binds them. Attribute names, names bound directly in class bodies, and names that the program does not bind stay.
"""

import _ast as ast
from _blake2 import blake2b

from rules import children, walk

_DEFINITIONS = frozenset([ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef])
_COMPREHENSIONS = frozenset([ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp])
_FUNCTIONS = frozenset([ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda])
_SCOPES = _FUNCTIONS | _COMPREHENSIONS
_OUTER, _NAMING = frozenset([ast.Global, ast.Nonlocal]), frozenset([ast.ExceptHandler, ast.MatchAs, ast.MatchStar])
_BINDING = _DEFINITIONS | _SCOPES | _OUTER | _NAMING | {ast.alias}
_SKIPPED = frozenset(["ctx", "type_comment", "kind", "type_ignores", "returns", "annotation", "type_params"])


def program_key(tree: ast.Module) -> str:
    """32 hexadecimal digits; equal for programs that differ in names, layout, comments, docstrings or annotations only."""
    words: list[str] = []
    kept = frozenset(node.arg for node in walk(tree) if type(node) is ast.keyword)
    module = _Scope(_bound(tree.body), 0, kept)
    for statement in _without_docstring(tree.body):
        _walk(statement, [module], words)
    return blake2b("\x1f".join(words).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _Scope:
    """The names that one scope binds, numbered at first appearance; names used as keywords in calls are `kept`."""

    def __init__(self, names: set[str], depth: int, kept: frozenset[str]):
        self.names, self.depth, self.kept, self.numbers = names, depth, kept, {}

    def word(self, name: str) -> str:
        if name in self.kept:
            return name
        number = self.numbers.setdefault(name, len(self.numbers))
        return f"{self.depth}.{number}"


def _bound(nodes: list) -> set[str]:
    """Names bound by these nodes in their own scope: not inside nested functions, comprehensions or class bodies."""
    names: set[str] = set()
    outer: set[str] = set()
    stack = list(nodes)
    name_kind, load = ast.Name, ast.Load
    for node in stack:
        kind = type(node)
        if kind is name_kind:
            if type(node.ctx) is not load:
                names.add(node.id)
            continue
        if kind in _BINDING:
            if kind in _DEFINITIONS:
                names.add(node.name)
                continue
            if kind in _OUTER:
                outer.update(node.names)
            elif kind is ast.alias:
                names.add(node.asname or node.name.split(".")[0])
            elif kind in _NAMING and node.name:
                names.add(node.name)
            elif kind in _SCOPES:
                continue
        stack += children(node)
    return names - outer


def _without_docstring(body: list) -> list:
    first = body[0] if body else None
    plain = type(first) is ast.Expr and type(first.value) is ast.Constant and type(first.value.value) is str
    return body[1:] or [ast.Pass()] if plain else body


def _name(name: str, scopes: list) -> str:
    for scope in reversed(scopes):
        if name in scope.names:
            return scope.word(name)
    return name


def _walk(node: ast.AST, scopes: list, words: list) -> None:
    kind = type(node)
    words.append(kind.__name__)
    _WALKS.get(kind, _walk_fields)(node, scopes, words)


def _walk_name(node: ast.Name, scopes: list, words: list) -> None:
    words.append(_name(node.id, scopes))


def _walk_constant(node: ast.Constant, scopes: list, words: list) -> None:
    words.append(f"{type(node.value).__name__}:{node.value!r}")


def _walk_class(node: ast.ClassDef, scopes: list, words: list) -> None:
    words.append(_name(node.name, scopes))  # in the scope around the body
    for child in [*node.bases, *node.keywords, *node.decorator_list]:
        _walk(child, scopes, words)
    names = [*scopes, _Names(_bound(node.body))]
    for statement in _without_docstring(node.body):
        _walk(statement, names, words)
    words.append(")")


def _walk_comprehension(node: ast.AST, scopes: list, words: list) -> None:
    targets = [generator.target for generator in node.generators]
    _walk_fields(node, [*scopes, _Scope(_bound(targets), len(scopes), scopes[0].kept)], words)


class _Names(_Scope):
    """A class body: its names are attributes too, so they stay as they are."""

    def __init__(self, names: set[str]):
        super().__init__(names, -1, frozenset())

    def word(self, name: str) -> str:
        return name


def _walk_function(node: ast.AST, scopes: list, words: list) -> None:
    arguments = node.args
    everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    own = [argument.arg for argument in everything if argument]
    body = node.body if type(node.body) is list else [node.body]
    if type(node) is not ast.Lambda:
        words.append(_name(node.name, scopes))
        for child in node.decorator_list:
            _walk(child, scopes, words)
    for child in [*arguments.defaults, *[default for default in arguments.kw_defaults if default]]:
        _walk(child, scopes, words)
    shape = (len(arguments.posonlyargs), len(arguments.args), len(arguments.kwonlyargs), len(arguments.defaults))
    required = [default is None for default in arguments.kw_defaults]
    words.append(f"{shape}{bool(arguments.vararg)}{bool(arguments.kwarg)}{required}")
    # class bodies are invisible to the functions inside them
    inner = _Scope(_bound(body) | set(own), len(scopes), scopes[0].kept)
    visible = [scope for scope in scopes if type(scope) is not _Names] + [inner]
    words.extend(inner.word(name) for name in own)
    for statement in _without_docstring(body):
        _walk(statement, visible, words)
    words.append(")")


def _walk_fields(node: ast.AST, scopes: list, words: list) -> None:
    values, tree = node.__dict__, ast.AST
    for field in node._fields:
        if field in _SKIPPED:
            continue
        value = values.get(field)
        if value is None:
            words.append("-")
        elif type(value) is list:
            words.append("[")
            for item in value:
                if isinstance(item, tree):
                    _walk(item, scopes, words)
                else:
                    words.append(_name(item, scopes) if type(node) in _OUTER and type(item) is str else repr(item))
            words.append("]")
        elif isinstance(value, tree):
            _walk(value, scopes, words)
        else:
            words.append(_name(value, scopes) if field == "name" and type(node) in _NAMING else repr(value))


_WALKS = {ast.Name: _walk_name, ast.Constant: _walk_constant, ast.ClassDef: _walk_class}
_WALKS |= dict.fromkeys(_FUNCTIONS, _walk_function) | dict.fromkeys(_COMPREHENSIONS, _walk_comprehension)
