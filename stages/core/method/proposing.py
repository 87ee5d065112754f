"""Draw a proposer's prompt from a buffer, and read its completion. Proposing and seeding share this module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stages.core.engines.protocol import Engine
from stages.core.method.buffer import triplet
from stages.core.prompts.styles import Kind, PromptStyle, Proposed, Unparsed

REDRAWS = 20
Rows = TypeVar("Rows", bound=Sequence[dict])


class PromptTooLong(ValueError):
    """No prompt leaves room for a completion in the model's window."""


@dataclass(frozen=True)
class ProposalPlan:
    """Number and form of proposals; see `Propose` in the configuration."""

    groups: int
    group_size: int
    references: int
    num_inputs: int
    max_new_tokens: int
    temperature: float
    kinds: tuple[Kind, ...] = tuple(Kind)


@dataclass(frozen=True)
class Prompt:
    """A proposer's prompt: token ids, the stored tasks shown, and for induction the program shown."""

    kind: Kind
    group_id: str
    ids: tuple[int, ...]
    reference_ids: tuple[str, ...]
    program: str  # the program shown, induction only


def draw_prompt(
    kind: Kind,
    group_id: str,
    buffer: Mapping[Kind, Sequence[dict]],
    engine: Engine,
    style: PromptStyle,
    plan: ProposalPlan,
    rng: np.random.Generator,
) -> Prompt:
    """Draw a prompt with references that leaves room for the completion. Redraw too long ones, then use fewer references."""
    pools = shown_from(kind, buffer)
    stored = sum(len(pool) for pool in pools)
    if kind is Kind.INDUCTION and not stored:
        raise ValueError("the buffers contain no program to write inputs for")
    wanted = min(1 if kind is Kind.INDUCTION else plan.references, stored)
    for draw in range(REDRAWS * (wanted + 1)):
        count = wanted if kind is Kind.INDUCTION else max(0, wanted - draw // REDRAWS)
        chosen = [_at(pools, int(index)) for index in rng.choice(stored, count, replace=False)] if count else []
        if kind is Kind.INDUCTION:
            text = style.propose_inputs(chosen[0]["program"], plan.num_inputs)
        else:
            text = style.propose(kind, tuple(triplet(row) for row in chosen))
        ids = tuple(engine.encode(text))
        if len(ids) + plan.max_new_tokens <= engine.window:
            shown = chosen[0]["program"] if kind is Kind.INDUCTION else ""
            return Prompt(kind, group_id, ids, tuple(row["task_id"] for row in chosen), shown)
    raise PromptTooLong(f"no {kind} prompt of {REDRAWS * (wanted + 1)} drawn fits the model's window of {engine.window} tokens")


def shown_from(kind: Kind, buffer: Mapping[Kind, Rows]) -> list[Rows]:
    """Return the rows that a prompt of this kind may show: stored programs for induction, else tasks of the kind."""
    return [buffer[Kind.DEDUCTION], buffer[Kind.ABDUCTION]] if kind is Kind.INDUCTION else [buffer[kind]]


def _at(pools: Sequence[Sequence[dict]], index: int) -> dict:
    """Return a row of the pools, numbered one after the other. They may be long, so they are not joined for a few rows."""
    for pool in pools:
        if index < len(pool):
            return pool[index]
        index -= len(pool)
    raise IndexError(index)


def read_proposal(style: PromptStyle, prompt: Prompt, text: str, truncated: bool, num_inputs: int) -> tuple[Proposed, str, str]:
    """Return the proposal in a completion with `parsed`, or an empty one with `unparsed` and the reason."""
    try:
        if prompt.kind is Kind.INDUCTION:
            return style.read_inputs(text, prompt.program, num_inputs, truncated), "parsed", ""
        return style.read_proposal(prompt.kind, text, truncated), "parsed", ""
    except Unparsed as refused:
        return Proposed(prompt.program, ()), "unparsed", refused.detail
