"""A think/answer conversation with labelled code fences, for base and instruct models of about 3B parameters and more.

After Absolute Zero Reasoner (arXiv 2505.03335), in words of our own. A completion continues an opened `<think>`. Deviations:

1. Format: as there, `<think>…</think>`, white space, `<answer>…</answer>`, and the last `<answer>` counts. But tags inside a
   fence are text, and what a model writes once it starts to play the user is dropped (there it could replace the answer).
2. A fence's label decides what it is: a first fence that holds the input is no program (there it is).
3. The last fitting fence counts, for programs too; a triple backtick inside a string does not end a fence.
4. Nothing is renamed, cut or repaired, and nested functions and classes pass: the program must define `f` at its top level.
5. An answer without its fence is a format error: no guessing from phrases such as "the output is".
6. The message of an induction task must not define `f` or write tags, and is short.
7. The hardness asked for is that of the task at hand (there the two sentences are swapped).

8. An answer that is complete in form counts, whatever follows it: at the length limit, too (there, too).

Completions are read with regular expressions only: nothing that a model wrote is parsed as Python on the host.
"""

import re
from collections.abc import Sequence

from stages.core.prompts.fences import blanked, closed_fences
from stages.core.prompts.labelled import (
    EXAMPLE_PROPOSAL,
    FUNCTION_RULES,
    INPUT_RULES,
    MAX_MESSAGE,
    fence,
    message_of,
    program_of,
    value_of,
)
from stages.core.prompts.styles import Kind, Proposed, Triplet, Unparsed, cut_off

_PREAMBLE = """\
Below, a User gives a task to an Assistant. The Assistant first thinks it through between <think> and </think>, and directly after
that gives its result between <answer> and </answer>, like this: <think> the reasoning </think> <answer> the result </answer>."""
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


class AzrPrompts:
    """Writes and reads prompts for models that understand English."""

    def propose(self, kind: Kind, references: tuple[Triplet, ...]) -> str:
        """Asks for a new program and one input, unlike the references."""
        if kind not in _HARDNESS:
            raise ValueError(f"induction proposals show a program: use propose_inputs, not propose({kind!r})")
        situation, hardness = _HARDNESS[kind]
        parts = [
            f"Invent a puzzle: a new Python program with one input for it. {situation}",
            f"The program:\n{FUNCTION_RULES}",
            f"The input: {INPUT_RULES}.",
            f"Write both in fences of this form, and nothing else, inside <answer>:\n{EXAMPLE_PROPOSAL}",
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
            f"Here is a Python program:\n{fence('python', program)}",
            f"Turn it into a puzzle: write {num_inputs} different inputs for it and one message. The solver will see some of the "
            f"inputs with their outputs and your message, but not the program, and must write a function that also gives the "
            f"right outputs for the inputs kept back.",
            f"Each input: {INPUT_RULES}. Together the inputs should reach every branch of the program and give varied outputs, "
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
                f"Work out what this Python program returns.\n{fence('python', program)}",
                f"It is called as f(…) with this input:\n{fence('input', inputs[0])}",
                "Follow the program step by step. Give the returned value as a Python literal (strings in quotes, several "
                "returned values as a tuple) in a fence of this form, inside <answer>:\n```output\n{'a': [1, 2]}\n```",
            ]
        elif kind is Kind.ABDUCTION:
            parts = [
                f"Find an input for this Python program.\n{fence('python', program)}",
                f"Called with the input, f must return exactly this output:\n{fence('output', outputs[0])}",
                f"Any input that does so is right. Reason step by step and check it against the program. Give {INPUT_RULES}, "
                "in a fence of this form, inside <answer>:\n```input\n'ada', {'x': 3}\n```",
            ]
        else:
            parts = _induction(inputs, outputs, message)
        return _conversation(parts)

    def propose_stops(self, kind: Kind) -> tuple[str, ...]:
        """Where the model starts to play the user."""
        return ("\nUser:",)

    def solve_stops(self, kind: Kind) -> tuple[str, ...]:
        """Where the model starts to play the user."""
        return ("\nUser:",)

    def answer_end(self, kind: Kind, completion: str) -> int | None:
        """None: the last answer counts, so any text can matter."""
        return None

    def read_proposal(self, kind: Kind, completion: str, truncated: bool = False) -> Proposed:
        """The last program that defines `f`, and the last input."""
        with cut_off(truncated):
            fences = closed_fences(_answer(completion))
            return Proposed(program_of(fences), (value_of(fences, "input"),))

    def read_inputs(self, completion: str, program: str, num_inputs: int, truncated: bool = False) -> Proposed:
        """The last `num_inputs` inputs and the last message."""
        with cut_off(truncated):
            fences = closed_fences(_answer(completion))
            inputs = [block.text for block in fences if block.label == "input"]
            if len(inputs) < num_inputs:
                raise Unparsed(f"wanted {num_inputs} ```input fences, found {len(inputs)}", "too_few_inputs")
            if not all(inputs[-num_inputs:]):
                raise Unparsed("an ```input fence is empty", "empty")
            return Proposed(program, tuple(inputs[-num_inputs:]), message_of(fences))

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        """What the last output, input or program fence holds."""
        with cut_off(truncated):
            fences = closed_fences(_answer(completion))
            if kind is Kind.INDUCTION:
                return program_of(fences)
            return value_of(fences, "output" if kind is Kind.DEDUCTION else "input")


def _conversation(parts: Sequence[str]) -> str:
    return f"{_PREAMBLE}\nUser: " + "\n\n".join(parts) + "\nAssistant: <think>"


def _reference(number: int, triplet: Triplet) -> str:
    shown = (("python", triplet.program), ("input", triplet.input), ("output", triplet.output))
    return f"Example {number}, written earlier:\n" + "\n".join(fence(label, text) for label, text in shown)


def _induction(inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> list[str]:
    pairs = enumerate(zip(inputs, outputs, strict=True), 1)
    shown = "\n".join(f"Pair {number}\n{fence('input', given)}\n{fence('output', got)}" for number, (given, got) in pairs)
    return [
        f"Write the Python function f that turns each of these inputs into its output. Further pairs of the same kind are kept "
        f"back, and f must be right on those too.\n{shown}",
        *([f"The author of the puzzle says:\n{fence('message', message)}"] if message.strip() else []),
        f"The function:\n{FUNCTION_RULES}",
        "Find the general rule, do not list the pairs, and try f on every pair in your mind. Give the whole program in a fence "
        "of this form, inside <answer>:\n```python\ndef f(a, b):\n    return a\n```",
    ]


_THOUGHT_OVER = re.compile(r"</think>\s*+(?=<answer>)")
_TURN_OVER = re.compile(r"</answer>\s*+User:")


def _answer(completion: str) -> str:
    """What stands inside the last answer tags. Raises Unparsed unless the form is `thought</think><answer>…</answer>`."""
    text = completion.replace("\r\n", "\n").replace("\r", "\n")
    start = _THOUGHT_OVER.search(text)
    if start is None:
        for tag in ("</think>", "<answer>"):
            if tag not in text:
                raise Unparsed(f"no {tag}", "no_tag")
        raise Unparsed("<answer> does not follow directly on </think>", "no_tag")
    text = text[start.end() :]
    outside = blanked(text)
    if over := _TURN_OVER.search(outside):
        outside = outside[: over.end()]
    opening = outside.rfind("<answer>")
    closing = outside.find("</answer>", opening)
    if closing < 0:
        raise Unparsed("no </answer>", "no_tag")
    return text[opening + len("<answer>") : closing]
