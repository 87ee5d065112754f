"""Documents for pretraining the model that reasons: prompts as `TracePrompts` writes them, answers with their traces.

**Depth.** Chains of 1 to 4 steps, one in a hundred of 5 or 6, none deeper: what is deeper is left to reinforcement learning.

**Lessons.** First programs of one step, most of them to be run: which operation does what is learnt without looking for the line
and the value that it works on. Then more steps, then all forms. From everything at once, a model of this size learns the form of
an answer and nothing of what stands in it for many millions of tokens.

**Positions.** The model has rotary positions, which see distances only. Within a line they are consecutive; in the last lesson
many documents have random gaps between lines, so that training has seen every distance up to `SPAN` between a name and its value
and a longer program or trace brings no new one. At inference there are no gaps, as in the rest of the documents. With gaps from
the start, the model did not learn to find values at all.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stages.core.prompts.compact import INPUT, OUTPUT
from stages.core.prompts.styles import Kind, Triplet
from stages.core.prompts.trace import MARKERS, TracePrompts
from stages.core.seed_model import seed_tokenizer
from stages.core.seed_model.chains import Chain
from stages.core.seed_model.fresh_chains import FreshChains
from stages.core.seed_model.pretraining_data import (
    FORMS,
    NUM_INPUTS,
    PROPOSED_INPUTS,
    ROW,
    SHOWN_PAIRS,
    Document,
    Rows,
    packed,
)
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import ProgramKeys

SPAN = 512
"""Largest position in training: what the window of a deep task and its trace needs."""
LIKE_SHOWN = 0.7
"""Share of the proposals as deep as the last reference, so that a teacher's references steer its depth."""

VOCABULARY = seed_tokenizer.TRACE
_EOS_ID = VOCABULARY.ids[seed_tokenizer.EOS]
_BREAKS = frozenset(VOCABULARY.ids[token] for token in VOCABULARY.tokens if "\n" in token or token in MARKERS)


@dataclass(frozen=True)
class ReasoningMix:
    """Which documents are drawn and the weights of their tokens: one number per form, depth (from 1 on) or count of references.

    `depths` are in parts of a thousand; `induction_depths` are those of the functions that are to be found from examples;
    `gapped` is the share of the documents with gaps between lines.
    """

    forms: tuple[int, ...]
    answers: tuple[float, ...]
    prompt: float
    depths: tuple[int, ...]
    induction_depths: tuple[int, ...]
    references: tuple[int, ...]
    gapped: float


MIX = ReasoningMix(
    forms=(40, 24, 20, 11, 5),
    answers=(1.0, 1.0, 1.0, 0.3, 0.1),
    prompt=0.05,
    depths=(260, 250, 245, 235, 5, 5),
    induction_depths=(550, 300, 100, 50),
    references=(36, 24, 12, 8, 6, 5, 9),
    gapped=0.4,
)
"""The documents of the last lesson, and those that a finished model is asked for."""
_RUNNING = replace(MIX, forms=(80, 10, 4, 4, 2), prompt=0.1, gapped=0.0)


@dataclass(frozen=True)
class Lesson:
    """What is drawn until the training has seen `until` tokens, padding included."""

    until: float
    mix: ReasoningMix


LESSONS = (
    Lesson(0.5e6, replace(_RUNNING, depths=(1000, 0, 0, 0, 0, 0))),
    Lesson(1.0e6, replace(_RUNNING, depths=(500, 250, 150, 100, 0, 0))),
    Lesson(4.0e6, replace(_RUNNING, forms=(58, 20, 12, 7, 3), depths=(300, 260, 230, 210, 0, 0))),
    Lesson(math.inf, MIX),
)


def lesson_at(tokens: float) -> ReasoningMix:
    """The mix after that many tokens of training."""
    return next(lesson.mix for lesson in LESSONS if tokens < lesson.until)


