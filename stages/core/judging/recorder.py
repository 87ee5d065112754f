"""What a program assigns while it runs: a program itself, which runs in the sandbox with the recorded program's text as argument.

Nothing that a model wrote is parsed on the host, so `stages.core.judging.traces` sends this file's text to the sandbox as a
trusted program: standard library only, nothing that the filter bans. It returns the text of another program, whose `f` runs the
recorded one and returns what it assigned. That text contains the model's program and is as untrusted as it: it runs in the
sandbox like any other, and what it returns is data.

Recorded are the assignments to names in the outermost call of `f`, in the order in which they happen: `=` (targets from left to
right, names inside tuples too), annotated and augmented assignments, and the targets of a `for` before each turn of its body.
Comprehensions, nested functions, classes and further calls of `f` have variables of their own, which do not count. A statement
that raises assigns nothing. A change inside a value, as by `append` or `a[0] = 1`, is no assignment.
"""

import ast

_ENTRY = "f"
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOG = """
{log} = []
{count} = []
def {note}({name}, {value}):
    {count}.append(0)
    if len({log}) < {most}:
        {value} = repr({value})
        {log}.append(({name}, {value} if len({value}) + len({name}) <= {longest} else ""))
def {replay}(*{name}):
    if {count}:
        return {plain}(*{name})
    {count}.append(0)
    {value} = {inner}(*{name})
    return {value}, len({count}) - 1, {log}
{plain} = {entry}
{entry} = {replay}
"""


def f(program: str, most: int, longest: int) -> str:
    """The recording program's text; empty if `f` is no plain function at the top of the program.

    It returns (the value of `f`, number of assignments, the first `most` of them as (name, `repr`)). A `repr` that has more than
    `longest` characters with its name is empty.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    known = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == _ENTRY]
    if not known or known[-1].decorator_list or _rebound(tree, known):
        return ""
    names = ("log", "count", "note", "name", "value", "replay", "plain", "inner")
    own = {name: _unused(program, name) for name in names}
    recorded = ast.parse(ast.unparse(known[-1])).body[0]
    assert isinstance(recorded, ast.FunctionDef)
    recorded.name = own["inner"]
    recorded.body = _noted(recorded.body, own["note"])
    log = _LOG.format(**own, entry=_ENTRY, most=most, longest=longest)
    return program + "\n" + ast.unparse(ast.fix_missing_locations(recorded)) + log


def _unused(program: str, name: str) -> str:
    """A name that the program cannot spell, since its text does not contain it."""
    while name in program:
        name += "_"
    return name


def _rebound(tree: ast.Module, known: list) -> bool:
    """Whether what follows the last definition of `f` may give the name to something else."""
    later = tree.body[tree.body.index(known[-1]) + 1 :]
    return any(_ENTRY in _bound(node) for one in later for node in ast.walk(one))


def _bound(node: ast.AST) -> list:
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.alias):
        return [node.asname or node.name]
    return [node.name] if isinstance(node, _OWN_SCOPE) else []


def _noted(block: list, note: str) -> list:
    """The statements of a block, each followed by a note for every name that it assigns."""
    found: list[ast.stmt] = []
    for statement in block:
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(statement, field, None)
            if isinstance(inner, list) and not isinstance(statement, _OWN_SCOPE):
                setattr(statement, field, _noted(inner, note))
        for handler in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            handler.body = _noted(handler.body, note)
        found.append(statement)
        if isinstance(statement, ast.For):
            statement.body = _notes(statement.target, note) + statement.body
        elif isinstance(statement, ast.Assign):
            found += [one for target in statement.targets for one in _notes(target, note)]
        elif isinstance(statement, ast.AugAssign) or (isinstance(statement, ast.AnnAssign) and statement.value is not None):
            found += _notes(statement.target, note)
    return found


def _notes(target: ast.expr, note: str) -> list:
    """A call of the note for each name in a target, from left to right."""
    if isinstance(target, ast.Name):
        return ast.parse(f"{note}({target.id!r}, {target.id})").body
    if isinstance(target, ast.Starred):
        return _notes(target.value, note)
    if isinstance(target, ast.Tuple | ast.List):
        return [one for element in target.elts for one in _notes(element, note)]
    return []
