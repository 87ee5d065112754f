"""Prompts of a few marker tokens whose answers show their steps, for a seed model that reasons.

    deduction   ⟨ded⟩ program ⟨in⟩ input ⟨run⟩     → name=value lines in the order of the program ⟨out⟩ output
    abduction   ⟨abd⟩ program ⟨out⟩ output ⟨run⟩   → name=value lines from the last step back to the first ⟨in⟩ input
    induction   ⟨ind⟩ (⟨in⟩ input ⟨out⟩ output)… ⟨prog⟩   → program

Proposals are those of `compact`, and markers are as safe as there. A trace has one value a line and ends with the marker that
the answer stands behind, which no program or value can spell. What the trace says is not judged, and an answer without one can
be read: only the result counts. Abduction runs the program backwards, since the output is what is given.
Induction has no trace: the program is itself the list of steps, and what would come before it is a search.

An answer ends at the model's end token, or at a marker that could only begin something else.
"""

from stages.core.prompts.compact import ABDUCE, DEDUCE, INPUT, OUTPUT, PROGRAM, CompactPrompts, plain, stripped_part
from stages.core.prompts.compact import MARKERS as COMPACT_MARKERS
from stages.core.prompts.styles import CUT_OFF, Kind, Unparsed

RUN = "⟨run⟩"
MARKERS = (*COMPACT_MARKERS, RUN)

_RESULT = {Kind.DEDUCTION: OUTPUT, Kind.ABDUCTION: INPUT}
_STOPS = {
    Kind.DEDUCTION: (INPUT, PROGRAM),
    Kind.ABDUCTION: (OUTPUT, PROGRAM),
    Kind.INDUCTION: (INPUT, OUTPUT),
}
_NAMES = {Kind.DEDUCTION: "the output", Kind.ABDUCTION: "the input", Kind.INDUCTION: "the program"}


class TracePrompts(CompactPrompts):
    """Writes and reads prompts for models pretrained on traces."""

    def solve(self, kind: Kind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> str:
        """Asks for a trace and an output or an input, or for a program. The message is not shown in this style."""
        if kind is Kind.DEDUCTION:
            return DEDUCE + plain(program) + INPUT + plain(inputs[0]) + RUN
        if kind is Kind.ABDUCTION:
            return ABDUCE + plain(program) + OUTPUT + plain(outputs[0]) + RUN
        return super().solve(kind, program, inputs, outputs, message)

    def solve_stops(self, kind: Kind) -> tuple[str, ...]:
        """The markers that an answer of this kind cannot contain."""
        return _STOPS[kind]

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        """What stands behind the marker of the result, up to a stop; the whole completion for induction."""
        ends = [at for stop in _STOPS[kind] if (at := completion.find(stop)) >= 0]
        if truncated and not ends:
            raise Unparsed(CUT_OFF)
        answer = completion[: min(ends, default=len(completion))]
        if kind in _RESULT:
            trace, marker, answer = answer.partition(_RESULT[kind])
            if not marker:
                raise Unparsed(f"{_NAMES[kind]} must stand behind {_RESULT[kind]}, which is missing")
            if trace.strip():
                stripped_part(trace, "the trace")
        return stripped_part(answer, _NAMES[kind])


def trace_lines(completion: str) -> list[str]:
    """The lines before the result in an answer to a deduction, whether or not they are well formed."""
    return completion.partition(OUTPUT)[0].strip().split("\n")
