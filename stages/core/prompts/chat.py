"""Prompts in English, for base and instruct models that read it: a think/answer conversation and labelled code fences.

After Absolute Zero Reasoner (arXiv 2505.03335), in words of our own. A completion continues an opened `<think>`. Deviations:

1. Format: as there, `<think>…</think>`, white space, `<answer>…</answer>`, and the last `<answer>` counts. But tags inside a
   fence are text, and what a model writes once it starts to play the user is dropped (there it could replace the answer).
2. A fence's label decides what it is: a first fence that holds the input is no program (there it is).
3. The last fitting fence counts, for programs too; a triple backtick inside a string does not end a fence.
4. Nothing is renamed, cut or repaired, and nested functions and classes pass: the program must define `f` at its top level.
5. An answer without its fence is a format error: no guessing from phrases such as "the output is".
6. The message of an induction task must not define `f` or write tags, and is short.
7. The hardness asked for is that of the task at hand (there the two sentences are swapped).

Completions are read with regular expressions only: nothing that a model wrote is parsed as Python on the host.
"""

import re
from collections.abc import Sequence

from stages.core.prompts.fences import Fence, blanked, closed_fences
from stages.core.prompts.styles import Kind, Proposed, Triplet, Unparsed

MAX_MESSAGE = 1000

_PREAMBLE = """\
Below, a User gives a task to an Assistant. The Assistant first thinks it through between <think> and </think>, and directly after
that gives its result between <answer> and </answer>, like this: <think> the reasoning </think> <answer> the result </answer>."""
_FUNCTION_RULES = """\
- The entry point is a function named f, at the top level, with at least one parameter; f returns its result.
- Helper functions, nested functions and classes are welcome.
- The result depends on the arguments alone: no randomness, time, dates, input, output, printing, files, network, threads or
  processes, and no state kept between calls.
- Import only pure modules of the standard library (math, itertools, functools, collections, string, re, heapq, bisect and the
  like), at the top. random, time, os, subprocess, threading, multiprocessing, socket, logging and the like are refused.
- Arguments and result are plain values: None, booleans, numbers, strings, bytes, lists, tuples, dictionaries and sets of them.
- It ends within two seconds and in little memory."""
_INPUT_RULES = (
    "the arguments of one call of f as Python literals separated by commas, strings in quotes, without f and without variables"
)
_EXAMPLE_PROPOSAL = """\
```python
def f(name, scores):
    best = max(scores, key=scores.get)
    return [name.upper(), best, len(scores)]
```
```input
'ada', {'x': 3, 'y': 7}
```"""
_HARDNESS = {
    Kind.DEDUCTION: (
        "The solver will see your program and your input, and must work out by reasoning alone what f returns.",
        "hard to predict the output: several steps, each depending on the one before, so that guessing does not help",
    ),
    Kind.ABDUCTION: (
        "The solver will see your program and the output that your input gives, and must find an input that gives this output.",
        "hard to find an input: the output should not show it at a glance, and few inputs should give that output",
    ),
}


