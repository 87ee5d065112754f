"""Programs of graded depth: functions whose every line works on the value of the line before, with the trace of each run.

    def f(a, e):            depth 3, input 7, 2
        c = a + 5           c=12
        h = c * e           h=24
        k = h % 9           k=6
        return k            result 6

The depth is the number of steps that must be taken one after the other. Each works on the value of the one before, changes it on
some input, and has at least `DISTINCT` values on `RUNS` inputs, so that nothing can be left out or guessed. `steps` names what a
line can be. **The runs happen on the host**: the text is this
generator's own. Never pass text that a model wrote to this file; that belongs in the sandbox.
"""

from dataclasses import dataclass

from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import draw_value
from stages.core.seed_model.steps import TYPES, draw_template, filled, is_small, run_step

MOST_STEPS = 10
NAMES = "abcdeghijkmnpqrstuvwyz"
TRIES = 60
RUNS, DISTINCT = 10, 7
_FIRST = (52, 24, 24)  # the type of the first argument: int, string, list
_SECOND = 0.45  # chance that a second argument may be used


@dataclass(frozen=True)
class Chain:
    """A function `f` of `depth` steps, with inputs (text as in a call), outputs, and the value of every step on every input."""

    source: str
    depth: int
    signature: str
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    def trace(self, index: int = 0, backwards: bool = False) -> str:
        """The steps' values on one input as `name=value` lines, from the first step on or from the last one back."""
        lines = [f"{name}={value}" for name, value in zip(self.names, self.values[index], strict=True)]
        return "\n".join(reversed(lines) if backwards else lines)


def draw_chain(draw: ScalarDraws, depth: int, num_inputs: int) -> Chain:
    """A random chain of that depth with `num_inputs` different inputs, not all of whose outputs are equal."""
    if not 1 <= depth <= MOST_STEPS:
        raise ValueError(f"depth must be 1 to {MOST_STEPS}, not {depth}")
    while True:
        found = _Attempt(draw, max(num_inputs, RUNS)).chain(depth, num_inputs)
        if found is not None:
            return found


def depth_of(source: str) -> int:
    """The depth of a program that `draw_chain` wrote: its lines between the signature and the return."""
    return source.count("\n") - 1


class _Attempt:
    """One chain under construction: its variables, and their values on each of its inputs."""

    def __init__(self, draw: ScalarDraws, runs: int) -> None:
        self._draw, self._runs = draw, runs
        self._free = list(NAMES)
        self._types: dict[str, str] = {}
        self._values: dict[str, list[object]] = {}
        self._used: set[str] = set()

    def chain(self, depth: int, num_inputs: int) -> Chain | None:
        """The chain, None if no step fits."""
        draw = self._draw
        newest = self._argument(TYPES[draw.weighted(_FIRST)], distinct=True)
        second = self._argument("S" if self._types[newest] == "S" else "I") if draw.unit() < _SECOND else None
        self._used.add(newest)
        first, lines = newest, []
        for _ in range(depth):
            step = self._step(newest)
            if step is None:
                return None
            newest, text = step
            lines.append(f"    {newest} = {text}")
        arguments = [first, *([second] if second in self._used else [])]
        rows = list(zip(*(self._values[name] for name in arguments), strict=True))[:num_inputs]
        names = tuple(name for name in self._values if name not in (first, second))
        return Chain(
            source=f"def f({', '.join(arguments)}):\n" + "\n".join(lines) + f"\n    return {newest}",
            depth=depth,
            signature="".join(self._types[name] for name in arguments),
            names=names,
            inputs=tuple(", ".join(map(repr, row)) for row in rows),
            outputs=tuple(map(repr, self._values[newest][:num_inputs])),
            values=tuple(tuple(repr(self._values[name][run]) for name in names) for run in range(num_inputs)),
        )

    def _name(self) -> str:
        return self._free.pop(self._draw.below(len(self._free)))

    def _argument(self, kind: str, distinct: bool = False) -> str:
        """A new argument with a value for each run; `distinct`: no two runs have the same."""
        name, values = self._name(), list[object]()
        while len(values) < self._runs:
            value = draw_value(self._draw, kind)
            if not distinct or value not in values:
                values.append(value)
        self._types[name], self._values[name] = kind, values
        return name

    def _step(self, newest: str) -> tuple[str, str] | None:
        """Add a step on the newest variable; return its name and text."""
        draw, kind = self._draw, self._types[newest]
        earlier = [name for name in self._types if name != newest]
        for _ in range(TRIES):
            template = draw_template(draw, kind, lambda wanted: any(self._types[name] == wanted for name in earlier))
            expression = filled(draw, template.text)
            others = [name for name in earlier if self._types[name] == template.other]
            # An argument that is still unused comes first: it is part of the function only if something uses it.
            other = next((name for name in others if name not in self._used), draw.pick(others)) if others else ""
            values = self._run(expression, self._values[newest], self._values[other] if other else self._values[newest])
            if values is None or values == self._values[newest] or len(set(map(repr, values))) < DISTINCT:
                continue
            name = self._name()
            self._types[name], self._values[name] = template.result, values
            self._used |= {name, other} if other else {name}
            return name, expression.replace("@", newest).replace("&", other)
        return None

    def _run(self, expression: str, newest: list[object], other: list[object]) -> list[object] | None:
        """The step's values on all inputs, None if one fails or is large."""
        step, values = run_step(expression), []
        for given in zip(newest, other, strict=True):
            try:
                value = step(*given)
            except (ValueError, IndexError):
                return None
            if not is_small(value):
                return None
            values.append(value)
        return values