class ReasoningSource:
    """Draws documents; programs that are held out are redrawn and counted."""

    def __init__(self, seed: tuple[int, ...], held_out: ProgramKeys, mix: ReasoningMix) -> None:
        self.draw = ScalarDraws(np.random.default_rng(seed))
        self._chains, self._mix = FreshChains(held_out), mix
        self._style = TracePrompts()

    @property
    def skipped(self) -> int:
        """Programs that were drawn again because they are held out."""
        return self._chains.skipped

    def chain(self, num_inputs: int, depth: int = 0) -> Chain:
        """A chain that is not held out, neither by syntax nor by behaviour; `depth` 0 draws it from the mix."""
        return self._chains.draw(self.draw, depth or 1 + self.draw.weighted(self._mix.depths), num_inputs)

    def text(self, form: str) -> tuple[str, str]:
        """Prompt and answer."""
        if form == "propose":
            return self._proposal()
        if form == "propose_inputs":
            drawn = self.chain(PROPOSED_INPUTS)
            return self._style.propose_inputs(drawn.source, NUM_INPUTS), INPUT.join(drawn.inputs)
        kind = Kind(form)
        drawn = self._to_be_found() if kind is Kind.INDUCTION else self.chain(1)
        prompt = self._style.solve(kind, drawn.source, drawn.inputs[:SHOWN_PAIRS], drawn.outputs[:SHOWN_PAIRS], "")
        return prompt, answer(kind, drawn)

    def _to_be_found(self) -> Chain:
        """A chain for induction: of three or more steps, five pairs tell a model of this size next to nothing."""
        return self.chain(NUM_INPUTS, 1 + self.draw.weighted(self._mix.induction_depths))

    def _proposal(self) -> tuple[str, str]:
        shown = [self.chain(1) for _ in range(self.draw.weighted(self._mix.references))]
        like = bool(shown) and self.draw.unit() < LIKE_SHOWN
        proposed = self.chain(1, shown[-1].depth if like else 0)
        kind = self.draw.pick((Kind.DEDUCTION, Kind.ABDUCTION))
        references = tuple(Triplet(each.source, each.inputs[0], each.outputs[0]) for each in shown)
        return self._style.propose(kind, references), proposed.source + INPUT + proposed.inputs[0]

    def document(self) -> Document:
        """A document that fits a row."""
        while True:
            chosen = self.draw.weighted(self._mix.forms)
            prompt, text = self.text(FORMS[chosen])
            prompt_ids, answer_ids = VOCABULARY.encode(prompt), [*VOCABULARY.encode(text), _EOS_ID]
            ids = prompt_ids + answer_ids
            if len(ids) <= ROW:
                weights = [self._mix.prompt] * len(prompt_ids) + [self._mix.answers[chosen]] * len(answer_ids)
                return Document(ids, weights, self._positions(ids))

    def _positions(self, ids: list[int]) -> list[int]:
        """Consecutive within a line; in gapped documents, a random part of the span is spread at random over the line ends."""
        if self.draw.unit() >= self._mix.gapped:
            return list(range(len(ids)))
        breaks = [index for index, token in enumerate(ids) if token in _BREAKS]
        room = self.draw.below(SPAN - len(ids) + 1)
        shares = [self.draw.unit() for _ in breaks]
        total = sum(shares) or 1.0
        extra = dict(zip(breaks, (int(room * share / total) for share in shares), strict=True))
        positions, at = [], 0
        for index in range(len(ids)):
            positions.append(at)
            at += 1 + extra.get(index, 0)
        return positions


def answer(kind: Kind, drawn: Chain) -> str:
    """The whole answer to a task on the first input: trace and result, or the program."""
    if kind is Kind.DEDUCTION:
        return drawn.trace() + OUTPUT + drawn.outputs[0]
    if kind is Kind.ABDUCTION:
        return drawn.trace(backwards=True) + INPUT + drawn.inputs[0]
    return drawn.source


def make_reasoning_rows(seed: tuple[int, ...], count: int, held_out: ProgramKeys, mix: ReasoningMix) -> Rows:
    """Rows number `count` of fresh documents; equal seeds give equal rows."""
    source = ReasoningSource(seed, held_out, mix)

    def stream() -> Iterator[Document]:
        while True:
            yield source.document()

    return packed(stream(), count, lambda: source.skipped)