class ChatPrompts:
    """Writes and reads prompts for models that understand English."""

    def propose(self, kind: Kind, references: tuple[Triplet, ...]) -> str:
        """Asks for a new program and one input, unlike the references."""
        if kind not in _HARDNESS:
            raise ValueError(f"induction proposals show a program: use propose_inputs, not propose({kind!r})")
        situation, hardness = _HARDNESS[kind]
        parts = [
            f"Invent a puzzle: a new Python program with one input for it. {situation}",
            f"The program:\n{_FUNCTION_RULES}",
            f"The input: {_INPUT_RULES}.",
            f"Write both in fences of this form, and nothing else, inside <answer>:\n{_EXAMPLE_PROPOSAL}",
            f"Your puzzle counts when the program runs and gives the same result every time, and it counts the more, the more "
            f"often an able solver fails, as long as some attempts succeed. Make it {hardness}. Draw on data structures and "
            f"algorithms: recursion, dynamic programming, graphs, stacks, parsing, number theory, simulation, string rewriting "
            f"and others. It must not resemble the examples.",
            *(_reference(number, each) for number, each in enumerate(references, 1)),
            "Plan the puzzle first, check that f accepts the input, then give the program and the input.",
        ]
        return _conversation(parts)

    def propose_inputs(self, program: str, num_inputs: int) -> str:
        """Asks for `num_inputs` inputs and a message for a given program."""
        if num_inputs < 1:
            raise ValueError(f"num_inputs must be positive, not {num_inputs}")
        parts = [
            f"Here is a Python program:\n{_fence('python', program)}",
            f"Turn it into a puzzle: write {num_inputs} different inputs for it and one message. The solver will see some of the "
            f"inputs with their outputs and your message, but not the program, and must write a function that also gives the "
            f"right outputs for the inputs kept back.",
            f"Each input: {_INPUT_RULES}. Together the inputs should reach every branch of the program and give varied outputs, "
            f"so that the pairs determine what f does.",
            f"The message: a hint, a question or a short description of what is asked, at most {MAX_MESSAGE} characters. It must "
            f"not contain the program. The puzzle should be hard, but possible.",
            f"Write {num_inputs} input fences and one message fence, of this form, inside <answer>:\n"
            "```input\n'ada', {'x': 3}\n```\n```input\n'bo', {}\n```\n```message\nWhat does f do with the highest score?\n```",
            "Think first about what the program does and which inputs show it.",
        ]
        return _conversation(parts)

    def solve(self, kind: Kind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> str:
        """Asks for an output, an input or a program."""
        if kind is Kind.DEDUCTION:
            parts = [
                f"Work out what this Python program returns.\n{_fence('python', program)}",
                f"It is called as f(…) with this input:\n{_fence('input', inputs[0])}",
                "Follow the program step by step. Give the returned value as a Python literal (strings in quotes, several "
                "returned values as a tuple) in a fence of this form, inside <answer>:\n```output\n{'a': [1, 2]}\n```",
            ]
        elif kind is Kind.ABDUCTION:
            parts = [
                f"Find an input for this Python program.\n{_fence('python', program)}",
                f"Called with the input, f must return exactly this output:\n{_fence('output', outputs[0])}",
                f"Any input that does so is right. Reason step by step and check it against the program. Give {_INPUT_RULES}, "
                "in a fence of this form, inside <answer>:\n```input\n'ada', {'x': 3}\n```",
            ]
        else:
            parts = _induction(inputs, outputs, message)
        return _conversation(parts)

    def read_proposal(self, kind: Kind, completion: str) -> Proposed:
        """The last program that defines `f`, and the last input."""
        fences = closed_fences(_answer(completion))
        return Proposed(_program(fences), (_value(fences, "input"),))

    def read_inputs(self, completion: str, program: str, num_inputs: int) -> Proposed:
        """The last `num_inputs` inputs and the last message."""
        fences = closed_fences(_answer(completion))
        inputs = [fence.text for fence in fences if fence.label == "input"]
        if len(inputs) < num_inputs:
            raise Unparsed(f"wanted {num_inputs} ```input fences, found {len(inputs)}")
        if not all(inputs[-num_inputs:]):
            raise Unparsed("an ```input fence is empty")
        return Proposed(program, tuple(inputs[-num_inputs:]), _message(fences))

    def read_answer(self, kind: Kind, completion: str) -> str:
        """What the last output, input or program fence holds."""
        fences = closed_fences(_answer(completion))
        if kind is Kind.INDUCTION:
            return _program(fences)
        return _value(fences, "output" if kind is Kind.DEDUCTION else "input")


def _conversation(parts: Sequence[str]) -> str:
    return f"{_PREAMBLE}\nUser: " + "\n\n".join(parts) + "\nAssistant: <think>"


def _fence(label: str, text: str) -> str:
    return f"```{label}\n{text.strip()}\n```"


def _reference(number: int, triplet: Triplet) -> str:
    shown = (("python", triplet.program), ("input", triplet.input), ("output", triplet.output))
    return f"Example {number}, written earlier:\n" + "\n".join(_fence(label, text) for label, text in shown)


def _induction(inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> list[str]:
    pairs = enumerate(zip(inputs, outputs, strict=True), 1)
    shown = "\n".join(f"Pair {number}\n{_fence('input', given)}\n{_fence('output', got)}" for number, (given, got) in pairs)
    return [
        f"Write the Python function f that turns each of these inputs into its output. Further pairs of the same kind are kept "
        f"back, and f must be right on those too.\n{shown}",
        *([f"The author of the puzzle says:\n{_fence('message', message)}"] if message.strip() else []),
        f"The function:\n{_FUNCTION_RULES}",
        "Find the general rule, do not list the pairs, and try f on every pair in your mind. Give the whole program in a fence "
        "of this form, inside <answer>:\n```python\ndef f(a, b):\n    return a\n```",
    ]


_DEFINES_F = re.compile(r"^def[ \t]++f[ \t]*+\(", re.M)
_TELLS_F = re.compile(r"\bdef\s++f\s*+\(")
_THOUGHT_OVER = re.compile(r"</think>\s*+(?=<answer>)")
_TURN_OVER = re.compile(r"</answer>\s*+User:")
_TAG = re.compile(r"</?(?:think|answer)>")


def _answer(completion: str) -> str:
    """What stands inside the last answer tags. Raises Unparsed unless the form is `thought</think><answer>…</answer>`."""
    text = completion.replace("\r\n", "\n").replace("\r", "\n")
    start = _THOUGHT_OVER.search(text)
    if start is None:
        for tag in ("</think>", "<answer>"):
            if tag not in text:
                raise Unparsed(f"no {tag}")
        raise Unparsed("<answer> does not follow directly on </think>")
    text = text[start.end() :]
    outside = blanked(text)
    if over := _TURN_OVER.search(outside):
        outside = outside[: over.end()]
    opening = outside.rfind("<answer>")
    closing = outside.find("</answer>", opening)
    if closing < 0:
        raise Unparsed("no </answer>")
    return text[opening + len("<answer>") : closing]


def _program(fences: Sequence[Fence]) -> str:
    """The last program that defines `f`; a fence without a label may hold it where none is labelled."""
    labelled = [fence.text for fence in fences if fence.label == "python"]
    programs = labelled or [fence.text for fence in fences if fence.label == ""]
    if not programs:
        raise Unparsed("no closed ```python fence")
    for program in reversed(programs):
        if _DEFINES_F.search(program):
            return program
    raise Unparsed("the program does not define f: no line starts with def f(")


def _value(fences: Sequence[Fence], label: str) -> str:
    """The last value with this label; a fence without a label may hold it where it is the only one."""
    labelled = [fence.text for fence in fences if fence.label == label]
    plain = [fence.text for fence in fences if fence.label == "" and not _DEFINES_F.search(fence.text)]
    values = labelled or (plain if len(plain) == 1 else [])
    if not values:
        raise Unparsed(f"no closed ```{label} fence")
    if not values[-1]:
        raise Unparsed(f"the ```{label} fence is empty")
    return values[-1]


def _message(fences: Sequence[Fence]) -> str:
    """The last message. The student sees it, so it may neither give the program away nor speak in the prompt's own marks."""
    messages = [fence.text for fence in fences if fence.label == "message"]
    if not messages or not messages[-1]:
        raise Unparsed("no closed ```message fence with a message")
    message = messages[-1]
    if len(message) > MAX_MESSAGE:
        raise Unparsed(f"the message has {len(message)} characters, more than {MAX_MESSAGE}")
    if _TELLS_F.search(message):
        raise Unparsed("the message defines f")
    if "```" in message or _TAG.search(message):
        raise Unparsed("the message holds a fence or a tag")
    return message
