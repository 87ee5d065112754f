"""Solutions with one small fault each, made from correct ones; a scorer must reject them. Pure; for tests and measurements.

The correct ones are a publisher's. A mutant may be equivalent to its source by chance; to rule that out, ask another judge.
"""

import ast
import copy
from collections.abc import Callable, Iterator

Change = Callable[[ast.AST], ast.AST | None]

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def _operator(node: ast.AST) -> ast.AST | None:
    other = _OPERATORS.get(type(node))
    return other() if other else None


def _constant(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Constant) or isinstance(node.value, bytes | complex) or node.value in (None, ...):
        return None
    value = node.value
    return ast.Constant(not value if isinstance(value, bool) else value + "x" if isinstance(value, str) else value + 1)


def _nothing(node: ast.AST) -> ast.AST | None:
    return ast.Return(ast.Constant(None)) if isinstance(node, ast.Return) and node.value is not None else None


def _listed(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Return) or node.value is None:
        return None
    return ast.Return(ast.List([node.value], ast.Load()))


def _refused(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Return):
        return None
    return ast.Raise(ast.Call(ast.Name("ValueError", ast.Load()), [ast.Constant("no")], []), None)


CHANGES: dict[str, Change] = {
    "operator": _operator,
    "constant": _constant,
    "nothing": _nothing,
    "listed": _listed,
    "refused": _refused,
}


def mutants(program: str) -> Iterator[tuple[str, str]]:
    """(kind of change, program), each with one change, in the order of the places in the text; a docstring is no place."""
    tree = ast.parse(program)
    nodes = list(ast.walk(tree))
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for kind, change in CHANGES.items():
        for place, node in enumerate(nodes):
            if id(node) not in texts and change(node) is not None:
                yield kind, _mutant(tree, place, change)


def _mutant(tree: ast.Module, place: int, change: Change) -> str:
    fresh = copy.deepcopy(tree)
    nodes = list(ast.walk(fresh))
    old = nodes[place]
    new = change(old)
    for parent in nodes:
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list):
                value[:] = [new if item is old else item for item in value]
    return ast.unparse(ast.fix_missing_locations(fresh)) + "\n"
