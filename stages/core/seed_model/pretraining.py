"""Pretraining of the seed models: a small Llama from scratch on generated programs.

Loss: cross entropy, weighted per token by the phase's mix. Documents in a row do not see each other. Muon updates the matrices,
AdamW the embeddings and norms; in each phase both warm up linearly and decay linearly to zero over a fixed number of tokens, so
that equal seeds, threads and CPU types give equal weights. All of it is float32: the matrices are so small that the casts to
bfloat16 and back cost more than its faster products save.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from stages.core.seed_model import seed_tokenizer
from stages.core.seed_model.muon import Muon
from stages.core.seed_model.pretraining_data import ANSWERS, BROAD, LISTINGS, PROPOSALS, ROW, Mix, Rows
from stages.core.seed_model.seed_tokenizer import Vocabulary

WINDOW = 1024
STABLE, FALLING = 1.0, 0.0


@dataclass(frozen=True)
class Recipe:
    """Numbers of one phase of pretraining. `final` is the factor on the learning rates that its last step approaches."""

    steps: int
    mix: Mix = BROAD
    rows_per_step: int = 16
    warmup: int = 60
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    clip: float = 1.0
    final: float = FALLING

    @property
    def tokens(self) -> int:
        """Tokens of the phase, padding included."""
        return self.steps * self.rows_per_step * ROW

    def rate(self, step: int) -> float:
        """Factor on the learning rates at a step."""
        falling = min((self.steps - step) / max(1, self.steps - self.warmup), 1.0)
        return min((step + 1) / self.warmup, self.final + (1.0 - self.final) * falling)


def phases(tokens: int) -> tuple[Recipe, ...]:
    """The recipe for that many tokens, ever gentler: 3/9 on everything alike, 3/9 mostly on answers, 2/9 with more proposals and
    1/9 on documents of which half go on after the answer."""
    part = tokens / 9 / ROW
    return (
        Recipe(steps=max(1, round(3 * part / 16))),
        Recipe(steps=max(1, round(3 * part / 8)), mix=ANSWERS, rows_per_step=8, muon_lr=0.01, adam_lr=1.5e-3),
        Recipe(steps=max(1, round(2 * part / 8)), mix=PROPOSALS, rows_per_step=8, muon_lr=0.007, adam_lr=1e-3),
        Recipe(steps=max(1, round(part / 8)), mix=LISTINGS, rows_per_step=8, muon_lr=0.005, adam_lr=7e-4),
    )


def reasoner_phases(tokens: int) -> tuple[Recipe, Recipe]:
    """The recipe of the model that reasons: 4/5 of the tokens at full rates, so that it can be extended, 1/5 falling to zero.

    Half the seed model's rate for matrices: with 2,048 tokens a step, a higher one drowns what there is to learn in noise.
    """
    part = tokens / 5 / ROW / 4
    stable = Recipe(steps=max(1, round(4 * part)), rows_per_step=4, muon_lr=0.01, final=STABLE)
    return stable, replace(stable, steps=max(1, round(part)), warmup=1, final=FALLING)


@dataclass(frozen=True)
class Shape:
    """Sizes of a seed model. A layer's feed-forward part is three times as wide as the model."""

    vocabulary: Vocabulary
    width: int
    layers: int
    heads: int


SEED = Shape(seed_tokenizer.COMPACT, width=256, layers=4, heads=4)
"""The model that answers directly: about 3.5 million parameters."""
REASONER = Shape(seed_tokenizer.TRACE, width=128, layers=5, heads=4)
"""The model that shows its steps: about 1.1 million parameters. Small, so that two cores show it enough tokens."""


def seed_config(shape: Shape = SEED) -> LlamaConfig:
    """The architecture: a Llama with tied embeddings and as many key heads as query heads."""
    ids = shape.vocabulary.ids
    return LlamaConfig(
        vocab_size=-(-len(shape.vocabulary.tokens) // 8) * 8,
        hidden_size=shape.width,
        intermediate_size=3 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids[seed_tokenizer.EOS],
        pad_token_id=ids[seed_tokenizer.PAD],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def new_model(seed: int, shape: Shape = SEED) -> LlamaForCausalLM:
    """A model with fresh weights; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(seed_config(shape))
    model.config._attn_implementation = "sdpa"
    return model


def read_model(folder: str) -> LlamaForCausalLM:
    """A checkpoint in float32, to train further."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=True)


def split_parameters(model: LlamaForCausalLM) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Matrices for Muon and the rest (embeddings, biases, norms) for AdamW."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    chosen = {id(p) for p in matrices}
    return matrices, [p for p in model.parameters() if id(p) not in chosen]


def row_mask(segments: torch.Tensor) -> torch.Tensor:
    """Additive mask (rows, 1, ROW, ROW): a token sees the earlier tokens of its own document."""
    same = segments[:, :, None] == segments[:, None, :]
    seen = same & torch.ones(same.shape[1:], dtype=torch.bool).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)[:, None]


def loss_of_rows(model: LlamaForCausalLM, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted loss, and the mean cross entropy of the tokens of weight 1."""
    ids = torch.from_numpy(rows.ids.astype(np.int64))
    segments = torch.from_numpy(rows.segments.astype(np.int64))
    positions = torch.from_numpy(rows.positions.astype(np.int64))
    seen = model.model(input_ids=ids, attention_mask=row_mask(segments), position_ids=positions, use_cache=False)
    logits = model.lm_head(seen.last_hidden_state[:, :-1])
    weights = torch.from_numpy(rows.weights)[:, 1:] * (segments[:, 1:] == segments[:, :-1])
    answers = weights == 1.0
    each = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(weights)
    return (each * weights).sum() / weights.sum(), (each.detach() * answers).sum() / answers.sum()


class Optimisers:
    """Muon for the matrices and AdamW for the rest of one model; their state can be taken out and put back."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        matrices, self.others = split_parameters(model)
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(self.others, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, recipe: Recipe, step: int) -> None:
        """One update from the gradients, at the recipe's rates for that step."""
        torch.nn.utils.clip_grad_norm_(self.others, recipe.clip)
        rate = recipe.rate(step)
        for group in self._adam.param_groups:
            group["lr"] = recipe.adam_lr * rate
        self._adam.step()
        self._muon.step(recipe.muon_lr * rate)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state by name."""
        found = {f"muon.{number}": velocity for number, velocity in enumerate(self._muon.velocities)}
        for number, parameter in enumerate(self.others):
            found |= {f"adam.{number}.{name}": tensor for name, tensor in self._adam.state[parameter].items()}
        return found

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put back what `tensors` gave."""
        for number, velocity in enumerate(self._muon.velocities):
            velocity.copy_(tensors[f"muon.{number}"])
        for number, parameter in enumerate(self.others):
            names = ("step", "exp_avg", "exp_avg_sq")
            self._adam.state[parameter] = {name: tensors[f"adam.{number}.{name}"].clone() for name in names}


def train(
    model: LlamaForCausalLM,
    batches: Iterator[Rows],
    recipe: Recipe,
    after_step: Callable[[int, float], None],
    optimisers: Optimisers | None = None,
    first_step: int = 0,
) -> None:
    """Run the recipe. `after_step(steps done, answer loss)` is for logging, saving and evaluation; it must not train."""
    using = optimisers or Optimisers(model)
    model.train()
    for step in range(first_step, recipe.steps):
        loss, answer_loss = loss_of_rows(model, next(batches))
        model.zero_grad(set_to_none=True)
        loss.backward()
        using.step(recipe, step)
        after_step(step + 1, float(answer_loss))
