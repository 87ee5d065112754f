"""Task gates: reasons not to pose a task that ran well. All are off unless the configuration names them.

A strict gate alone can keep self-play from collapsing, so gates are an arm of an experiment and not a constant of the method.
A gated task is neither solved nor stored and pays nothing. Gates read text and outputs only; no program runs here.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Gate = Callable[[Mapping[str, Any]], bool]
"""A row of TASKS with status valid -> whether the gate stops it."""

_COMMENT = re.compile(r"#[^\n]*")
_SIGNATURE = re.compile(r"^def f\((?P<parameters>[^()]*+)\)[^:\n]*+:", re.MULTILINE)
_TEXT_BLOCK = re.compile(r'"""[\s\S]*?"""|' + r"'''[\s\S]*?'''")
_PARAMETER = re.compile(r"(?:^|,)\s*+\**+\s*+([^\W\d]\w*+)")
_WORD = re.compile(r"\w++")
_SPACE = re.compile(r"\s++")


def constant(row: Mapping[str, Any]) -> bool:
    """An induction task whose outputs are all equal although its inputs are not."""
    return len(row["inputs"]) > 1 and len(set(row["values"])) == 1


def ignores_input(row: Mapping[str, Any]) -> bool:
    """No parameter of `f` is named again after its signature, comments and texts in triple quotes aside."""
    program = _COMMENT.sub("", _TEXT_BLOCK.sub("", row["program"]))
    found = _SIGNATURE.search(program)
    if not found:
        return False
    names = _PARAMETER.findall(found["parameters"])
    return bool(names) and not set(names).intersection(_WORD.findall(program, found.end()))


def identity(row: Mapping[str, Any]) -> bool:
    """Every output is its own input."""
    return all(_squeeze(given) == _squeeze(got) for given, got in zip(row["inputs"], row["outputs"], strict=True))


def verbatim_output(row: Mapping[str, Any]) -> bool:
    """An output of three characters or more stands in the program as it is."""
    program = _squeeze(row["program"])
    return any(len(output) >= 3 and output in program for output in map(_squeeze, row["outputs"]))


def quoted_input(row: Mapping[str, Any]) -> bool:
    """A deduction or abduction input stands in a comment or docstring of the program."""
    if row["kind"] == "induction":
        return False
    asides = _squeeze(" ".join(_COMMENT.findall(row["program"]) + _TEXT_BLOCK.findall(row["program"])))
    return any(_squeeze(given) in asides for given in row["inputs"])


def telling_message(row: Mapping[str, Any]) -> bool:
    """An induction message that quotes a line of the program's body or a hidden output of three characters or more."""
    message = _squeeze(row["message"])
    body = [_squeeze(line) for line in row["program"].splitlines()[1:]]
    hidden = [_squeeze(output) for output in row["outputs"][len(row["outputs"]) // 2 :]]
    return row["kind"] == "induction" and any(len(text) >= 3 and text in message for text in body + hidden)


def _squeeze(text: str) -> str:
    """The text without white space, and with one kind of quotes."""
    return _SPACE.sub("", text).replace('"', "'")


GATES: dict[str, Gate] = {
    "constant": constant,
    "identity": identity,
    "ignores_input": ignores_input,
    "verbatim_output": verbatim_output,
    "quoted_input": quoted_input,
    "telling_message": telling_message,
}
