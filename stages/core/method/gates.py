"""Task gates: reasons not to pose a valid task. All but `held_out` are disabled unless the configuration names them.

A strict gate alone can keep self-play from collapsing, so gates are an experimental arm, not a constant of the method. A gated
task is neither solved nor stored, and its reward is 0. Gates read only text and outputs; no program runs here.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from stages.core.values.canonical import LiteralError, canonical, parse_arguments, respelled_arguments

HELD_OUT = "held_out"
"""The gate that is always on: the program belongs to a suite that the run keeps out. A run may not train on what scores it."""

SHORT = 32
"""Letters of an input that may be part of a longer number or word by chance. Longer ones are looked for in linear time."""

Gate = Callable[[Mapping[str, Any]], bool]
"""A row of TASKS with status valid -> whether the gate stops it."""

# strings first: a `#` or a quote inside one begins nothing
_ASIDE = re.compile(
    r'(?P<block>"""(?:[^\\"]++|\\.|"(?!""))*+"""|' + r"'''(?:[^\\']++|\\.|'(?!''))*+''')"
    r'|(?P<text>"(?:[^\\"\n]++|\\.)*+"|' + r"'(?:[^\\'\n]++|\\.)*+')"
    r"|(?P<comment>#[^\n]*+)",
    re.S,
)
_SIGNATURE = re.compile(r"^def f\((?P<parameters>[^()]*+)\)[^:\n]*+:", re.MULTILINE)
_PARAMETER = re.compile(r"(?:^|,)\s*+\**+\s*+([^\W\d]\w*+)")
_WORD = re.compile(r"\w++")
_SPACE = re.compile(r"\s++")


def constant(row: Mapping[str, Any]) -> bool:
    """Stop an induction task whose outputs are all equal."""
    return len(row["inputs"]) > 1 and len(set(row["values"])) == 1


def ignores_input(row: Mapping[str, Any]) -> bool:
    """Stop a task where no parameter of `f` appears after its signature, ignoring comments and triple-quoted texts."""
    program = _ASIDE.sub(lambda found: found["text"] or "", row["program"])
    found = _SIGNATURE.search(program)
    if not found:
        return False
    names = _PARAMETER.findall(found["parameters"])
    return bool(names) and not set(names).intersection(_WORD.findall(program, found.end()))


def identity(row: Mapping[str, Any]) -> bool:
    """Stop a task where every output equals its input, or the tuple of its inputs if there are several."""
    return all(_returned(given) == value for given, value in zip(row["inputs"], row["values"], strict=True))


def verbatim_output(row: Mapping[str, Any]) -> bool:
    """Stop a task where an output of three characters or more appears verbatim in the program."""
    program = _squeeze(row["program"])
    return any(len(output) >= 3 and output in program for output in map(_squeeze, row["outputs"]))


def quoted_input(row: Mapping[str, Any]) -> bool:
    """Stop a deduction or abduction task whose input appears in a comment or docstring of the program.

    Only as a whole: `1` does not appear in `128` or `-1`. A task without an input is stopped, too.
    """
    if row["kind"] == "induction":
        return False
    asides = " ".join(found[0] for found in _ASIDE.finditer(row["program"]) if not found["text"]).replace('"', "'")
    spelled = [text for given in row["inputs"] for text in (_squeeze(given), _squeeze(respelled_arguments(given)))]
    return not all(spelled) or any(_stands_in(text, asides) for text in spelled)


def repeated(row: Mapping[str, Any]) -> bool:
    """Stop a task that equals an earlier one of the run, or one before it in its generation."""
    return bool(row["duplicate"])


def telling_message(row: Mapping[str, Any]) -> bool:
    """Stop an induction task whose message quotes a line of the program's body or a hidden output of 3 or more characters."""
    message = _squeeze(row["message"])
    body = [_squeeze(line) for line in row["program"].splitlines()[1:]]
    hidden = [_squeeze(output) for output in row["outputs"][len(row["outputs"]) // 2 :]]
    return row["kind"] == "induction" and any(len(text) >= 3 and text in message for text in body + hidden)


def _returned(arguments: str) -> str:
    """Return the canonical text of what `return x` gives for one argument, and `return a, b` for two."""
    try:
        values = parse_arguments(arguments)
    except LiteralError:
        return ""
    return canonical(values[0] if len(values) == 1 else values)


def _stands_in(squeezed: str, text: str) -> bool:
    """Return whether the text holds this one, with any white space in it; a short one not inside a longer word or number."""
    return squeezed in _squeeze(text) and (len(squeezed) > SHORT or _as_a_whole(squeezed).search(text) is not None)


def _as_a_whole(squeezed: str) -> re.Pattern[str]:
    spaced = r"\s*+".join(map(re.escape, squeezed))
    return re.compile(
        (r"(?<![\w.-])" if squeezed[:1].isalnum() else "") + spaced + (r"(?!\w|\.\d)" if squeezed[-1:].isalnum() else "")
    )


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
