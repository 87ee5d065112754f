"""The seed model's card: what it is, how it was trained, how it scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from stages.core.prompts.styles import Kind
from stages.core.seed_model.pretraining import Recipe
from stages.core.seed_model.pretraining_data import FORMS, ROW
from stages.core.seed_model.seed_scores import ProposalScores, Scores


@dataclass(frozen=True)
class Phase:
    """What a phase of pretraining took."""

    recipe: Recipe
    documents: int
    skipped: int
    minutes: float

    def line(self) -> str:
        """One item of the card's list."""
        recipe, mix = self.recipe, self.recipe.mix
        forms = ", ".join(
            f"{form} {share} % (answer weight {weight:g})"
            for form, share, weight in zip(FORMS, mix.forms, mix.answers, strict=True)
        )
        return (
            f"{recipe.tokens:,} tokens ({recipe.steps:,} steps of {recipe.rows_per_step} rows of {ROW}, padding included), "
            f"{self.documents:,}\n   documents, {self.minutes:.0f} minutes. Muon at {recipe.muon_lr:g}, AdamW at "
            f"{recipe.adam_lr:g}. Documents: {forms};\n   prompt weight {mix.prompt:g}."
        )


@dataclass(frozen=True)
class Training:
    """Facts of a pretraining run."""

    command: str
    threads: int
    parameters: int
    kept_out: int
    phases: tuple[Phase, ...]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def solving_table(scores: Scores, what: str = "band") -> str:
    """Greedy accuracy in percent by kind and band, with the mean over bands and its standard error."""
    bands = scores.bands
    lines = ["| kind | " + " | ".join(f"{what} {band}" for band in bands) + " | mean ± se | n |", "|---" * (len(bands) + 3) + "|"]
    for kind in Kind:
        cells = [_percent(scores.right[kind, band] / scores.asked[kind, band]) for band in bands]
        mean, error = scores.share(kind)
        count = sum(scores.asked[kind, band] for band in bands)
        lines.append(f"| {kind} | {' | '.join(cells)} | {100 * mean:.1f} ± {100 * error:.1f} | {count} |")
    return "\n".join(lines)


def proposal_table(proposals: Mapping[str, ProposalScores]) -> str:
    """Valid share of sampled proposals, and why the others are not."""
    lines = ["| prompt | n | valid % | distinct | median tokens | not valid because |", "|---" * 6 + "|"]
    for name, each in proposals.items():
        why = ", ".join(f"{reason} {count}" for reason, count in each.reasons.most_common()) or "-"
        numbers = (each.asked, f"{100 * each.valid / each.asked:.1f}", each.distinct, f"{median(each.lengths):.0f}")
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} | {why} |")
    return "\n".join(lines)


def model_card(training: Training, solving: Mapping[str, Scores], proposals: Mapping[str, ProposalScores]) -> str:
    """README.md of the model's folder."""
    phase_list = "\n".join(f"{number}. {phase.line()}" for number, phase in enumerate(training.phases, 1))
    tokens, documents = sum(phase.recipe.tokens for phase in training.phases), sum(phase.documents for phase in training.phases)
    minutes, skipped = sum(phase.minutes for phase in training.phases), sum(phase.skipped for phase in training.phases)
    tables = "\n\n".join(f"{name}:\n\n{solving_table(scores)}" for name, scores in solving.items())
    return f"""---
license: mit
library_name: transformers
pipeline_tag: text-generation
---
# PopuLoRA seed model

A causal language model of {training.parameters / 1e6:.2f} million parameters that writes small Python functions,
predicts their outputs and inputs, and finds functions from examples, each with middling success. It is the base model of
PopuLoRA's embedded default: small enough for a run on two CPU cores, good enough that reinforcement learning has something
to work with, and far from perfect so that there is room to learn. Architecture: Llama (width 256, 4 layers, 4 heads, tied
embeddings, rotary positions, window 1,024), bfloat16. Licence: MIT.

## Prompts

A hand-made vocabulary: marker tokens, every printable ASCII character, and the frequent pieces of small programs as single
tokens. `stages/core/prompts/compact.py` writes the prompts and says what they look like; there is no English and no chat.

## Training

From scratch, on programs that `stages/core/seed_model/programs.py` generates: functions of one to nine lines over ints, strings,
lists, dicts and tuples. No human-written text or code, and nothing from another model.

    {training.command}

{phase_list}

In all {tokens:,} tokens and {documents:,} documents, each seen once, in {minutes:.0f} minutes on {training.threads} CPU
thread(s), in float32. Proposals show 0 to 6 references, whose outputs count as answers; induction shows 5
pairs of 10. Cross entropy; documents of a row do not see each other. Muon (momentum 0.95) for matrices, AdamW for embeddings
and norms; linear warm-up and decay to zero in each phase.

Kept out: the {training.kept_out:,} programs of the suite `probe`, by normalised syntax tree and by behaviour (outputs on
fixed inputs). {skipped:,} drawn programs equalled one of them and were left out; overlap of what was trained on: 0.

## Scores

Greedy, percent right. Abduction accepts every input that gives the output; induction needs all ten pairs, five of them unseen.

{tables}

Proposals sampled at temperature 1. Valid: can be read, runs deterministically in the sandbox, output of at most 40 characters.

{proposal_table(proposals)}

## Use and limits

For PopuLoRA's default run, its tests and demonstrations. It knows only the small dialect of its generator: short functions
of ASCII text, small numbers, no imports, classes or floats. It does not understand English and is useless as a general code
model. What it writes must run in a sandbox like any model's output.
"""
