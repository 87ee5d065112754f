"""The grammar behind `programs`: templates of typed Python expressions and the statement blocks built from them.

A template is Python text with holes. `<I>` is an expression of that type, bracketed when it has an operator; a lower-case
letter (`<i>`) is the same where brackets are not needed. Types: I int, S string, L list of ints, W list of strings,
D dict from string to int, B bool. Constants: `<c>` 1..9, `<k>` 2..4, `<z>` -3..9, `<q>` a quoted letter, `<t>` a quoted
short word. `@` is a variable already chosen. A template that starts with `~` has an operator at its outermost level.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import numpy as np

T = TypeVar("T")

LETTERS = "abcdeghijkmnpqrstuvwxyz"
WORDS = ("res", "out", "acc", "cur", "tmp", "num", "val", "text", "word", "items")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"

EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "I": (
        "~<I> + <c>", "~<I> - <c>", "~<I> * <k>", "~<I> + <I>", "~<I> - <I>", "~<I> * <I>", "~<I> // <k>", "~<I> % <k>",
        "~<c> - <I>", "abs(<i>)", "max(<i>, <i>)", "min(<i>, <i>)", "max(<i>, <c>)", "min(<i>, <c>)", "len(<s>)", "len(<l>)",
        "len(<w>)", "sum(<l>)", "max(<l>)", "min(<l>)", "<L>[0]", "<L>[-1]", "<L>[1]", "<L>.count(<z>)", "<S>.count(<q>)",
        "<S>.find(<q>)", "len(set(<l>))", "len(set(<s>))", "sum(<L>[<k>:])", "sum(<D>.values())", "len(<d>)", "<D>.get(<q>, <z>)",
        "~<I> * <k> + <c>", "~<I> + <I> * <k>", "~<I> * <I> - <c>", "sum(range(<i>))",
    ),
    "S": (
        "~<S> + <S>", "~<S> + <t>", "~<t> + <S>", "<S>[::-1]", "<S>[<c>:]", "<S>[:<k>]", "<S>[-<k>:]", "<S>[1:-1]", "<S>[::2]",
        "<S>.upper()", "<S>.title()", "<S>.replace(<q>, <q>)", "<S>.replace(<q>, '')", "~<S> * <k>", "<S>[0]", "<S>[-1]",
        "str(<i>)", "''.join(<w>)", "<q>.join(<w>)", "'-'.join(<w>)", "''.join(sorted(<s>))", "<W>[0]", "<W>[-1]", "min(<w>)",
        "max(<w>)", "~<S> + str(<i>)", "~<S>[1:] + <S>[0]", "~<S>[:<k>] + <S>", "<S>.strip(<q>)", "<S>.swapcase()", "max(<s>)",
        "<q>.join(<s>)",
    ),
    "L": (
        "<L>[::-1]", "sorted(<l>)", "<L>[1:]", "<L>[:<k>]", "<L>[-<k>:]", "<L>[:-1]", "<L>[::2]", "~<L> + [<i>]", "~[<i>] + <L>",
        "~<L> + <L>", "[<i>, <i>]", "[<i>, <i>, <c>]", "list(range(<i>))", "~<L> * 2", "sorted(<l>, reverse=True)",
        "sorted(set(<l>))", "~<L>[<k>:] + <L>[:<k>]", "list(<D>.values())", "list(range(<c>, <i>))", "sorted(<L> + [<i>])",
    ),
    "W": (
        "list(<s>)", "sorted(<w>)", "<W>[::-1]", "~<W> + [<s>]", "~[<s>] + <W>", "<W>[1:]", "<W>[:<k>]", "<S>.split(<q>)",
        "sorted(<s>)", "sorted(<w>, key=len)", "sorted(set(<s>))", "[<s>, <s>]", "sorted(<d>)", "~<W> * 2",
    ),
    "B": (
        "~<I> > <I>", "~<I> < <c>", "~<I> == <I>", "~<I> % <k> == 0", "~<I> in <L>", "~<q> in <S>", "~<I> > <c>",
        "~<S> == <S>[::-1]", "<S>.startswith(<q>)", "<S>.endswith(<q>)", "~<S> in <W>", "~len(<s>) > <k>", "~sum(<l>) > <c>",
        "~<L>[0] < <L>[-1]", "~<L> == sorted(<l>)", "~<I> > <c> and <I> < <c>", "~<I> < <c> or <I> > <c>", "~not <L>[2:]",
        "~<S>[0] == <q>", "~<S> < <S>",
    ),
    "D": ("{<q>: <i>, <q>: <i>}", "{<s>: <i>}", "dict(zip(<w>, <l>))"),
    "T": ("(<i>, <i>)", "(<s>, <i>)", "(<l>, <i>)", "(<s>, <s>)", "(<i>, <b>)", "tuple(<l>)"),
}  # fmt: skip

MAPPINGS: dict[str, tuple[str, ...]] = {
    "II": ("~@ + <c>", "~@ * <k>", "~@ - <c>", "~@ * @", "~@ % <k>", "~@ // <k>", "~@ + <I>", "~@ * <I>", "~<c> - @", "abs(@)",
           "max(@, <c>)", "min(@, <c>)", "~@ * <k> + <c>"),
    "IS": ("str(@)", "~str(@) + <q>", "~<q> * @"),
    "SS": ("~@ + <q>", "@.upper()", "~@ * <k>", "~@ + @", "@[::-1]", "@[0]", "~<q> + @", "@[-1]", "@.title()"),
    "SI": ("len(@)", "@.count(<q>)", "@.find(<q>)", "~len(@) * <k>", "~len(@) + <c>"),
}  # fmt: skip

CONDITIONS: dict[str, tuple[str, ...]] = {
    "I": ("@ > <c>", "@ < <c>", "@ % 2 == 0", "@ % <k> == 1", "@ % <k> == 0", "@ != <c>", "@ > <I>", "@ in <L>", "@ % 2"),
    "S": ("@ != <q>", "@ > <q>", "<q> in @", "len(@) > <k>", "@ < <q>", "@ == <q>", "@ in <t>", "@ not in <t>"),
}  # fmt: skip

_HOLE = re.compile(r"<(\w)>")
_ELEMENT = {"L": "I", "W": "S", "S": "S"}


class ScalarDraws:
    """Cheap scalar draws from a numpy generator: one block of uniforms is taken at a time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._block: list[float] = []

    def unit(self) -> float:
        """A number in [0, 1)."""
        if not self._block:
            self._block = self._rng.random(1024).tolist()
        return self._block.pop()

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        return int(self.unit() * bound)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def weighted(self, weights: Sequence[float]) -> int:
        """An index with probability in proportion to its weight."""
        left = self.unit() * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return len(weights) - 1


