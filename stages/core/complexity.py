"""How complex a program is: the four numbers that PopuLoRA and Absolute Zero Reasoner plot.

Lines are those with text on them, comments included. Depth is that of the syntax tree. Cyclomatic complexity is one more than
the branches: if, elif, conditional expression, loop, comprehension and each of its conditions, each further operand of and/or,
except, case and assert. Variables are the distinct names that are bound, arguments included.
"""

import ast
import warnings
from typing import NamedTuple

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)


class Complexity(NamedTuple):
    """Counts of one program."""

    lines: int
    depth: int
    cyclomatic: int
    variables: int


def complexity(program: str) -> Complexity | None:
    """The counts, or None for a program that does not parse here (the sandbox may speak another version of Python)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's odd escape sequences are no news
            tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    depth, branches = 0, 0
    names: set[str] = set()
    below: list[tuple[ast.AST, int]] = [(tree, 0)]
    while below:
        node, level = below.pop()
        depth = max(depth, level)
        branches += _branches(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        children = (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context))
        below += [(child, level + 1) for child in children]
    lines = sum(1 for line in program.splitlines() if line.strip())
    return Complexity(lines, depth, 1 + branches, len(names))


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, _BRANCHES))
