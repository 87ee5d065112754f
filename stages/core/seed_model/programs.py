"""Small random Python functions with inputs and outputs: what the seed model is pretrained on and the probe is made of.

`draw_program` writes a function `f` of one to about nine lines over ints, strings, lists, dicts and tuples in one of four
levels of difficulty, draws inputs for it and runs it. **The runs happen on the host**: the source comes from the grammar in
`program_grammar` and `program_blocks`, which cannot write an import, an attribute with an underscore or an endless loop; long
loops are cut off. Never pass text that a model wrote to this file; that belongs in the sandbox.

Two keys define when programs are the same: `program_key` (syntax tree with canonical names) and `Behaviours.key` (outputs on
fixed inputs).
"""

import ast
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stages.core.seed_model.program_blocks import LEVELS, body
from stages.core.seed_model.program_grammar import ALPHABET, ScalarDraws, Scope

MAX_OUTPUT = 40
MAX_SOURCE = 260
FIXED_INPUTS = 12
MAX_TURNS = 2_000

_SILLY = re.compile(r"\b(\w+)(?: <| >| ==| -|,) \1\b(?! \*)(?! =)")  # x < x, max(x, x), x - x


def _short_range(*bounds: int) -> range:
    found = range(*bounds)
    if found.stop - found.start > MAX_TURNS:
        raise OverflowError(f"{found} is too long")
    return found


_BUILTINS = {
    function.__name__: function for function in (abs, dict, len, list, max, min, set, sorted, str, sum, tuple, zip)
} | {"range": _short_range}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A function `f` with inputs (text as in a call) and the outputs it gives for them (literal text)."""

    source: str
    level: int
    signature: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def draw_program(draw: ScalarDraws, level: int, num_inputs: int) -> Program:
    """A random program of that level with `num_inputs` different inputs, not all of whose outputs are equal."""
    if level not in LEVELS:
        raise ValueError(f"level must be one of {LEVELS}, not {level}")
    while True:
        scope = Scope(draw, max_parameters=1 + draw.weighted((50, 42, 8)))
        lines = body(scope, level)
        if not scope.parameters:
            continue
        source = f"def f({', '.join(scope.parameters)}):\n" + "\n".join("    " + line for line in lines)
        if len(source) > MAX_SOURCE or _SILLY.search(source):
            continue
        signature = "".join(scope.parameters.values())
        pairs = _pairs(draw, source, signature, num_inputs)
        if pairs is not None:
            return Program(source, level, signature, *pairs)


def _pairs(draw: ScalarDraws, source: str, signature: str, wanted: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return inputs and outputs, or None if the program fails too often, is constant or returns too much."""
    function = compile_own(source)
    pairs: dict[str, str] = {}
    probes = max(wanted, 4)
    for _ in range(2 * probes + 4):
        arguments = [draw_value(draw, kind) for kind in signature]
        text = ", ".join(map(repr, arguments))
        output = run_own(function, arguments)
        if output is not None and len(output) <= MAX_OUTPUT:
            pairs[text] = output
        if len(pairs) == probes:
            break
    if len(pairs) < probes or len(set(pairs.values())) < 2:
        return None
    if sum(text == output for text, output in pairs.items()) > len(pairs) // 2:
        return None  # the identity teaches nothing
    return tuple(pairs)[:wanted], tuple(pairs.values())[:wanted]


def draw_value(draw: ScalarDraws, kind: str) -> object:
    """A small argument of type I, S, L, W or D."""
    if kind == "I":
        return draw.below(10) if draw.unit() < 0.7 else draw.below(26) - 5
    if kind == "S":
        return _word(draw, 2 + draw.below(5))
    if kind == "L":
        return [draw.below(10) if draw.unit() < 0.85 else draw.below(21) - 5 for _ in range(2 + draw.below(4))]
    if kind == "W":
        return [_word(draw, 1 + draw.below(3)) for _ in range(2 + draw.below(3))]
    if kind == "D":
        return {_word(draw, 1): draw.below(10) for _ in range(1 + draw.below(3))}
    raise ValueError(f"unknown type letter {kind!r}")


def _word(draw: ScalarDraws, length: int) -> str:
    """Letters that repeat more often than chance, so that counting and replacing find something."""
    few = ALPHABET[:6] if draw.unit() < 0.4 else ALPHABET
    return "".join(draw.pick(few) for _ in range(length))


class _Turns:
    """Counts the turns of `while` loops: a variable that shrinks by 2 may start at a billion."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self) -> bool:
        self.taken += 1
        if self.taken > MAX_TURNS:
            raise OverflowError("too many turns")
        return True


def compile_own(source: str) -> Callable[..., object]:
    """The function `f` of a source that this grammar wrote. Long loops raise OverflowError."""
    turns = _Turns()
    names: dict[str, object] = {"__builtins__": _BUILTINS, "_turn": turns}
    guarded = source.replace("    while ", "    while _turn() and ")
    exec(compile(guarded, "<grammar>", "exec"), names)  # our own grammar's text, never a model's
    function = names["f"]
    assert callable(function), source
    if guarded == source:
        return function

    def limited(*arguments: object) -> object:
        turns.taken = 0
        return function(*arguments)

    return limited


def run_own(function: Callable[..., object], arguments: list[object]) -> str | None:
    """Literal text of the result, None when the call fails."""
    copies = [value.copy() if isinstance(value, list | dict) else value for value in arguments]
    try:
        return repr(function(*copies))
    except (ValueError, IndexError, TypeError, ZeroDivisionError, KeyError, AttributeError, OverflowError, UnboundLocalError):
        return None


class _Canonical(ast.NodeTransformer):
    """Renames every variable, argument and nested function by order of first appearance; `f` keeps its name."""

    def __init__(self, own: set[str]) -> None:
        self._own = own
        self._names: dict[str, str] = {}

    def _rename(self, name: str) -> str:
        return self._names.setdefault(name, f"v{len(self._names)}") if name in self._own else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._rename(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._rename(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._rename(node.name)
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            node.body = node.body[1:]
        return self.generic_visit(node)


def program_key(source: str) -> str:
    """Digest of the syntax tree with canonical names and without comments and docstrings."""
    tree = ast.parse(source)
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "f"}
    return _digest(ast.dump(_Canonical(own).visit(tree)))


def fixed_arguments(signature: str) -> list[list[object]]:
    """The inputs on which `Behaviours.key` compares programs of one signature."""
    draw = ScalarDraws(np.random.default_rng([3, *signature.encode()]))
    return [[draw_value(draw, kind) for kind in signature] for _ in range(FIXED_INPUTS)]


class Behaviours:
    """Computes behaviour keys; keeps the fixed inputs of each signature."""

    def __init__(self) -> None:
        self._fixed: dict[str, list[list[object]]] = {}

    def key(self, source: str, signature: str) -> str:
        """Digest of the signature and of the outputs of a grammar's program on the fixed inputs (`!` where it fails)."""
        fixed = self._fixed.setdefault(signature, fixed_arguments(signature))
        function = compile_own(source)
        return _digest(signature + "\n" + "\n".join(run_own(function, arguments) or "!" for arguments in fixed))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ProgramKeys:
    """Programs to keep away from, by syntax and by behaviour."""

    syntax: frozenset[str]
    behaviour: frozenset[str]
