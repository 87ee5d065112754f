"""PEFT as the rival of a grouped update: one model with an adapter for each member, made active in turn.

Passes, loss and attention are ours, but each completion is a row with a prompt of its own, and a pass has one adapter's rows. So
what differs is how many adapters a pass has, and what the completions of a prompt share.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

from stages.core.lora.adapter_files import initial_adapter
from stages.core.training.attention import group_queries
from stages.core.training.head_loss import head_loss
from stages.core.training.loss import Objective, importance_weights, token_losses
from stages.core.training.packing import MicroBatch, Row, Samples, engine_logprobs, lay_out, micro_batches, pack_rows


class PeftInTurn:
    """`num_adapters` new adapters on a model, which PEFT takes over: the same factors as `initial_adapter` with seeds 0, 1, …"""

    def __init__(
        self, model: Any, targets: Sequence[str], rank: int, num_adapters: int, objective: Objective | None = None
    ) -> None:
        group_queries(model)  # the same attention on both sides
        self._objective = objective or Objective()
        self._head, self._decoder = model.get_output_embeddings(), model.base_model
        self._device = next(model.parameters()).device
        shapes = {
            name: (module.out_features, module.in_features)
            for name, module in model.named_modules()
            if name.rpartition(".")[2] in targets
        }
        config = LoraConfig(r=rank, lora_alpha=rank, target_modules=list(targets))
        self._peft: Any = get_peft_model(model, config, adapter_name="a0")
        for number in range(1, num_adapters):
            self._peft.add_adapter(f"a{number}", config)
        for number in range(num_adapters):
            weights = initial_adapter(shapes, rank, number).weights
            tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
            set_peft_model_state_dict(self._peft, tensors, adapter_name=f"a{number}")

    def gradient_norms(self, samples: Samples, budget: int) -> list[float]:
        """Compute each adapter's gradient in passes of at most `budget` tokens, and return its norm; adapter n has slot n."""
        rows = pack_rows([int(slot) for slot in samples.slots_S], samples.prompts, samples.completions, row_tokens=0)
        norms = []
        for slot in range(len(samples.names)):
            self._peft.set_adapter(f"a{slot}")
            for batch in micro_batches([row for row in rows if row.slot == slot], budget):
                self._loss(batch, samples).backward()
            grads = [parameter.grad for parameter in self._peft.parameters() if parameter.grad is not None]
            norms.append(float(torch.stack(torch._foreach_norm(grads)).norm()) if grads else 0.0)
            self._peft.zero_grad(set_to_none=True)
        return norms

    def _loss(self, rows: list[Row], samples: Samples) -> torch.Tensor:
        batch = lay_out(rows, samples.prompts, samples.completions, len(samples.names), 0)
        ids, positions, places = (self._tensor(array) for array in (batch.ids_BL, batch.positions_BL, batch.places_U))
        hidden = self._decoder(ids, position_ids=positions, use_cache=False).last_hidden_state
        chosen_UH = hidden.reshape(-1, hidden.shape[-1])[places]
        losses = self._token_losses(batch, samples)
        return head_loss(chosen_UH, self._head, self._tensor(batch.targets_T), self._objective.temperature, losses).total

    def _token_losses(self, batch: MicroBatch, samples: Samples) -> Any:
        engine_T = self._tensor(engine_logprobs(batch, samples)).float()
        advantages_T = self._tensor(samples.advantages_S[batch.samples_T]).float()
        share_T = self._tensor(1 / samples.tokens_N[samples.slots_S[batch.samples_T]]).float()

        def losses(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, part: slice) -> torch.Tensor:
            weights_K = importance_weights(logprobs_K.detach(), engine_T[part], self._objective.importance_cap)
            return share_T[part] * token_losses(self._objective, logprobs_K, entropy_K, advantages_T[part], weights_K)

        return losses

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
