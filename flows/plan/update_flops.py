"""The arithmetic of an update: its rows, as the trainer packs them, and the FLOP of the passes over them.

A position passes every matrix of the blocks: two FLOP a parameter forward, and two for the gradient of its input. The base is
frozen, so its matrices have no gradient of their own; the factors of an adapter have, for two more. Attention at a position of a
row of L costs 4 L width FLOP forward, and 2.5 times that backward, where the kernels compute the scores again. The causal kernel
of rows with one completion computes half of it; a row that shares its prompt has a mask of its own, and computes all. The output
head sees only the positions that predict a response token: two FLOP a parameter forward, two backward. Recomputation runs blocks
and attention forward once more, not the head, for rows that are longer than `learning.recompute_above`.

tests/flows/plan/test_update_flops.py counts the trainer's own passes with torch's FlopCounterMode. Padding, elementwise
operations and the optimizer step are not in it, every row counts as one that learns, and no two completions of a prompt begin
alike: what they share would be computed once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flows.config import RunConfig
from flows.plan.decoder_shape import DecoderShape, adapter_parameters

USUAL_ROW = 1024  # positions of a row whose prompts and completions are not known; half of it is prompt
ATTENTION_BACKWARD = 2.5  # five products of queries, keys and values, where the forward pass has two


@dataclass(frozen=True)
class Rows:
    """Equal rows: how many, and of each the tokens of its prompt, its completions, and the mean tokens of a completion."""

    count: float
    prompt: float
    completions: int
    response: float

    @property
    def length(self) -> float:
        """Positions of a row: the last token of a completion is predicted, but never an input."""
        return self.prompt + self.completions * (self.response - 1)

    @property
    def positions(self) -> float:
        """Positions of all rows."""
        return self.count * self.length

    @property
    def predicted(self) -> float:
        """Positions of all rows that predict response tokens: a prompt's end predicts the first token of each completion."""
        return self.count * (1 + self.completions * (self.response - 1))


@dataclass(frozen=True)
class UpdateFlops:
    """FLOP of an update, by what they are spent on."""

    blocks: float
    adapters: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.blocks + self.adapters + self.attention + self.head


def packed(prompts: float, prompt: float, attempts: int, response: float, row_tokens: int) -> list[Rows]:
    """Return the rows of that many prompts with `attempts` completions each, all of the mean length `response`.

    As many completions share a row with their prompt as `row_tokens` allow, at least one; the last row of a prompt has the rest.
    """
    if not prompts or response < 1:
        return []
    together = attempts
    while together > 1 and prompt + together * (response - 1) > row_tokens:
        together -= 1
    full, rest = divmod(attempts, together)
    return [Rows(prompts * full, prompt, together, response), *([Rows(prompts, prompt, rest, response)] if rest else [])]


def update_flops(config: RunConfig, shape: DecoderShape, rows: Iterable[Rows]) -> UpdateFlops:
    """Return the FLOP of an update with these rows. `learning.gradient_checkpointing` must be settled: `auto` counts as off."""
    rule, rows = config.learning, list(rows)
    base = float(rule.kl > 0)  # a further forward pass
    again = [one for one in rows if rule.gradient_checkpointing is True and one.length > rule.recompute_above]  # another one
    positions, predicted = sum(one.positions for one in rows), sum(one.predicted for one in rows)
    seen, repeated, seen_again = _seen(rows), sum(one.positions for one in again), _seen(again)
    matrices = shape.layers * sum(a * b for a, b in shape.linears().values())
    adapter = adapter_parameters(shape, config.model.targets, config.model.rank)
    return UpdateFlops(
        blocks=((4 + 2 * base) * positions + 2 * repeated) * matrices,
        adapters=(6 * positions + 2 * repeated) * adapter,
        attention=((1 + ATTENTION_BACKWARD + base) * seen + seen_again) * 4 * shape.layers * shape.attention,
        head=(4 + 2 * base) * shape.vocabulary * shape.hidden * predicted,
    )


def _seen(rows: Iterable[Rows]) -> float:
    """Return the pairs of positions that attention computes."""
    return sum(one.positions * one.length * (1.0 if one.completions > 1 else 0.5) for one in rows)


def token_flops(config: RunConfig, shape: DecoderShape) -> float:
    """Return the FLOP of one token of an update whose rows are not known."""
    return update_flops(config, shape, [Rows(1, USUAL_ROW / 2, 1, USUAL_ROW / 2 + 1)]).total / USUAL_ROW
