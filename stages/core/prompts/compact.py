"""Prompts of a few marker tokens, for the seed model.

    deduction   ⟨ded⟩ program ⟨in⟩ input ⟨out⟩            → output
    abduction   ⟨abd⟩ program ⟨out⟩ output ⟨in⟩           → input
    induction   ⟨ind⟩ (⟨in⟩ input ⟨out⟩ output)… ⟨prog⟩   → program
    propose     (⟨prog⟩ program ⟨in⟩ input ⟨out⟩ output)… ⟨pd⟩ or ⟨pa⟩   → program ⟨in⟩ input
    inputs      ⟨pi⟩ program ⟨in⟩                         → input ⟨in⟩ input …

Markers are single tokens spelled with brackets outside ASCII. Programs and values are written into prompts in ASCII (as Python's
escapes where needed), so no program can write a marker; a completion that has one where none belongs is `Unparsed`. The marker
that asks for a new program comes last, so that one more reference never fits. This style has no message: the
message of an induction task that came from elsewhere is not shown, and messages that are read are empty.
"""

import re

from stages.core.prompts.styles import CUT_OFF, Kind, Proposed, Triplet, Unparsed

DEDUCE, ABDUCE, INDUCE = "⟨ded⟩", "⟨abd⟩", "⟨ind⟩"
PROPOSE_DEDUCTION, PROPOSE_ABDUCTION, PROPOSE_INPUTS = "⟨pd⟩", "⟨pa⟩", "⟨pi⟩"
PROGRAM, INPUT, OUTPUT = "⟨prog⟩", "⟨in⟩", "⟨out⟩"
MARKERS = (DEDUCE, ABDUCE, INDUCE, PROPOSE_DEDUCTION, PROPOSE_ABDUCTION, PROPOSE_INPUTS, PROGRAM, INPUT, OUTPUT)

_FOREIGN = re.compile(r"[^\n -~]")


def plain(text: str) -> str:
    """ASCII text: what is outside is written as Python's escape, which means the same inside a string literal."""
    return text.expandtabs(4).encode("ascii", "backslashreplace").decode("ascii")


def stripped_part(text: str, name: str) -> str:
    """One part of a completion, stripped; it must be there and hold no marker."""
    foreign = _FOREIGN.search(text)
    if foreign is not None:
        raise Unparsed(f"{name} holds a marker or a character outside ASCII: {text[foreign.start() :][:12]!r}")
    if not text.strip():
        raise Unparsed(f"{name} is empty")
    return text.strip()


def _check_whole(truncated: bool) -> None:
    """Raise Unparsed for a completion without an end: nothing else in this style marks that its form is complete."""
    if truncated:
        raise Unparsed(CUT_OFF)


class CompactPrompts:
    """Writes and reads prompts for models pretrained by `pretraining`."""

    def propose(self, kind: Kind, references: tuple[Triplet, ...]) -> str:
        """Asks for a new program and one input for it."""
        asks = {Kind.DEDUCTION: PROPOSE_DEDUCTION, Kind.ABDUCTION: PROPOSE_ABDUCTION}
        if kind not in asks:
            raise ValueError(f"induction proposals show a program: use propose_inputs, not propose({kind!r})")
        shown = (PROGRAM + plain(each.program) + INPUT + plain(each.input) + OUTPUT + plain(each.output) for each in references)
        return "".join(shown) + asks[kind]

    def propose_inputs(self, program: str, num_inputs: int) -> str:
        """Asks for inputs of a program. The model was pretrained to write twelve; the number itself is not in the prompt."""
        if num_inputs < 1:
            raise ValueError(f"num_inputs must be positive, not {num_inputs}")
        return PROPOSE_INPUTS + plain(program) + INPUT

    def solve(self, kind: Kind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> str:
        """Asks for an output, an input or a program. The message is not shown in this style."""
        if kind is Kind.DEDUCTION:
            return DEDUCE + plain(program) + INPUT + plain(inputs[0]) + OUTPUT
        if kind is Kind.ABDUCTION:
            return ABDUCE + plain(program) + OUTPUT + plain(outputs[0]) + INPUT
        pairs = zip(inputs, outputs, strict=True)
        return INDUCE + "".join(INPUT + plain(given) + OUTPUT + plain(got) for given, got in pairs) + PROGRAM

    def propose_stops(self, kind: Kind) -> tuple[str, ...]:
        """None: the model's end token ends every completion."""
        return ()

    def solve_stops(self, kind: Kind) -> tuple[str, ...]:
        """None, as for proposals."""
        return ()

    def answer_end(self, kind: Kind, completion: str) -> int | None:
        """None: nothing may stand behind an answer."""
        return None

    def read_proposal(self, kind: Kind, completion: str, truncated: bool = False) -> Proposed:
        """Program and input, with exactly one input marker between them."""
        _check_whole(truncated)
        parts = completion.split(INPUT)
        if len(parts) != 2:
            raise Unparsed(f"a proposal is program{INPUT}input; this has {len(parts) - 1} input markers")
        return Proposed(stripped_part(parts[0], "the program"), (stripped_part(parts[1], "the input"),))

    def read_inputs(self, completion: str, program: str, num_inputs: int, truncated: bool = False) -> Proposed:
        """The first `num_inputs` inputs; more are dropped, fewer are an error."""
        _check_whole(truncated)
        parts = completion.split(INPUT)
        if len(parts) < num_inputs:
            raise Unparsed(f"wanted {num_inputs} inputs, got {len(parts)}")
        inputs = tuple(stripped_part(part, f"input {index + 1}") for index, part in enumerate(parts[:num_inputs]))
        return Proposed(program, inputs)

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        """The whole completion, which must hold no marker."""
        _check_whole(truncated)
        names = {Kind.DEDUCTION: "the output", Kind.ABDUCTION: "the input", Kind.INDUCTION: "the program"}
        return stripped_part(completion, names[kind])
