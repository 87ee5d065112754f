"""Task gates: reasons not to pose a valid task. All but `held_out` are disabled unless the configuration names them.

A strict gate alone can keep self-play from collapsing, so gates are an experimental arm, not a constant of the method. A gated
task is neither solved nor stored, and its reward is 0. Gates read only text and outputs; no program runs here.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

HELD_OUT = "held_out"
"""The gate that is always on: the program belongs to a suite that the run keeps out. A run may not train on what scores it."""

Gate = Callable[[Mapping[str, Any]], bool]
"""A row of TASKS with status valid -> whether the gate stops it."""

_COMMENT = re.compile(r"#[^\n]*")
_SIGNATURE = re.compile(r"^def f\((?P<parameters>[^()]*+)\)[^:\n]*+:", re.MULTILINE)
_TEXT_BLOCK = re.compile(r'"""[\s\S]*?"""|' + r"'''[\s\S]*?'''")
_PARAMETER = re.compile(r"(?:^|,)\s*+\**+\s*+([^\W\d]\w*+)")
_WORD = re.compile(r"\w++")
_SPACE = re.compile(r"\s++")


def constant(row: Mapping[str, Any]) -> bool:
    """Stop an induction task whose outputs are all equal."""
    return len(row["inputs"]) > 1 and len(set(row["values"])) == 1


def ignores_input(row: Mapping[str, Any]) -> bool:
    """Stop a task where no parameter of `f` appears after its signature, ignoring comments and triple-quoted texts."""
    program = _COMMENT.sub("", _TEXT_BLOCK.sub("", row["program"]))
    found = _SIGNATURE.search(program)
    if not found:
        return False
    names = _PARAMETER.findall(found["parameters"])
    return bool(names) and not set(names).intersection(_WORD.findall(program, found.end()))


def identity(row: Mapping[str, Any]) -> bool:
    """Stop a task where every output equals its input."""
    return all(_squeeze(given) == _squeeze(got) for given, got in zip(row["inputs"], row["outputs"], strict=True))


def verbatim_output(row: Mapping[str, Any]) -> bool:
    """Stop a task where an output of three characters or more appears verbatim in the program."""
    program = _squeeze(row["program"])
    return any(len(output) >= 3 and output in program for output in map(_squeeze, row["outputs"]))


def quoted_input(row: Mapping[str, Any]) -> bool:
    """Stop a deduction or abduction task whose input appears in a comment or docstring of the program."""
    if row["kind"] == "induction":
        return False
    asides = _squeeze(" ".join(_COMMENT.findall(row["program"]) + _TEXT_BLOCK.findall(row["program"])))
    return any(_squeeze(given) in asides for given in row["inputs"])


def repeated(row: Mapping[str, Any]) -> bool:
    """Stop a task that equals an earlier one of the run, or one before it in its generation."""
    return bool(row["duplicate"])


def telling_message(row: Mapping[str, Any]) -> bool:
    """Stop an induction task whose message quotes a line of the program's body or a hidden output of 3 or more characters."""
    message = _squeeze(row["message"])
    body = [_squeeze(line) for line in row["program"].splitlines()[1:]]
    hidden = [_squeeze(output) for output in row["outputs"][len(row["outputs"]) // 2 :]]
    return row["kind"] == "induction" and any(len(text) >= 3 and text in message for text in body + hidden)


def _squeeze(text: str) -> str:
    """Return the text without white space, and with one kind of quotes."""
    return _SPACE.sub("", text).replace('"', "'")


GATES: dict[str, Gate] = {
    "constant": constant,
    "identity": identity,
    "ignores_input": ignores_input,
    "verbatim_output": verbatim_output,
    "quoted_input": quoted_input,
    "telling_message": telling_message,
    "repeated": repeated,
}
