"""Prompts for the problems of public suites, in three styles, and extraction of answers from completions.

`chat` is for models with a chat template: a user asks, and for functions the answer's first words are given, in the wording of
EvalPlus. `completion` is for base models, which continue a text: a function's stub as in EvalPlus, an opened fence, or worked
examples as in lm-evaluation-harness. `azr` wraps the question in the conversation that Absolute Zero Reasoner trains with. Within
a style every model gets the same words. Completions are read with regular expressions only.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stages.core.prompts.chat import read_value
from stages.core.prompts.styles import Kind, Unparsed
from stages.core.suites import math_answers
from stages.core.suites.exemplars import counted, proved
from stages.core.suites.problems import Form, Problem
from stages.core.values.leading import call_arguments, leading_value

STYLES = ("chat", "completion", "azr")


@dataclass(frozen=True)
class Wording:
    """`asked` is the user message, or the text to continue; the answer begins with `opening` and ends before any of `stops`."""

    asked: str
    opening: str = ""
    stops: tuple[str, ...] = ()


_AZR = (
    "A conversation between User and Assistant. The User asks a question and the Assistant solves it. The Assistant first\n"
    "thinks about the reasoning and then gives the answer; the reasoning stands between <think> and </think>, the answer\n"
    "between <answer> and </answer>, like this: <think> reasoning here </think> <answer> answer here </answer>.\n"
    "User: {question}\nAssistant: <think>"
)
_SCRIPT = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
    "```\n{stub}\n```\n"
)
_SCRIPT_OPENING = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:\n```python\n"
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
_MATHEMATICS = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_DEDUCTION = (
    "Here is a Python program and an input. Work out what f returns for it, and give the value as a Python literal in one\n"
    "fence that starts with ```output.\n\n```python\n{program}\n```\n```input\n{given}\n```\n"
)
_ABDUCTION = (
    "Here is a Python program and an output. Find arguments for which f returns it, and give them as comma-separated Python\n"
    "literals in one fence that starts with ```input.\n\n```python\n{program}\n```\n```output\n{output}\n```\n"
)
# What follows a function at the left margin is no part of it: EvalPlus's stop words, and `assert`, which its sanitizer drops.
_AFTER = ("\nif __name__", "\ndef main(", "\nprint(", "\nassert ", "\n```")
_AFTER_STUB = (*_AFTER, "\ndef ", "\nclass ", "\nimport ", "\nfrom ")
# Changed with the rules by which literals are read: scores read by different rules are never mixed.
_RULES = {"completion": b"leading value", "chat": b"fences as in training"}
_AFTER_TASK = (*_AFTER, '\n"""')


def wording(problem: Problem, style: str) -> Wording:
    """Return the wording of a problem. Raise ValueError for an unknown style."""
    if style == "chat":
        return _chat(problem)
    if style == "completion":
        return _completion(problem)
    if style == "azr":
        return Wording(_AZR.format(question=_question(problem)), stops=("\nUser:",))  # a next question is not part of the answer
    raise ValueError(f"unknown style {style!r}: known are {', '.join(STYLES)}")


def digest(problems: Iterable[Problem], style: str) -> str:
    """sha256 over how all of them are worded, and over the rule by which the style's literals are read."""
    total = hashlib.sha256()
    for problem in problems:
        total.update(repr(wording(problem, style)).encode())
        if problem.form in _LITERALS:
            total.update(_RULES.get(style, b""))
    return total.hexdigest()


def _chat(problem: Problem) -> Wording:
    if _is_function(problem):
        return Wording(_SCRIPT.format(stub=_stub(problem).strip()), _SCRIPT_OPENING, _AFTER)
    return Wording(_question(problem))


