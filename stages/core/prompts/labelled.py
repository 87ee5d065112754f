"""What the styles in English share: rules that prompts state, and the reading of labelled fences. The last fitting one counts."""

import re
from collections.abc import Sequence

from stages.core.prompts.fences import Fence
from stages.core.prompts.styles import Unparsed

MAX_MESSAGE = 1000

FUNCTION_RULES = """\
- The entry point is a function named f, at the top level, with at least one parameter; f returns its result.
- Helper functions, nested functions and classes are welcome.
- The result depends on the arguments alone: no randomness, time, dates, input, output, printing, files, network, threads or
  processes, and no state kept between calls.
- Import only pure modules of the standard library (math, itertools, functools, collections, string, re, heapq, bisect and the
  like), at the top. random, time, os, subprocess, threading, multiprocessing, socket, logging and the like are refused.
- Arguments and result are plain values: None, booleans, numbers, strings, bytes, lists, tuples, dictionaries and sets of them.
- It ends within two seconds and in little memory."""
INPUT_RULES = (
    "the arguments of one call of f as Python literals separated by commas, strings in quotes, without f and without variables"
)
EXAMPLE_PROPOSAL = """\
```python
def f(name, scores):
    best = max(scores, key=scores.get)
    return [name.upper(), best, len(scores)]
```
```input
'ada', {'x': 3, 'y': 7}
```"""

DEFINES_F = re.compile(r"^def[ \t]++f[ \t]*+\(", re.M)
_TELLS_F = re.compile(r"\bdef\s++f\s*+\(")
_TAG = re.compile(r"</?(?:think|answer)>")


def fence(label: str, text: str) -> str:
    """Return the text in a fence with that label."""
    return f"```{label}\n{text.strip()}\n```"


def program_of(fences: Sequence[Fence]) -> str:
    """The last program that defines `f`; a fence without a label may hold it where none is labelled."""
    labelled = [block.text for block in fences if block.label == "python"]
    programs = labelled or [block.text for block in fences if block.label == ""]
    if not programs:
        raise Unparsed("no closed ```python fence", "no_program")
    for program in reversed(programs):
        if DEFINES_F.search(program):
            return program
    raise Unparsed("the program does not define f: no line starts with def f(", "no_program")


def value_of(fences: Sequence[Fence], label: str) -> str:
    """The last value with this label; a fence without a label may hold it where it is the only one."""
    labelled = [block.text for block in fences if block.label == label]
    plain = [block.text for block in fences if block.label == "" and not DEFINES_F.search(block.text)]
    values = labelled or (plain if len(plain) == 1 else [])
    if not values:
        raise Unparsed(f"no closed ```{label} fence", f"no_{label}")
    if not values[-1]:
        raise Unparsed(f"the ```{label} fence is empty", "empty")
    return values[-1]


def message_of(fences: Sequence[Fence]) -> str:
    """The last message. The student sees it, so it may neither give the program away nor speak in the prompt's own marks."""
    messages = [block.text for block in fences if block.label == "message"]
    if not messages or not messages[-1]:
        raise Unparsed("no closed ```message fence with a message", "no_message")
    message = messages[-1]
    if len(message) > MAX_MESSAGE:
        raise Unparsed(f"the message has {len(message)} characters, more than {MAX_MESSAGE}", "bad_message")
    if _TELLS_F.search(message):
        raise Unparsed("the message defines f", "bad_message")
    if "```" in message or _TAG.search(message):
        raise Unparsed("the message holds a fence or a tag", "bad_message")
    return message
