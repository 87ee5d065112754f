"""The interface of a prompt style, and the small values that prompts are made of.

Two styles implement `PromptStyle`: `chat_prompts` (English instructions, for instruct and base models that read English) and
`compact_prompts` (a few marker tokens, for the seed model). A style writes prompts and reads completions; nothing else in
the system knows what either looks like.

Task kinds follow Absolute Zero Reasoner: deduction (`code_o`: program and input given, predict the output), abduction
(`code_i`: program and output given, find an input), induction (`code_f`: input/output pairs given, write the program).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    """The three kinds of task."""

    DEDUCTION = "deduction"
    ABDUCTION = "abduction"
    INDUCTION = "induction"


@dataclass(frozen=True)
class Triplet:
    """A program with one input and its output, shown to a proposer as a reference.

    `input` is comma-separated Python literals as in a call of `f`; `output` is literal text.
    """

    program: str
    input: str
    output: str


@dataclass(frozen=True)
class Proposed:
    """The contents of a teacher's completion, read but not yet run.

    `program` is the source that defines `f`. Deduction and abduction carry one input; induction carries `num_inputs` of them
    for the program that the prompt showed, and a message (may be empty in styles that have none).
    """

    program: str
    inputs: tuple[str, ...]
    message: str = ""


class Unparsed(ValueError):
    """The completion does not have the format that the prompt requires; the message states what is missing."""


class PromptStyle(Protocol):
    """Writes prompts and reads completions for one family of models."""

    def propose(self, kind: Kind, references: tuple[Triplet, ...]) -> str:
        """Prompt that asks a teacher for a new program and one input (deduction or abduction), unlike the references."""
        ...

    def propose_inputs(self, program: str, num_inputs: int) -> str:
        """Prompt that asks a teacher for `num_inputs` inputs (and a message) for a given program: an induction proposal."""
        ...

    def solve(self, kind: Kind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> str:
        """Prompt for a student.

        Deduction uses `program` and `inputs[0]`; abduction `program` and `outputs[0]`; induction the pairs shown (callers
        pass the visible half only) and the message.
        """
        ...

    def read_proposal(self, kind: Kind, completion: str) -> Proposed:
        """Program and input of a deduction or abduction proposal. Raises `Unparsed`."""
        ...

    def read_inputs(self, completion: str, program: str, num_inputs: int) -> Proposed:
        """Inputs and message of an induction proposal for `program`. Raises `Unparsed`."""
        ...

    def read_answer(self, kind: Kind, completion: str) -> str:
        """A student's answer: output literal, input literals, or program source. Raises `Unparsed` on a format error."""
        ...


def solver_prompt(
    style: PromptStyle, kind: Kind, program: str, inputs: Sequence[str], outputs: Sequence[str], message: str
) -> str:
    """The student's prompt of a whole task: an induction task shows the first half of its pairs and hides the rest."""
    shown = len(inputs) // 2 if kind is Kind.INDUCTION else 1
    return style.solve(kind, program, tuple(inputs[:shown]), tuple(outputs[:shown]), message)
