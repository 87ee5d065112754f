"""PEFT as the rival of a grouped update: one model with an adapter for each member, made active in turn.

Loss, attention and the choice of rows that need a gradient are the trainer's. What differs is that a pass has one adapter's rows,
and that each completion is a row which repeats its prompt. The factors have the dtype of the base: by default PEFT keeps them in
float32 and casts each layer's input, which on a base in bfloat16 is slower.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

from stages.core.lora.adapter import Weights
from stages.core.training.attention import group_queries
from stages.core.training.head_loss import head_loss
from stages.core.training.loss import Objective, importance_weights, token_losses
from stages.core.training.packing import MicroBatch, Row, Samples, engine_logprobs, lay_out, micro_batches, pack_rows


class PeftInTurn:
    """A model with new PEFT adapters, changed in place; adapter n has the n-th of `stack`, of rank `rank` and scale 1."""

    def __init__(self, model: Any, targets: Sequence[str], rank: int, stack: Sequence[Weights], objective: Objective) -> None:
        """Raise ValueError for an objective with a KL penalty."""
        if objective.kl:
            raise ValueError(f"the rival has no base log-probabilities: {objective}")
        group_queries(model)  # the same attention on both sides
        self._objective, self._device = objective, next(model.parameters()).device
        self._head, self._decoder = model.get_output_embeddings(), model.base_model
        config = LoraConfig(r=rank, lora_alpha=rank, target_modules=list(targets))
        self._peft: Any = get_peft_model(model, config, adapter_name="a0", autocast_adapter_dtype=False)
        for number in range(1, len(stack)):
            self._peft.add_adapter(f"a{number}", config, autocast_adapter_dtype=False)
        self._factors = []
        for number, weights in enumerate(stack):
            tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
            if unknown := set_peft_model_state_dict(self._peft, tensors, adapter_name=f"a{number}").unexpected_keys:
                raise ValueError(f"PEFT has no place for {unknown[0]} and {len(unknown) - 1} others")
            part = f".a{number}."
            own = ((name, value) for name, value in self._peft.named_parameters() if part in name)
            self._factors.append({name.replace(part, "."): value for name, value in own})

    def gradient_norms(self, samples: Samples, budget: int) -> list[float]:
        """Compute each adapter's gradient in passes of at most `budget` tokens, and return its norm; adapter n has slot n."""
        return [float(torch.stack(torch._foreach_norm([*own.values()])).norm()) for own in self.gradients(samples, budget)]

    def gradients(self, samples: Samples, budget: int) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield each adapter's gradient by parameter; it is gone when the next is asked for."""
        rows = pack_rows([int(slot) for slot in samples.slots_S], samples.prompts, samples.completions, row_tokens=0)
        for slot, factors in enumerate(self._factors[: len(samples.names)]):
            self._peft.set_adapter(f"a{slot}")
            for learns, own in self._by_gradient([row for row in rows if row.slot == slot], samples):
                for batch in micro_batches(own, budget):
                    with torch.set_grad_enabled(learns):
                        loss = self._loss(batch, samples)
                    if learns:
                        loss.backward()
            yield {name: value.grad for name, value in factors.items() if value.grad is not None}
            for value in factors.values():
                value.grad = None

    def _by_gradient(self, rows: Sequence[Row], samples: Samples) -> list[tuple[bool, list[Row]]]:
        everywhere = bool(self._objective.entropy_bonus)
        learns = [everywhere or bool(samples.advantages_S[list(row.samples)].any()) for row in rows]
        return [(flag, [row for row, own in zip(rows, learns, strict=True) if own == flag]) for flag in (True, False)]

    def _loss(self, rows: Sequence[Row], samples: Samples) -> torch.Tensor:
        batch = lay_out(rows, samples.prompts, samples.completions, len(samples.names), 0)
        ids, positions, places = (self._tensor(array) for array in (batch.ids_BL, batch.positions_BL, batch.places_U))
        hidden = self._decoder(ids, position_ids=positions, use_cache=False).last_hidden_state
        chosen_UH = hidden.reshape(-1, hidden.shape[-1]).index_select(0, places)
        targets_T, losses = self._tensor(batch.targets_T), self._token_losses(batch, samples)
        return head_loss(chosen_UH, self._head, targets_T, self._objective.temperature, losses).total

    def _token_losses(self, batch: MicroBatch, samples: Samples) -> Callable[..., torch.Tensor]:
        engine_T = self._tensor(engine_logprobs(batch, samples)).float()
        advantages_T = self._tensor(samples.advantages_S[batch.samples_T]).float()
        share_T = self._tensor(1 / samples.tokens_N[samples.slots_S[batch.samples_T]]).float()

        def losses(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, part: slice) -> torch.Tensor:
            weights_K = importance_weights(logprobs_K.detach(), engine_T[part], self._objective.importance_cap)
            return share_T[part] * token_losses(self._objective, logprobs_K, entropy_K, advantages_T[part], weights_K)

        return losses

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
