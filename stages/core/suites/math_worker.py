"""The process that decides whether two answers are equal: JSON lines in (gold, answer), JSON lines out. See math_grader.py.

It may hang or grow without bound on what a model wrote: each question has so much processor time, after which the kernel ends
the process. The parsers inside (antlr, sympy) read untrusted text, so the process runs behind walls (math_walls.py). Nothing can
be imported there: the reply names what sympy would load late, and the question is put again to a process that has loaded it.
"""

import importlib
import logging
import math
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Eq

from stages.core.child_process import answer, orders
from stages.core.suites.math_walls import raise_walls

_POWER = re.compile(r"(?<![\w.])([-+]?\d+(?:\.\d*)?|[-+]?\.\d+)[eE]([-+]?\d+)(?![\w.])")
_PLAIN = re.compile(r"[\d\s.,+\-*/^()%$]*(?:\s*[a-zA-Z]+\.?)?")
_DECIMAL = re.compile(r"(\d)\.(?=[^\d]|$)")  # `1./3`
_COUNTED = re.compile(r"(\\?\$?-?[\d,]*\.?\d+) +[a-zA-Z]{3,}(?: [a-zA-Z]{2,}){0,3}")  # `18 dollars`, `3 slices of cake`
_INDEXED = re.compile(r"[a-zA-Z]_\{?\w")  # `E_{1}`: a value without variables is then not the formula's
_SQUARED = re.compile(r"\\(?:mbox|text|mathrm)\s*\{\s*[a-zA-Z. ]+\}\s*\^\{?[23]\}?")  # `864 \mbox{ inches}^2`
_BASE = re.compile(r"(\d+)_\{?(\d+)\}?")


def equal(gold: str, answer: str) -> bool:
    """Return whether math-verify accepts the answer as the gold answer.

    We are stricter than math-verify in three cases: a formula that its LaTeX parser cannot read is not replaced by the
    first number in it; a number's base counts if one is given; and small numbers are compared by their ratio
    (it rounds to six decimals, so that 6e-34 and 7e-34 would be the same).
    """
    if based := _BASE.fullmatch(gold.strip()):
        other = _BASE.fullmatch(answer.strip())
        return other.groups() == based.groups() if other else answer.strip() == based[1]
    right, given = _parsed(gold), _parsed(answer)
    return not _apart(right, given) and bool(verify(right, given, timeout_seconds=None))


def _parsed(text: str) -> list:
    """The text's value and the text itself, as math-verify has them; e-notation is read as a power of ten."""
    text = _POWER.sub(r"\1 \\times 10^{\2}", text)
    text = _SQUARED.sub("", _DECIMAL.sub(r"\1", text))
    if counted := _COUNTED.fullmatch(text.strip()):
        text = counted[1]
    plain = (ExprExtractionConfig(),) if _PLAIN.fullmatch(text) else ()
    targets = (LatexExtractionConfig(boxed_match_priority=0), *plain)
    found = list(parse(f"\\boxed{{{text}}}", extraction_config=targets, parsing_timeout=None))
    return [text] if found and _misread(text, found[0]) else found


def _misread(text: str, value: object) -> bool:
    """A formula with indices read as a number without variables, or an equation that holds always (letters lose their case)."""
    if _INDEXED.search(text) and not getattr(value, "free_symbols", True):
        return True
    return isinstance(value, Eq) and value.lhs == value.rhs


def _apart(right: list, given: list) -> bool:
    """Whether both are numbers, the gold one small, that differ by more than one in a hundred thousand of it."""
    try:
        gold, number = float(right[0]), float(given[0])
    except (TypeError, ValueError, IndexError, OverflowError):
        return False
    return 0 < abs(gold) < 1 and not math.isclose(gold, number, rel_tol=1e-5)


_LATE = (  # what they need is loaded at the first such answer
    ("1", "\\frac{2}{2}"),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"),
    ("\\text{Evelyn}", "Evan"),
    ("p - q", "q - p"),
    ("x<3", "(-\\infty,3)"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
)


class _Imports(MetaPathFinder):
    """Records the modules that are requested but not loaded; loads nothing."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known, self.wanted = set(known), list[str]()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Never a module."""
        if name not in self.known:
            self.wanted.append(name)
        return None


def main(modules: Sequence[str]) -> None:
    """Answer questions until standard input ends. `modules`: those missing in earlier processes."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for gold, other in _LATE:
        equal(gold, other)
    for name in modules:
        with suppress(Exception):  # one that is not installed stays away, as it does without walls
            importlib.import_module(name)
    missing = raise_walls()
    imports = _Imports(modules)
    if "system_call_filter" not in missing:
        sys.meta_path.insert(0, imports)
    answer(sys.stdout, {"ready": True, "missing": missing})
    for question in orders(sys.stdin):
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])  # of processor time; the signal ends the process
        reply = _reply(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer(sys.stdout, reply | {"needs": imports.wanted})
        imports.wanted.clear()


def _reply(question: dict) -> dict[str, object]:
    try:
        return {"correct": any(equal(gold, question["answer"]) for gold in question["gold"]), "error": ""}
    except Exception as error:  # whatever the parsers raise: the answer cannot be read
        return {"correct": False, "error": type(error).__name__}


if __name__ == "__main__":
    main(sys.argv[1:])