@cache
def _pieces(template: str) -> tuple[str, ...]:
    """Text and hole letters in turn; the text comes first."""
    return tuple(_HOLE.split(template.removeprefix("~")))


class Scope:
    """Names of one program under construction. Parameters come into being when an expression first needs one."""

    def __init__(self, draw: ScalarDraws, max_parameters: int) -> None:
        self.draw = draw
        self.parameters: dict[str, str] = {}
        self.locals: dict[str, str] = {}
        self._max_parameters = max_parameters
        self._taken: set[str] = set()

    def new_name(self, words: bool = True) -> str:
        """A name not used so far."""
        while True:
            name = self.draw.pick(WORDS) if words and self.draw.unit() < 0.2 else self.draw.pick(LETTERS)
            if name not in self._taken:
                self._taken.add(name)
                return name

    def variable(self, kind: str) -> str | None:
        """A variable of that type, a new parameter if there is room, else None."""
        known = [name for name, its in (*self.locals.items(), *self.parameters.items()) if its == kind]
        room = len(self.parameters) < self._max_parameters and kind in "ISLWD"
        if known and not (room and self.draw.unit() < (0.1 if self.locals else 0.35)):
            return known[0] if self.draw.unit() < 0.6 else self.draw.pick(known)
        if not room:
            return None
        name = self.new_name(words=self.draw.unit() < 0.5)
        self.parameters[name] = kind
        return name

    def assign(self, kind: str) -> str:
        """A new local variable; the newest is preferred by later expressions."""
        name = self.new_name()
        self.locals = {name: kind, **self.locals}
        return name