def _completion(problem: Problem) -> Wording:
    if _is_function(problem):
        return Wording(_stub(problem), stops=_AFTER_STUB if problem.program else _AFTER_TASK)
    if problem.form is Form.DEDUCTION:
        return Wording(f"{problem.program.strip()}\n\nassert f({problem.inputs[0]}) ==", stops=("\n",))
    if problem.form is Form.ABDUCTION:
        return Wording(f"{problem.program.strip()}\n\nassert {problem.outputs[0]} == f", stops=("\n",))
    if problem.form is not Form.MATHEMATICS:
        return Wording(_question(problem), "\n```python\n", ("\n```",))
    if problem.problem_id.startswith("gsm8k/"):
        return Wording(counted(problem.question), stops=("\nQ:",))
    return Wording(proved(problem.question), stops=("\nProblem:",))


def _is_function(problem: Problem) -> bool:
    """Return whether the problem asks for a function as in EvalPlus, not for a class to complete."""
    return problem.form is Form.FUNCTION and bool(problem.reference)


def _stub(problem: Problem) -> str:
    """What EvalPlus shows: the signature with its docstring, or the task as a module's docstring; one line break at the end."""
    if problem.program:
        return problem.program.strip() + "\n"
    return f'"""\n{problem.question}\n"""\n'


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
_OPENING = re.compile(r"\A\s*```(?P<label>[\w+-]*)[ \t]*\n")
_TAG = re.compile(r"<answer>(?P<inside>.*?)(?:</answer>|\Z)", re.S)
_PROGRAM_LABELS = ("", "python", "python3", "py")
_LITERALS = (Form.DEDUCTION, Form.ABDUCTION)


def continued(problem: Problem, text: str, style: str) -> str | None:
    """Return the answer of a completion that continues its wording and ends before `stops`; None if there is none."""
    if style == "chat":
        text = "```python\n" + _after_opening(text) if _is_function(problem) else text
        return (_trained_value(problem, text) if problem.form in _LITERALS else None) or answer(problem, text)
    if style != "completion" or problem.form is Form.MATHEMATICS:
        return answer(problem, text)
    if problem.form is Form.DEDUCTION:
        return leading_value(text.strip())[0].strip() or None
    if problem.form is Form.ABDUCTION:
        call = call_arguments(text)
        return (call[0].strip() if call else "") or None
    shown = _stub(problem) if _is_function(problem) and problem.program else ""
    return shown + text.strip("\n") + "\n" if text.strip() else None


def answer(problem: Problem, text: str) -> str | None:
    """Return the answer in a completion to a problem; None if there is none.

    Inside the last `<answer>` where there is one, else in the whole text: the last fitting fence. A program outside any fence
    counts if it defines the entry point; a function's body alone is put behind the signature that the prompt showed.
    """
    if problem.form is Form.MATHEMATICS:
        return math_answers.extract(text)
    text = _inside(text)
    if problem.form in _LITERALS:
        return _literal(text, "output" if problem.form is Form.DEDUCTION else "input")
    return _program(problem, text)


def _inside(text: str) -> str:
    """Return what is inside the last `<answer>`; the whole text if there is none."""
    inside = [found["inside"] for found in _TAG.finditer(text)]
    return inside[-1] if inside else text


def _literal(text: str, label: str) -> str | None:
    fences = [found for found in _FENCE.finditer(text) if found["label"].lower() in (label, "")]
    labelled = [found["text"].strip() for found in fences if found["label"]] or [found["text"].strip() for found in fences]
    if labelled:
        return labelled[-1] or None
    alone = text.strip()
    return alone if alone and "\n" not in alone else None


def _after_opening(text: str) -> str:
    """Return what follows where an answer opens the fence again that is open already.

    A line without a label may also close it: then a fence with a label follows.
    """
    found = _OPENING.match(text)
    rest = text[found.end() :] if found else text
    return rest if found and (found["label"] or "```python" not in rest) else text


def _trained_value(problem: Problem, text: str) -> str | None:
    """Return the value in the fences, as a run in the style `chat` reads it; None if they give none."""
    try:
        return read_value(Kind(problem.form.value), _inside(text))
    except Unparsed:
        return None


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
