"""The trainer: take one AdamW step for each adapter of a group, all adapters in one forward and backward pass.

The samples of all adapters are packed into micro-batches by token budget, and gradients accumulate. A CPU computes a large
micro-batch adapter by adapter: the same gradients, with the activations of one adapter at a time. Then each adapter takes its
own step (stages.core.training.step), so that its update is the same as if it trained alone. An adapter whose centred rewards are
all equal takes none. A part of an update that is cut by rows ends with the gradients of its rows; whoever joins the parts steps.
Groups without an advantage are measured without a backward pass, or with `skip_zero_groups` left out; denominators count them.

Axes: N adapters · P parameters of one adapter · S samples · U positions that predict · T response tokens · K tokens of a part.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from stages.core import tables
from stages.core.lora.adapter import Adapter, Gradient
from stages.core.progress import Progress, silent
from stages.core.training.grouped_lora import GroupedLoRA, unflatten
from stages.core.training.head_loss import head_loss, token_logprobs
from stages.core.training.loss import importance_weights, token_losses
from stages.core.training.packing import (
    MicroBatch,
    Row,
    Samples,
    check_samples,
    columns,
    count,
    count_skipped,
    engine_logprobs,
    lay_out,
    micro_batches,
    pack_rows,
    passes,
    response_tokens,
    with_advantage,
)
from stages.core.training.protocol import Drift, Update
from stages.core.training.row_masks import block_mask, dense_mask
from stages.core.training.settings import Settings
from stages.core.training.step import finished, gradient_norm

MEASURED = ("loss", "entropy", "drift")  # at every response token


@dataclass
class TokenValues:
    """Measurements at every response token, collected over the micro-batches."""

    slots: list[np.ndarray] = field(default_factory=list)
    values: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, slots_T: np.ndarray, **values_T: torch.Tensor) -> None:
        """Add a micro-batch: the adapter slot and the values of each token."""
        self.slots.append(slots_T)
        for name, value in values_T.items():
            self.values.setdefault(name, []).append(value.detach().double().cpu().numpy())

    def of(self, slot: int) -> dict[str, np.ndarray]:
        """Return the values of one adapter's tokens."""
        if not self.slots:  # every group was skipped
            return {name: np.zeros(0) for name in MEASURED}
        chosen = np.concatenate(self.slots) == slot
        return {name: np.concatenate(parts)[chosen] for name, parts in self.values.items()}

    def table(self, slot: int, adapter_id: str) -> pa.Table:
        """Return one adapter's tokens as TOKENS."""
        values = {name: pa.array(array_T, pa.float32()) for name, array_T in self.of(slot).items()}
        count = len(next(iter(values.values())))
        return tables.conform(pa.table({"adapter_id": [adapter_id] * count} | values), tables.TOKENS)


