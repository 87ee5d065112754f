"""What of an answer is run on HumanEval+ and MBPP+: EvalPlus's rules (version 0.3.1). Imported here, and run in the sandbox.

Only the longest run of lines that parses counts; of that, imports, and those classes, functions and assignments at the left
margin that the entry point needs. What else stands there (tests, prints, calls that wait for input) is left out. Of several
definitions of one name the first counts, for functions the first that returns something. Deviations: definitions with
decorators, and functions that return nothing, are kept.
"""

import ast

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def target_code(text: str, entry: str) -> ast.Module:
    """Return the module that an answer to a problem with this entry point stands for; empty if no line of it parses."""
    body = longest_program(text).body
    named: dict[str, ast.stmt] = {}
    for node in body:
        for name in defined_names(node):
            if name not in named or (_is_stub(named[name]) and not _is_stub(node)):
                named[name] = node
    needed = {id(named[name]) for name in reached(entry, named)}
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.Module(imports + [node for node in body if id(node) in needed], [])


def longest_program(text: str) -> ast.Module:
    """Return the longest run of lines that parses, by the lines that are not blank; of equally long ones the first."""
    lines = text.split("\n")
    best, longest = ast.Module([], []), 0
    for first in range(len(lines)):
        if sum(map(bool, map(str.strip, lines[first:]))) <= longest:
            break
        found, count = _parsed_from(lines[first:], longest)
        if found is not None:
            best, longest = found, count
    return best


def _parsed_from(lines: list[str], longest: int) -> tuple[ast.Module | None, int]:
    """Return the longest beginning that parses, with its lines that are not blank; (None, 0) if it is not longer than `longest`.

    A syntax error does not go away by adding lines: what holds the line of the error need not be tried.
    """
    end = len(lines)
    while end > 0:
        count = sum(map(bool, map(str.strip, lines[:end])))
        if count <= longest:
            break
        try:
            return ast.parse("\n".join(lines[:end])), count
        except SyntaxError as error:
            end = min(end, error.lineno or end) - 1
        except (ValueError, MemoryError, RecursionError):  # a null character, or nested too deep
            end -= 1
    return None, 0


def defined_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the left margin defines."""
    if isinstance(node, DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [found.id for target in node.targets for found in ast.walk(target) if isinstance(found, ast.Name)]
    if isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def reached(entry: str, named: dict[str, ast.stmt]) -> set[str]:
    """Return the names that the entry point needs, itself included."""
    found: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in named and name not in found:
            found.add(name)
            waiting += [used.id for used in ast.walk(named[name]) if isinstance(used, ast.Name)]
    return found


def _is_stub(node: ast.stmt) -> bool:
    """Return whether the statement is a function that returns nothing."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any(isinstance(found, ast.Return | ast.Yield | ast.YieldFrom) for found in ast.walk(node))
