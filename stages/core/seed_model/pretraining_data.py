"""Documents for pretraining: prompts as `CompactPrompts` writes them, with their answers, packed into rows of equal length."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from stages.core.prompts.compact import INPUT, MARKERS, OUTPUT, CompactPrompts
from stages.core.prompts.styles import Kind, Triplet
from stages.core.seed_model import seed_tokenizer
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import Behaviours, Program, ProgramKeys, draw_program, program_key

ROW = 512
SHOWN_PAIRS = 5
NUM_INPUTS = 10
PROPOSED_INPUTS = NUM_INPUTS + 2  # the number a teacher needs, and a few extra: a small model cannot count to ten exactly
FORMS = ("deduction", "abduction", "induction", "propose", "propose_inputs")

_OUTPUT_ID = seed_tokenizer.COMPACT.ids[OUTPUT]
_MARKER_IDS = frozenset(seed_tokenizer.COMPACT.ids[marker] for marker in MARKERS)
_EOS_ID = seed_tokenizer.COMPACT.ids[seed_tokenizer.EOS]


@dataclass(frozen=True)
class Mix:
    """Which documents are drawn and the weights of their tokens: one number per form, level or count of references.

    `continued` is the share of answers after which the document continues with one more pair of the same program.
    """

    forms: tuple[int, ...]
    answers: tuple[float, ...]
    prompt: float
    levels: tuple[int, ...]
    references: tuple[int, ...]
    induction_levels: tuple[int, ...] = (46, 30, 15, 9)
    continued: float = 0.0


# First everything equally; then mostly what can be deduced, since inputs and new programs are largely random; then more
# proposals, of which a run needs as many as answers; and last, as in general text, documents that do not all end at the answer:
# learning to stop there is left to reinforcement learning, as with base models of any size.
BROAD = Mix((36, 18, 20, 18, 8), (1.0,) * 5, 0.1, (28, 28, 26, 18), (18, 22, 16, 12, 8, 6, 18))
ANSWERS = Mix((44, 18, 18, 16, 4), (1.0, 0.7, 1.0, 0.25, 0.1), 0.05, (32, 30, 23, 15), (20, 24, 18, 12, 8, 5, 13))
PROPOSALS = Mix((34, 14, 18, 28, 6), (1.0, 0.7, 1.0, 0.5, 0.3), 0.05, (32, 30, 23, 15), (20, 24, 18, 12, 8, 5, 13))
LISTINGS = replace(PROPOSALS, continued=0.5)


@dataclass(frozen=True)
class Document:
    """Token ids, each one's weight in the loss, and its position (ascending from 0, possibly with gaps)."""

    ids: list[int]
    weights: list[float]
    positions: list[int]


@dataclass(frozen=True)
class Rows:
    """Packed documents. `segments` numbers the documents of a row from 1; 0 is padding. `skipped` counts programs kept out."""

    ids: np.ndarray
    weights: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    documents: int
    skipped: int

    def take(self, chosen: np.ndarray) -> "Rows":
        """Some of the rows, without the counts."""
        return Rows(self.ids[chosen], self.weights[chosen], self.segments[chosen], self.positions[chosen], 0, 0)


