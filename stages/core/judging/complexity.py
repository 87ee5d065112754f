"""How complex a program is: a program itself, which runs in the sandbox with the measured program's text as its argument.

Nothing that a model wrote is parsed on the host, so `stages.core.judging.shapes` sends this file's text to the sandbox as a
trusted program: standard library only, nothing that the filter bans. Counted are, as written and once more when stripped:

- lines: those with text on them, comments included;
- depth of the syntax tree;
- cyclomatic complexity: one more than the branches: if, elif, conditional expression, loop, comprehension and each of its
  conditions, each further operand of and/or, except, case and assert;
- variables: the distinct names that are bound, arguments included.

Stripped means without comments, docstrings and dead code, so that padding counts for nothing. Dead are: statements behind return,
raise, break or continue; branches under a constant condition; expressions whose value is dropped and that call nothing; and
bindings that nobody reads (imports, functions, assignments whose right side calls nothing), again and again until nothing goes.
"""

import ast

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_ACTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_BLOCKS = ("body", "orelse", "finalbody")
_ENTRY = "f"


def f(programs: list) -> list:
    """The measures of each program; None for one that the parser refuses."""
    found: list[list | None] = []
    for program in programs:
        try:
            found.append(measure(program))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            found.append(None)
    return found


def measure(program: str) -> list:
    """[counts as written, counts when stripped, occurrences of each node type when stripped]."""
    tree = ast.parse(program)
    written = _counts(tree, program)
    strip(tree)
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr_context):
            name = type(node).__name__
            found[name] = found.get(name, 0) + 1
    return [written, _counts(tree, ast.unparse(tree)), found]


def _counts(tree: ast.Module, text: str) -> list[int]:
    """[lines, depth, cyclomatic, variables]."""
    depth, branches = 0, 0
    names: set[str] = set()
    below: list[tuple[ast.AST, int]] = [(tree, 0)]
    while below:
        node, level = below.pop()
        depth = max(depth, level)
        branches += _branches(node)
        names.update(_bound(node))
        children = (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context))
        below += [(child, level + 1) for child in children]
    lines = sum(1 for line in text.splitlines() if line.strip())
    return [lines, depth, 1 + branches, len(names)]


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return [node.name]
    return []


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, _BRANCHES))


def strip(tree: ast.Module) -> None:
    """Takes docstrings and dead code out of the tree, until nothing more goes."""
    size = 0
    while size != (size := sum(1 for _ in ast.walk(tree))):
        read = _read(tree)
        for node in list(ast.walk(tree)):
            for field in _BLOCKS:
                block = getattr(node, field, None)
                if isinstance(block, list) and block:
                    kept = block if isinstance(node, ast.ClassDef) else _living(block, read)
                    must_stand = field == "body" and not isinstance(node, ast.Module)
                    setattr(node, field, kept or ([ast.Pass()] if must_stand else []))


def _read(tree: ast.Module) -> set:
    """Names that somebody reads, the entry point among them."""
    read = {_ENTRY}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            read.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and _acts(node.value):
            read.add(node.target.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            read.update(node.names)
    return read


def _living(block: list, read: set) -> list:
    """The statements of a block that can do something; empty where none can."""
    kept: list[ast.stmt] = []
    for statement in block:
        kept += [one for one in _chosen(statement) if not _dead(one, read)]
        if kept and isinstance(kept[-1], _ENDS):
            break
    return kept


def _chosen(statement: ast.stmt) -> list:
    """The branch that a constant condition takes; any other statement itself."""
    if isinstance(statement, ast.If) and isinstance(statement.test, ast.Constant):
        return statement.body if statement.test.value else statement.orelse
    if isinstance(statement, ast.While) and isinstance(statement.test, ast.Constant) and not statement.test.value:
        return statement.orelse
    return [statement]


def _dead(statement: ast.stmt, read: set) -> bool:
    """Whether nobody would notice if the statement were not there."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        return not _acts(statement.value)
    if isinstance(statement, ast.If):
        nothing = all(isinstance(one, ast.Pass) for one in [*statement.body, *statement.orelse])
        return nothing and not _acts(statement.test)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name not in read and not statement.decorator_list
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return all((alias.asname or alias.name.split(".")[0]) not in read and alias.name != "*" for alias in statement.names)
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        unread = all(isinstance(target, ast.Name) and target.id not in read for target in targets)
        return unread and (statement.value is None or not _acts(statement.value))
    return False


def _acts(expression: ast.AST) -> bool:
    """Whether evaluating it may do more than give a value; that an operator may fail is not counted."""
    return any(isinstance(node, _ACTS) for node in ast.walk(expression))
