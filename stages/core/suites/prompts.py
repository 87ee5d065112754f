"""One fixed prompt a suite and style, for base and trained models alike; and how the answer is taken from a completion.

Styles: `plain` asks as one asks an instruct model, in text without a chat template; `azr` wraps the same question in the
conversation that Absolute Zero Reasoner trains with (think, then answer). The style stands in the manifest beside the scores.
Only the question differs from suite to suite; nothing is chosen by model. Completions are read with regular expressions only.
"""

import re

from stages.core.suites import math_answers
from stages.core.suites.problems import Form, Problem

STYLES = ("plain", "azr")

_AZR = (
    "A conversation between User and Assistant. The User asks a question and the Assistant solves it. The Assistant first\n"
    "thinks about the reasoning and then gives the answer; the reasoning stands between <think> and </think>, the answer\n"
    "between <answer> and </answer>, like this: <think> reasoning here </think> <answer> answer here </answer>.\n"
    "User: {question}\nAssistant: <think>"
)
_FUNCTION = (
    "Complete this Python function. Give the whole program, with all that it needs, in one fence that starts with ```python.\n\n"
    "```python\n{program}\n```\n"
)
_TASK = (
    "Write a Python function for this task. The function is called {entry}. Give the whole program, with all that it needs, in\n"
    "one fence that starts with ```python.\n\n{question}\n"
)
_METHOD = (
    "Solve this programming problem in Python. Complete the given class; give the whole program in one fence that starts with\n"
    "```python.\n\n{question}\n\n```python\n{program}\n```\n"
)
_STDIN = (
    "Solve this programming problem in Python. The program reads standard input and writes standard output. Give the whole\n"
    "program in one fence that starts with ```python.\n\n{question}\n"
)
_MATHEMATICS = "{question}\n\nReason step by step, and put the final answer within \\boxed{{}}.\n"
_DEDUCTION = (
    "Here is a Python program and an input. Work out what f returns for it, and give the value as a Python literal in one\n"
    "fence that starts with ```output.\n\n```python\n{program}\n```\n```input\n{given}\n```\n"
)
_ABDUCTION = (
    "Here is a Python program and an output. Find arguments for which f returns it, and give them as comma-separated Python\n"
    "literals in one fence that starts with ```input.\n\n```python\n{program}\n```\n```output\n{output}\n```\n"
)


def prompt(problem: Problem, style: str) -> str:
    """The prompt of a problem. Raises ValueError for an unknown style."""
    if style not in STYLES:
        raise ValueError(f"style {style!r} is none of {', '.join(STYLES)}")
    question = _question(problem)
    return _AZR.format(question=question) if style == "azr" else question


def _question(problem: Problem) -> str:
    if problem.form is Form.MATHEMATICS:
        return _MATHEMATICS.format(question=problem.question)
    if problem.form is Form.DEDUCTION:
        return _DEDUCTION.format(program=problem.program, given=problem.inputs[0])
    if problem.form is Form.ABDUCTION:
        return _ABDUCTION.format(program=problem.program, output=problem.outputs[0])
    if problem.form is Form.STDIN:
        return _STDIN.format(question=problem.question)
    if not problem.reference:
        return _METHOD.format(question=problem.question, program=problem.program)
    if problem.program:
        return _FUNCTION.format(program=problem.program.rstrip())
    return _TASK.format(entry=problem.entry_point, question=problem.question)


_FENCE = re.compile(r"^[ \t]*+```[ \t]*+(?P<label>[\w+-]*+)[^\n]*+\n(?P<text>.*?)(?:^[ \t]*+```|\Z)", re.M | re.S)
_TAG = re.compile(r"<answer>(?P<inside>.*?)(?:</answer>|\Z)", re.S)
_PROGRAM_LABELS = ("", "python", "python3", "py")


def answer(problem: Problem, text: str) -> str | None:
    """The answer that a completion gives to a problem; None if it gives none.

    Inside the last `<answer>` where there is one, else in the whole text: the last fitting fence. A program outside any fence
    counts if it defines the entry point; a function's body alone is put behind the signature that the prompt showed.
    """
    if problem.form is Form.MATHEMATICS:
        return math_answers.extract(text)
    inside = [found["inside"] for found in _TAG.finditer(text)]
    text = inside[-1] if inside else text
    if problem.form in (Form.DEDUCTION, Form.ABDUCTION):
        return _literal(text, "output" if problem.form is Form.DEDUCTION else "input")
    return _program(problem, text)


def _literal(text: str, label: str) -> str | None:
    fences = [found for found in _FENCE.finditer(text) if found["label"].lower() in (label, "")]
    labelled = [found["text"].strip() for found in fences if found["label"]] or [found["text"].strip() for found in fences]
    if labelled:
        return labelled[-1] or None
    alone = text.strip()
    return alone if alone and "\n" not in alone else None


def _program(problem: Problem, text: str) -> str | None:
    fences = [found["text"] for found in _FENCE.finditer(text) if found["label"].lower() in _PROGRAM_LABELS]
    name = problem.entry_point.rpartition(".")[2]
    defines = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(name)}[ \t]*\(", re.M) if name else None
    if fences:
        fitting = [fence for fence in fences if defines and defines.search(fence)]
        found = (fitting or fences)[-1]
    elif defines is None or defines.search(text):
        found = text
    else:
        return problem.program + text if problem.program and problem.reference and text.startswith((" ", "\t")) else None
    if defines and not defines.search(found) and problem.program and problem.reference:
        found = problem.program + found
    return found.strip("\n") + "\n" if found.strip() else None