class DocumentSource:
    """Draws documents; programs of the probe are redrawn and counted."""

    def __init__(self, seed: tuple[int, ...], held_out: ProgramKeys, mix: Mix) -> None:
        self.draw = ScalarDraws(np.random.default_rng(seed))
        self.skipped = 0
        self._held_out, self._mix = held_out, mix
        self._behaviours = Behaviours()
        self._style = CompactPrompts()

    def program(self, weights: tuple[int, ...], num_inputs: int) -> Program:
        """A program that is not in the probe, neither by syntax nor by behaviour."""
        while True:
            drawn = draw_program(self.draw, 1 + self.draw.weighted(weights), num_inputs)
            same = self._behaviours.key(drawn.source, drawn.signature) in self._held_out.behaviour
            if not same and program_key(drawn.source) not in self._held_out.syntax:
                return drawn
            self.skipped += 1

    def text(self, form: str) -> tuple[str, str]:
        """Prompt and answer."""
        if form == "propose":
            return self._proposal()
        wanted = {"induction": NUM_INPUTS, "propose_inputs": PROPOSED_INPUTS}.get(form, 2)
        drawn = self.program(self._mix.induction_levels if form == "induction" else self._mix.levels, wanted)
        if form == "propose_inputs":
            return self._style.propose_inputs(drawn.source, NUM_INPUTS), INPUT.join(drawn.inputs)
        kind = Kind(form)
        prompt = self._style.solve(kind, drawn.source, drawn.inputs[:SHOWN_PAIRS], drawn.outputs[:SHOWN_PAIRS], "")
        answers = {Kind.DEDUCTION: drawn.outputs[0], Kind.ABDUCTION: drawn.inputs[0], Kind.INDUCTION: drawn.source}
        more = self._mix.continued > 0 and self.draw.unit() < self._mix.continued
        return prompt, answers[kind] + (_one_more(kind, drawn) if more else "")

    def _proposal(self) -> tuple[str, str]:
        count = self.draw.weighted(self._mix.references)
        drawn = [self.program(self._mix.levels, 1) for _ in range(count + 1)]
        shown = tuple(Triplet(each.source, each.inputs[0], each.outputs[0]) for each in drawn[1:])
        kind = self.draw.pick((Kind.DEDUCTION, Kind.ABDUCTION))
        return self._style.propose(kind, shown), drawn[0].source + INPUT + drawn[0].inputs[0]

    def document(self) -> Document:
        """A document that fits a row."""
        while True:
            chosen = self.draw.weighted(self._mix.forms)
            prompt, answer = self.text(FORMS[chosen])
            prompt_ids, answer_ids = seed_tokenizer.COMPACT.encode(prompt), [*seed_tokenizer.COMPACT.encode(answer), _EOS_ID]
            if len(prompt_ids) + len(answer_ids) <= ROW:
                weights = _prompt_weights(prompt_ids, self._mix.prompt, FORMS[chosen] == "propose")
                ids = prompt_ids + answer_ids
                return Document(ids, weights + [self._mix.answers[chosen]] * len(answer_ids), list(range(len(ids))))


def _one_more(kind: Kind, drawn: Program) -> str:
    """One more pair, in the order of the kind's prompt: the last one, which induction does not show."""
    given, got = INPUT + drawn.inputs[-1], OUTPUT + drawn.outputs[-1]
    return got + given if kind is Kind.ABDUCTION else given + got


def _prompt_weights(ids: list[int], weight: float, references: bool) -> list[float]:
    """The prompt's weight, but 1 for the outputs of references: they can be worked out, like answers."""
    weights = [weight] * len(ids)
    inside = False
    for index, token in enumerate(ids if references else ()):
        if inside:
            weights[index] = 1.0
        if token in _MARKER_IDS:
            inside = token == _OUTPUT_ID
    return weights


def packed(documents: Iterator[Document], count: int, skipped: Callable[[], int]) -> Rows:
    """`count` rows; each takes the longest waiting document that still fits, so that little is left empty.

    `skipped` is asked at the end how many programs were kept out.
    """
    ids, weights = np.zeros((count, ROW), np.int16), np.zeros((count, ROW), np.float32)
    segments, positions, used = np.zeros((count, ROW), np.int16), np.zeros((count, ROW), np.int16), 0
    waiting = sorted((next(documents) for _ in range(48)), key=lambda each: len(each.ids))
    for row in range(count):
        filled, segment = 0, 1
        while True:
            fitting = [index for index, each in enumerate(waiting) if filled + len(each.ids) <= ROW]
            if not fitting:
                break
            # The first document of a row is arbitrary, so that short documents do not accumulate in late rows.
            chosen = waiting.pop(fitting[(row * 7919) % len(fitting)] if filled < ROW // 2 else fitting[-1])
            place = (row, slice(filled, filled + len(chosen.ids)))
            ids[place], weights[place], segments[place] = chosen.ids, chosen.weights, segment
            positions[place] = chosen.positions
            filled, segment, used = filled + len(chosen.ids), segment + 1, used + 1
            waiting.append(next(documents))
            waiting.sort(key=lambda each: len(each.ids))
    return Rows(ids, weights, segments, positions, used, skipped())


def make_rows(seed: tuple[int, ...], count: int, held_out: ProgramKeys, mix: Mix) -> Rows:
    """Rows number `count` of fresh documents; equal seeds give equal rows."""
    source = DocumentSource(seed, held_out, mix)

    def stream() -> Iterator[Document]:
        while True:
            yield source.document()

    return packed(stream(), count, lambda: source.skipped)
