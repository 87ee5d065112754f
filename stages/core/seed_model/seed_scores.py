"""Scores of a seed model: greedy answers to each kind of task by band, and the validity of its sampled proposals.

What the model writes runs in the sandbox, as everywhere.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stages.core.engines.protocol import Engine, Request
from stages.core.judging.judge import AnswerItem, TaskItem, judge_answers, judge_tasks
from stages.core.prompts.styles import Kind, PromptStyle, Triplet, Unparsed
from stages.core.sandbox.protocol import Sandbox
from stages.core.seed_model.pretraining_data import NUM_INPUTS, SHOWN_PAIRS
from stages.core.seed_model.program_blocks import LEVELS
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import MAX_OUTPUT, draw_program
from stages.core.values.canonical import canonical, parse_value

ANSWER_TOKENS = {Kind.DEDUCTION: 48, Kind.ABDUCTION: 48, Kind.INDUCTION: 120}
"""Longest direct answer to a problem of the bands, by kind. Traces take more."""
PROPOSAL_TOKENS, INPUTS_TOKENS = 160, 240


@dataclass(frozen=True)
class SolvedTask:
    """A task whose answer is known. Induction holds pairs beyond those shown."""

    kind: Kind
    band: int
    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Scores:
    """Problems, answers that could be read and right answers, by kind and band (or depth)."""

    asked: Counter[tuple[Kind, int]]
    formed: Counter[tuple[Kind, int]]
    right: Counter[tuple[Kind, int]]

    @property
    def bands(self) -> list[int]:
        """The bands that were asked."""
        return sorted({band for _, band in self.asked})

    def share(self, kind: Kind) -> tuple[float, float]:
        """Share right, mean over bands, with its standard error."""
        bands = self.bands
        shares = np.array([self.right[kind, band] / self.asked[kind, band] for band in bands])
        counts = np.array([self.asked[kind, band] for band in bands])
        return float(shares.mean()), float(np.sqrt((shares * (1 - shares) / counts).sum()) / len(bands))


@dataclass(frozen=True)
class ProposalScores:
    """Sampled proposals: how many, how many valid, and why the others are not; tokens of each completion."""

    asked: int
    valid: int
    reasons: Counter[str]
    lengths: tuple[int, ...]
    distinct: int


def fresh_problems(rng: np.random.Generator, per_band: int) -> list[SolvedTask]:
    """Problems from the generator, the same number in each kind and band; some may also have been drawn in pretraining."""
    draw = ScalarDraws(rng)
    problems = []
    for kind in Kind:
        for band in LEVELS:
            for _ in range(per_band):
                drawn = draw_program(draw, band, NUM_INPUTS if kind is Kind.INDUCTION else 1)
                problems.append(SolvedTask(kind, band, drawn.source, drawn.inputs, drawn.outputs))
    return problems


def score_solving(
    engine: Engine,
    sandbox: Sandbox,
    style: PromptStyle,
    problems: Sequence[SolvedTask],
    answer_tokens: Mapping[Kind, int] = ANSWER_TOKENS,
) -> Scores:
    """Greedy answers. Abduction accepts every input that gives the output; induction needs all pairs, hidden ones too."""
    requests = []
    for each in problems:
        prompt = style.solve(each.kind, each.program, each.inputs[:SHOWN_PAIRS], each.outputs[:SHOWN_PAIRS], "")
        stops = style.solve_stops(each.kind)
        requests.append(Request(tuple(engine.encode(prompt)), None, 0, answer_tokens[each.kind], stops))
    items = []
    for each, completion in zip(problems, engine.generate(requests, 0.0), strict=True):
        try:
            answer = style.read_answer(each.kind, engine.decode(completion.token_ids), completion.truncated)
        except Unparsed:
            answer = None
        values = tuple(canonical(parse_value(output)) for output in each.outputs)
        items.append(AnswerItem(each.kind.value, each.program, each.inputs, values, answer))
    right = Counter(
        (each.kind, each.band)
        for each, judgement in zip(problems, judge_answers(sandbox, items), strict=True)
        if judgement.correct
    )
    asked, formed = [(each.kind, each.band) for each in problems], [item.answer is not None for item in items]
    return Scores(Counter(asked), Counter(slot for slot, read in zip(asked, formed, strict=True) if read), right)


def proposal_prompts(
    style: PromptStyle, drawn: Callable[[], Triplet], kind: Kind, count: int, references: int
) -> list[tuple[str, str]]:
    """Prompts with the program they show (empty but for induction); `drawn` gives fresh references."""
    prompts = []
    for _ in range(count):
        shown = tuple(drawn() for _ in range(max(1, references)))
        if kind is Kind.INDUCTION:
            prompts.append((style.propose_inputs(shown[0].program, NUM_INPUTS), shown[0].program))
        else:
            prompts.append((style.propose(kind, shown[:references]), ""))
    return prompts


def score_proposals(
    engine: Engine, sandbox: Sandbox, style: PromptStyle, kind: Kind, prompts: Sequence[tuple[str, str]]
) -> ProposalScores:
    """Valid: can be read, runs on each input, and each output has at most 40 characters."""
    limit = INPUTS_TOKENS if kind is Kind.INDUCTION else PROPOSAL_TOKENS
    requests = [Request(tuple(engine.encode(prompt)), None, seed, limit) for seed, (prompt, _) in enumerate(prompts)]
    completions = engine.generate(requests, 1.0)
    reasons: Counter[str] = Counter()
    items = []
    for (_, program), completion in zip(prompts, completions, strict=True):
        text = engine.decode(completion.token_ids)
        try:
            if kind is Kind.INDUCTION:
                proposed = style.read_inputs(text, program, NUM_INPUTS)
            else:
                proposed = style.read_proposal(kind, text)
        except Unparsed:
            reasons["truncated" if completion.truncated else "format"] += 1
            continue
        items.append(TaskItem(proposed.program, proposed.inputs))
    valid = 0
    for verdict in judge_tasks(sandbox, items):
        if verdict.status != "valid":
            reasons[verdict.status.value] += 1
        elif any(len(output) > MAX_OUTPUT for output in verdict.outputs):
            reasons["long output"] += 1
        else:
            valid += 1
    lengths = tuple(len(completion.token_ids) for completion in completions)
    return ProposalScores(len(prompts), valid, reasons, lengths, len(set(items)))