class TorchTrainer:
    """Implements `Trainer` on grouped LoRA layers, on the model's device."""

    def __init__(self, lora: GroupedLoRA, pad_id: int, settings: Settings, progress: Progress = silent) -> None:
        """Raise ValueError for an unsupported model."""
        self._lora, self._pad_id, self._settings, self._progress = lora, pad_id, settings, progress
        model: Any = lora.model
        self._model, self._head = model, model.get_output_embeddings()
        self._device, self._dtype = next(model.parameters()).device, next(model.parameters()).dtype
        self._masked = {"masked": dense_mask, "flex": block_mask}[settings.attention]
        _check_model(lora, model)

    def update(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
        """Take one step for each adapter on its own rows of SAMPLES. Raise ValueError for rows of other or stale weights."""
        check_samples(adapters, samples)
        skips = self._settings.skip_zero_groups
        counts = {
            adapter_id: count(samples, adapter_id) | (count_skipped(samples, adapter_id) if skips else {})
            for adapter_id in adapters
        }
        names = tuple(adapter_id for adapter_id in adapters if counts[adapter_id]["varied"])
        updates = {
            adapter_id: Update(adapter, False, counts[adapter_id])
            for adapter_id, adapter in adapters.items()
            if adapter_id not in names
        }
        if names:
            rows = columns(names, self._kept(samples), response_tokens(samples))
            with self._giving_back():
                updates |= self._run([adapters[name] for name in names], rows, counts)
        return {adapter_id: updates[adapter_id] for adapter_id in adapters}

    def gradients(
        self, adapters: Mapping[str, Adapter], samples: pa.Table, tokens: Mapping[str, int]
    ) -> tuple[dict[str, Gradient], pa.Table]:
        """Return the gradient of each adapter's loss on these rows of SAMPLES, and TOKENS of the same rows. Take no step.

        `tokens` counts the response tokens of all of an adapter's samples, here or elsewhere: the denominator of its loss, so
        that the gradients of disjoint rows add up to that of all rows. Raise ValueError for rows of other or stale weights.
        """
        check_samples(adapters, samples)
        names = tuple(adapters)
        with self._giving_back():
            self._lora.load([adapter.weights for adapter in adapters.values()])
            values, budget = self._accumulate_or_halve(columns(names, self._kept(samples), tokens))
            gradients_NP = self._lora.gradients_NP.float().cpu().numpy()
        found = {name: Gradient(unflatten(self._lora, gradients_NP[slot]), budget) for slot, name in enumerate(names)}
        return found, tables.join([values.table(slot, name) for slot, name in enumerate(names)], tables.TOKENS)

    def drift(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Drift]:
        """Return |log-probability here minus the engine's| over each adapter's samples, without taking a step."""
        check_samples(adapters, samples)
        rows = columns(tuple(adapters), samples, response_tokens(samples))
        with self._giving_back():
            self._lora.load([adapter.weights for adapter in adapters.values()])
            with torch.no_grad():
                tokens = self.accumulate(rows, self._settings.pass_tokens)
        apart = {name: np.abs(tokens.of(slot)["drift"]) for slot, name in enumerate(adapters)}
        return {name: Drift(float(own.mean()), float(own.max())) for name, own in apart.items() if len(own)}

    def _kept(self, samples: pa.Table) -> pa.Table:
        """Return the samples that the passes compute."""
        return with_advantage(samples) if self._settings.skip_zero_groups else samples

    def _run(self, adapters: list[Adapter], samples: Samples, counts: Mapping[str, dict[str, float]]) -> dict[str, Update]:
        self._lora.load([adapter.weights for adapter in adapters])
        tokens, budget = self._accumulate_or_halve(samples)
        gradients_NP = self._lora.gradients_NP
        names, updates = self._lora.names(), {}
        for slot, (name, adapter) in enumerate(zip(samples.names, adapters, strict=True)):
            norm, own = gradient_norm(gradients_NP[slot]), tokens.of(slot)
            updates[name] = finished(adapter, names, gradients_NP[slot], norm, own, counts[name], budget, self._settings)
        return updates

    @contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Release gradients and cached GPU memory at the end, also after an error: an engine elsewhere may need it next."""
        try:
            yield
        finally:
            self._lora.clear_gradients()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _accumulate_or_halve(self, samples: Samples) -> tuple[TokenValues, int]:
        """Compute the gradients of the whole step; if the device runs out of memory, retry once with half the budget.

        The retry keeps no activations: a row longer than half the budget is a pass of its own, and as large as before.
        """
        budget = self._settings.pass_tokens
        try:
            return self.accumulate(samples, budget), budget
        except torch.OutOfMemoryError:
            pass  # leaving this block releases the memory of the failed pass
        self._lora.clear_gradients()
        torch.cuda.empty_cache()
        try:
            return self.accumulate(samples, budget // 2, recompute=True), budget // 2
        except torch.OutOfMemoryError as error:
            remedy = "fork the run with a smaller learning.row_tokens, shorter completions or fewer adapters in a pass"
            raise torch.OutOfMemoryError(
                f"out of memory in the update, also with passes of {budget // 2} tokens; {remedy}"
            ) from error

    def accumulate(self, samples: Samples, budget: int, recompute: bool = False) -> TokenValues:
        """Compute the gradients of these samples and take no step; a micro-batch has at most `budget` tokens.

        With `recompute`, every pass computes its activations again, whatever the settings say.
        """
        self._lora.clear_gradients()
        tokens = TokenValues()
        rows = pack_rows([int(slot) for slot in samples.slots_S], samples.prompts, samples.completions, self._settings.row_tokens)
        again = recompute or self._settings.gradient_checkpointing
        above = 0 if recompute else min(self._settings.recompute_above, budget)
        done, total = 0, sum(len(completion) for completion in samples.completions)
        self._progress("trained tokens", 0, total)
        try:
            for learns, own in self._by_gradient(rows, samples):
                for batch, part in self._passes(own, budget):
                    laid_out = lay_out(part, samples.prompts, samples.completions, len(samples.names), self._pad_id, batch)
                    self._lora.checkpoint(again and laid_out.ids_BL.size > above)
                    with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
                        loss = self._loss(laid_out, samples, tokens)
                    if loss.requires_grad:
                        loss.backward()
                    done += len(laid_out.targets_T)
                    self._progress("trained tokens", done, total, done)
        finally:
            self._lora.checkpoint(False)
        return tokens

    def _passes(self, rows: Sequence[Row], budget: int) -> Iterator[tuple[list[Row], list[Row]]]:
        """Yield each micro-batch with the rows of a pass: on a CPU one adapter's, on a GPU all, which are few kernels."""
        for batch in micro_batches(rows, budget):
            yield from ((batch, part) for part in (passes(batch) if self._device.type == "cpu" else [batch]))

    def _by_gradient(self, rows: Sequence[Row], samples: Samples) -> list[tuple[bool, list[Row]]]:
        """Split rows by whether the loss has a gradient there; the others are measured without a backward pass.

        It has none in a group of equal rewards under a group baseline, unless entropy or divergence count.
        """
        objective = self._settings.objective
        everywhere = bool(objective.entropy_bonus or objective.kl)
        learns = [everywhere or bool(samples.advantages_S[list(row.samples)].any()) for row in rows]
        return [(flag, [row for row, own in zip(rows, learns, strict=True) if own == flag]) for flag in (True, False)]

    def _loss(self, batch: MicroBatch, samples: Samples, tokens: TokenValues) -> torch.Tensor:
        objective, temperature = self._settings.objective, self._settings.objective.temperature
        slots_T, targets_T = samples.slots_S[batch.samples_T], self._tensor(batch.targets_T)
        exact = torch.promote_types(torch.float32, self._dtype)
        engine_T = self._tensor(engine_logprobs(batch, samples)).to(exact)
        advantages_T = self._tensor(samples.advantages_S[batch.samples_T]).to(exact)
        share_T = self._tensor(1 / samples.tokens_N[slots_T]).to(exact)
        base_T = None
        if objective.kl:
            with torch.no_grad():
                hidden_UH = self._hidden(batch, self._lora.alone())
            base_T, _ = token_logprobs(hidden_UH, self._head, targets_T, temperature, states_T=batch.states_T)

        def losses(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, part: slice) -> torch.Tensor:
            weights_K = importance_weights(logprobs_K.detach(), engine_T[part], objective.importance_cap)
            base_K = None if base_T is None else base_T[part]
            losses_K = token_losses(objective, logprobs_K, entropy_K, advantages_T[part], weights_K, base_K)
            return share_T[part] * losses_K

        hidden_UH = self._hidden(batch, self._lora.routed(batch.counts_N))
        found = head_loss(hidden_UH, self._head, targets_T, temperature, losses, states_T=batch.states_T)
        tokens.add(slots_T, loss=found.losses_T, entropy=found.entropy_T, drift=found.logprobs_T - engine_T)
        return found.total

    def _hidden(self, batch: MicroBatch, routing: Any) -> torch.Tensor:
        """Return the last hidden state [U, H] at every position that predicts a response token; only these reach the head."""
        with routing:
            hidden = self._model.base_model(
                self._tensor(batch.ids_BL),
                attention_mask=self._masked(self._tensor(batch.ends_BL), self._dtype) if batch.branched else None,
                position_ids=self._tensor(batch.positions_BL),
                use_cache=False,
            ).last_hidden_state
        chosen_UH: torch.Tensor = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self._tensor(batch.places_U))
        return chosen_UH

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _check_model(lora: GroupedLoRA, model: Any) -> None:
    """Reject models that scale logits or drop activations: the loss applies the head itself and recomputes layers."""
    if getattr(model.config, "attention_dropout", 0) or any(isinstance(m, nn.Dropout) and m.p for m in model.modules()):
        raise ValueError("the model has dropout: log-probabilities of engine and trainer would differ")
    ids = torch.arange(2, device=next(model.parameters()).device)[None]
    with torch.no_grad(), lora.alone():
        out = model(ids, use_cache=False, output_hidden_states=True)
        direct = model.get_output_embeddings()(model.base_model(ids, use_cache=False).last_hidden_state)
    if not torch.allclose(out.logits.float(), direct.float(), rtol=1e-3, atol=1e-3):
        raise ValueError(f"{type(model).__name__} changes its logits after the output head")