def constant(draw: ScalarDraws, hole: str) -> str | None:
    """Text of a constant hole, None when the letter is a type."""
    if hole == "c":
        return str(1 + draw.below(9))
    if hole == "k":
        return str(2 + draw.below(3))
    if hole == "z":
        return str(draw.below(13) - 3)
    if hole == "q":
        return f"'{draw.pick(ALPHABET)}'"
    if hole == "t":
        return "'" + "".join(draw.pick(ALPHABET) for _ in range(1 + draw.below(3))) + "'"
    return None


def fill(scope: Scope, template: str, depth: int, at: str = "") -> tuple[str, bool]:
    """Fill the template's holes; also return whether an operator is outermost."""
    parts = list(_pieces(template))
    for index in range(1, len(parts), 2):
        hole = parts[index]
        text = constant(scope.draw, hole)
        if text is None:
            text, loose = expression(scope, hole.upper(), depth - 1)
            if loose and hole.isupper():
                text = f"({text})"
        parts[index] = text
    return "".join(parts).replace("@", at), template.startswith("~")


def _leaf(scope: Scope, kind: str) -> str:
    name = scope.variable(kind)
    if name is not None:
        return name
    draw = scope.draw
    if kind == "I":
        others = [name for name, its in (*scope.locals.items(), *scope.parameters.items()) if its in "SLWD"]
        return f"len({draw.pick(others)})" if others and draw.unit() < 0.7 else str(1 + draw.below(9))
    if kind == "S":
        numbers = [name for name, its in (*scope.locals.items(), *scope.parameters.items()) if its == "I"]
        return f"str({draw.pick(numbers)})" if numbers and draw.unit() < 0.5 else str(constant(draw, "t"))
    if kind == "L":
        return "[" + ", ".join(str(draw.below(10)) for _ in range(2 + draw.below(2))) + "]"
    if kind == "W":
        return f"[{constant(draw, 'q')}, {constant(draw, 't')}]"
    return fill(scope, draw.pick(EXPRESSIONS[kind]), 1)[0]


def expression(scope: Scope, kind: str, depth: int) -> tuple[str, bool]:
    """A random expression of that type."""
    if depth <= 0 or (depth == 1 and scope.draw.unit() < 0.25):
        if kind in "BDT":
            return fill(scope, scope.draw.pick(EXPRESSIONS[kind]), 1)
        return _leaf(scope, kind), False
    return fill(scope, scope.draw.pick(EXPRESSIONS[kind]), depth)


def comprehension(scope: Scope, kind: str) -> str:
    """A list (or sum, or join) over the elements of a list or string."""
    draw = scope.draw
    source = draw.pick("LLW" if kind in "LI" else "WSS")
    over = expression(scope, source, 1 if draw.unit() < 0.2 else 0)[0]
    name, element = scope.new_name(words=False), _ELEMENT[source]
    target = "I" if kind in "LI" else "S"
    filtered = draw.unit() < 0.5 and (element == target)
    mapped = not filtered or draw.unit() < 0.5
    head = fill(scope, draw.pick(MAPPINGS[element + target]), 1, name)[0] if mapped else name
    tail = " if " + fill(scope, draw.pick(CONDITIONS[element]), 1, name)[0] if filtered else ""
    body = f"{head} for {name} in {over}{tail}"
    return {"L": f"[{body}]", "W": f"[{body}]", "I": f"sum({body})", "S": f"''.join({body})"}[kind]


def condition(scope: Scope, name: str | None = None, kind: str = "I") -> str:
    """A truth value, about one variable if a name is given."""
    if name is None:
        return expression(scope, "B", 1)[0]
    return fill(scope, scope.draw.pick(CONDITIONS[kind]), 1, name)[0]
