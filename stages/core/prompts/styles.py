"""The interface of a prompt style, and the small values that prompts are made of.

Five styles implement `PromptStyle`, each in its own file: `document` (documents to continue, for base models of any size and for
small models), `chat` (the model's own chat template), `azr` (a think/answer conversation, for 3B parameters and more), `compact`
(a few marker tokens, for the seed model) and `trace` (steps before the answer, for the reasoner). A style writes prompts, names
the sequences that end a completion, and reads completions; nothing else in the system knows what any of it looks like.

Task kinds follow Absolute Zero Reasoner: deduction (`code_o`: program and input given, predict the output), abduction
(`code_i`: program and output given, find an input), induction (`code_f`: input/output pairs given, write the program).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


CUT_OFF = "cut off at the length limit"
REASONS = {
    "cut_off": "the length limit ended the completion before its form was complete",
    "empty": "a part is there, but nothing is in it",
    "no_program": "no complete program that defines f",
    "no_input": "no complete input",
    "no_output": "no complete output",
    "too_few_inputs": "fewer inputs than the prompt asks for",
    "no_message": "no message",
    "bad_message": "the message gives the program away, is too long, or contains a fence or a tag",
    "no_tag": "a tag such as </think> or </answer> is missing or misplaced",
}
"""Why a completion was refused: what stages count, and what a person can fix in a prompt."""


class Unparsed(ValueError):
    """The completion does not have the format that the prompt requires; the message states what is missing.

    `reason` is one of REASONS; empty in the compact style, which does not tell them apart.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        assert not reason or reason in REASONS, reason
        super().__init__(message)
        self.reason = reason

    @property
    def detail(self) -> str:
        """The reason and the message."""
        return f"{self.reason}: {self}" if self.reason else str(self)


@contextmanager
def cut_off(truncated: bool) -> Iterator[None]:
    """Name the length limit as the reason where it ended a completion that cannot be read."""
    try:
        yield
    except Unparsed as refused:
        if truncated:
            raise Unparsed(CUT_OFF, "cut_off") from refused
        raise


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

    def propose_stops(self, kind: Kind) -> tuple[str, ...]:
        """Text that ends a proposal of this kind as soon as the completion contains it. Readers get it with the completion."""
        ...

    def solve_stops(self, kind: Kind) -> tuple[str, ...]:
        """Text that ends an answer of this kind as soon as the completion contains it."""
        ...

    def answer_end(self, kind: Kind, completion: str) -> int | None:
        """Number of characters up to the end of the answer where the model wrote more behind it; None where it did not.

        What stands behind an answer cannot change its verdict, so of that text only the first token, which is the decision to
        write on, is trained.
        """
        ...

    # `truncated`: the length limit ended the completion. It is read all the same if its form is complete.

    def read_proposal(self, kind: Kind, completion: str, truncated: bool = False) -> Proposed:
        """Program and input of a deduction or abduction proposal. Raises `Unparsed`."""
        ...

    def read_inputs(self, completion: str, program: str, num_inputs: int, truncated: bool = False) -> Proposed:
        """Inputs and message of an induction proposal for `program`. Raises `Unparsed`."""
        ...

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        """A student's answer: output literal, input literals, or program source. Raises `Unparsed` on a format error."""
        ...


def solver_prompt(
    style: PromptStyle, kind: Kind, program: str, inputs: Sequence[str], outputs: Sequence[str], message: str
) -> str:
    """The student's prompt of a whole task: an induction task shows the first half of its pairs and hides the rest."""
    shown = len(inputs) // 2 if kind is Kind.INDUCTION else 1
    return style.solve(kind, program, tuple(inputs[:shown]), tuple(outputs[:shown]), message)
