"""Questions in the chat template of the model's own tokenizer, answered in plain code fences, for instruct models.

The model may think for a few sentences and then gives its result in labelled fences; there are no tags. What follows the last
fitting fences, or the lack of an end, changes nothing. Where a model labels a value's fence as Python, it is still read.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from stages.core.prompts.fences import Fence, ended_fences
from stages.core.prompts.labelled import (
    DEFINES_F,
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

_THINK = "You may think first, in at most five short sentences."
_SITUATION = {
    Kind.DEDUCTION: "A solver sees the program and the input and has to predict what f returns. Make that hard, but possible.",
    Kind.ABDUCTION: "A solver sees the program and what f returns and has to find such an input. Make that hard, but possible.",
}


class ChatPrompts:
    """Writes and reads prompts for instruct models. `templated` puts a user message into the model's chat template."""

    def __init__(self, templated: Callable[[str], str]) -> None:
        self._templated = templated

    def propose(self, kind: Kind, references: tuple[Triplet, ...]) -> str:
        """Ask for a new program and one input, unlike the references."""
        if kind not in _SITUATION:
            raise ValueError(f"induction proposals show a program: use propose_inputs, not propose({kind!r})")
        shown = [f"{fence('python', each.program)}\n{fence('input', each.input)}" for each in references] or [EXAMPLE_PROPOSAL]
        return self._asked(
            f"Write a new Python puzzle: a function f and one input for it. {_SITUATION[kind]}",
            f"The function:\n{FUNCTION_RULES}",
            f"The input: {INPUT_RULES}.",
            "Puzzles of others:\n\n" + "\n\n".join(shown),
            f"Write a puzzle that is different from these. {_THINK} Then give the function in a ```python fence and the input in "
            "an ```input fence, exactly in the form of the puzzles above.",
        )

    def propose_inputs(self, program: str, num_inputs: int) -> str:
        """Ask for `num_inputs` inputs and a message for a given program."""
        if num_inputs < 1:
            raise ValueError(f"num_inputs must be positive, not {num_inputs}")
        return self._asked(
            f"Here is a Python function:\n{fence('python', program)}",
            f"Write {num_inputs} different inputs for it, and a hint. A solver will see some of the inputs with what f returns "
            "and the hint, and has to write the function. The inputs should show everything that f does.",
            f"Each input: {INPUT_RULES}. The hint: at most {MAX_MESSAGE} characters, without the program.",
            f"Give each input in an ```input fence of its own, {num_inputs} in all, and the hint in a ```message fence, in this "
            "form:\n```input\n'ada', {'x': 3}\n```\n```input\n'bo', {}\n```\n```message\nWhat happens to the highest score?\n```",
        )

    def solve(self, kind: Kind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> str:
        """Ask for an output, an input or a program."""
        if kind is Kind.DEDUCTION:
            return self._asked(
                f"{fence('python', program)}\nWhat does this return?\n{fence('python', f'f({inputs[0].strip()})')}",
                f"{_THINK} Then give the value as a Python literal in an ```output fence, like this:\n```output\n[1, 'a']\n```",
            )
        if kind is Kind.ABDUCTION:
            return self._asked(
                f"{fence('python', program)}\nFind an input for which f returns exactly this:\n{fence('output', outputs[0])}",
                f"{_THINK} Then give {INPUT_RULES}, in an ```input fence, like this:\n```input\n'ada', {{'x': 3}}\n```",
            )
        pairs = "\n".join(f"f({given.strip()}) == {got.strip()}" for given, got in zip(inputs, outputs, strict=True))
        return self._asked(
            f"Write a Python function f for which these hold, and further ones of the same kind:\n{fence('python', pairs)}",
            *([f"A hint: {message.strip()}"] if message.strip() else []),
            f"{_THINK} Then give the whole function in one ```python fence, without tests.",
        )

    def propose_stops(self, kind: Kind) -> tuple[str, ...]:
        """None: the model's own end of turn ends a completion."""
        return ()

    def solve_stops(self, kind: Kind) -> tuple[str, ...]:
        """None, as for proposals."""
        return ()

    def answer_end(self, kind: Kind, completion: str) -> int | None:
        """None: the last fence counts, so any text can matter."""
        return None

    def read_proposal(self, kind: Kind, completion: str, truncated: bool = False) -> Proposed:
        """The last program that defines `f`, and the last input."""
        fences = _fences(completion, truncated)
        with cut_off(truncated):
            return Proposed(program_of(fences), (value_of(_as_value(fences, "input"), "input"),))

    def read_inputs(self, completion: str, program: str, num_inputs: int, truncated: bool = False) -> Proposed:
        """The first `num_inputs` inputs and the last message."""
        fences = _fences(completion, truncated)
        with cut_off(truncated):
            inputs = tuple(block.text for block in fences if block.label == "input")[:num_inputs]
            if len(inputs) < num_inputs:
                raise Unparsed(f"wanted {num_inputs} ```input fences, found {len(inputs)}", "too_few_inputs")
            if not all(inputs):
                raise Unparsed("an ```input fence is empty", "empty")
            return Proposed(program, inputs, message_of(fences))

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        """What the last output, input or program fence holds."""
        fences = _fences(completion, truncated)
        with cut_off(truncated):
            if kind is Kind.INDUCTION:
                return program_of(fences)
            return _value(fences, kind)

    def _asked(self, *parts: str) -> str:
        return self._templated("\n\n".join(parts))


def read_value(kind: Kind, completion: str) -> str:
    """Return the value of a deduction or an abduction that a completion gives, as in training. Raise Unparsed if there is none.

    The end of the completion closes its last fence.
    """
    return _value(_fences(completion, truncated=False), kind)


def _value(fences: Sequence[Fence], kind: Kind) -> str:
    label = "output" if kind is Kind.DEDUCTION else "input"
    return value_of(_as_value(fences, label), label)


def _fences(completion: str, truncated: bool) -> list[Fence]:
    return ended_fences(completion.replace("\r\n", "\n").replace("\r", "\n"), truncated)


def _as_value(fences: Sequence[Fence], label: str) -> Sequence[Fence]:
    """The fences; where none has the label or no label, the last one that does not define `f` as if it had it."""
    if any(block.label == label or (block.label == "" and not DEFINES_F.search(block.text)) for block in fences):
        return fences
    others = [block for block in fences if block.label in ("python", "output", "input") and not DEFINES_F.search(block.text)]
    return [replace(block, label=label) for block in others[-1:]]
