"""The card of the model that shows its steps: what it is, how it was trained, how it scores."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stages.core.prompts.styles import Kind
from stages.core.seed_model.pretraining import REASONER, reasoner_phases
from stages.core.seed_model.pretraining_data import FORMS, ROW
from stages.core.seed_model.reasoning_data import LESSONS, MIX, SPAN
from stages.core.seed_model.seed_card import proposal_table, solving_table
from stages.core.seed_model.seed_scores import ProposalScores, Scores


@dataclass(frozen=True)
class TrainingFacts:
    """Facts of a pretraining run."""

    command: str
    threads: int
    parameters: int
    kept_out: int
    steps: int
    documents: int
    skipped: int


def _form(scores: Scores, kind: Kind, shallow: bool) -> str:
    """Percent of the answers of one kind that can be read, at the depths of pretraining or below them."""
    slots = [(kind, depth) for depth in scores.bands if (depth <= 4) == shallow]
    asked = sum(scores.asked[slot] for slot in slots)
    return f"{100 * sum(scores.formed[slot] for slot in slots) / asked:.1f}" if asked else "-"


def form_table(scores: Scores) -> str:
    """Share of greedy answers that end and can be read, by kind."""
    lines = ["| kind | depth 1 to 4 | deeper |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {kind} | {_form(scores, kind, True)} | {_form(scores, kind, False)} |" for kind in Kind)])


def lessons_table() -> str:
    """The lessons: until when, and the depths of their programs in percent."""
    depths = range(1, len(MIX.depths) + 1)
    lines = [f"| lesson, until | {' | '.join(f'depth {depth}, %' for depth in depths)} |", "|---" * (1 + len(depths)) + "|"]
    for lesson in LESSONS:
        until = f"{lesson.until / 1e6:g} M tokens" if math.isfinite(lesson.until) else "the end"
        lines.append(f"| {until} | {' | '.join(f'{share / 10:g}' for share in lesson.mix.depths)} |")
    return "\n".join(lines)


def reasoner_card(facts: TrainingFacts, solving: Scores, proposals: Mapping[str, ProposalScores]) -> str:
    """README.md of the model's folder."""
    recipe = reasoner_phases(1)[0]
    tokens = facts.steps * recipe.rows_per_step * ROW
    forms = ", ".join(
        f"{form} {share} % (weight {weight:g})" for form, share, weight in zip(FORMS, MIX.forms, MIX.answers, strict=True)
    )
    rates = f"Muon at {recipe.muon_lr:g} for matrices, AdamW at {recipe.adam_lr:g} for embeddings and norms"
    induction = ", ".join(f"{share / 10:g} %" for share in MIX.induction_depths)
    shape = f"width {REASONER.width}, {REASONER.layers} layers, {REASONER.heads} heads"
    gapped = f"In {100 * MIX.gapped:.0f} % of the documents the lines are at random distances (up to {SPAN} positions in all)"
    return f"""---
license: mit
library_name: transformers
pipeline_tag: text-generation
---
# PopuLoRA reasoner

A causal language model of {facts.parameters / 1e6:.2f} million parameters that works through small Python functions step by
step: it predicts outputs with a trace, finds inputs by running the program backwards, and finds functions from examples.
Architecture: Llama ({shape}, tied embeddings, rotary positions, window 1,024), bfloat16. Licence: MIT.

It stops and keeps the form before any reinforcement learning, so that form is not what a run learns. Programs deeper than those
of its pretraining are what a run can learn.

## Prompts

A hand-made vocabulary: marker tokens, every printable ASCII character (digits stand alone), and the frequent pieces of small
programs as single tokens. `stages/core/prompts/trace.py` writes the prompts and says what they look like; there is no English and
no chat. The answer of a deduction is one `name=value` line per step, then a marker, then the output.

## Training

From scratch, on programs that `stages/core/seed_model/chains.py` generates: functions whose lines work on the value of the line
before, over ints, strings and lists of ints. No human-written text or code, and nothing from another model.

    {facts.command}

{facts.steps:,} steps of {recipe.rows_per_step} rows of {ROW} tokens ({tokens:,} tokens, padding included) on {facts.documents:,}
documents, each seen once, on {facts.threads} thread(s). {rates}; over the
last fifth of the tokens, both fall to zero. Documents in one row do not see each other. Training is in float32.

{lessons_table()}

Forms of the last lesson: {forms}; prompt weight {MIX.prompt:g}. No program is deeper.
Functions to be found from examples are shallower: {induction} at depths 1 to {len(MIX.induction_depths)}.

Positions: rotary. {gapped},
so that a name and its value occur at any distance, and a longer program brings no unseen distance.

Kept out: the {facts.kept_out:,} programs of the suite `staircase`, by normalised syntax tree and by behaviour (outputs on
fixed inputs). {facts.skipped:,} drawn programs equalled one of them and were left out; overlap of what was trained on: 0.

## Scores

Suite `staircase`, half `dev`, greedy, percent right. Abduction accepts every input that gives the output; induction needs all ten
pairs, five of them unseen.

{solving_table(solving, "depth")}

Greedy answers that end and can be read, in percent:

{form_table(solving)}

Proposals sampled at temperature 1. Valid: can be read, runs deterministically in the sandbox, output of at most 40 characters.

{proposal_table(proposals)}

## Use and limits

For PopuLoRA's runs, its tests and experiments. It knows only the small dialect of its generator: straight lines of one operation
each, small numbers, short strings and lists, no loops, branches, imports or classes. It does not understand English and is
useless as a general code model. What it writes must run in a sandbox like any model's output.
"""
