"""A device that runs out of memory during an update: one more try with smaller passes, and nothing is kept after an error."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch

from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.training.packing import MicroBatch, Samples, response_tokens
from stages.core.training.torch_trainer import TokenValues, TorchTrainer
from tests.stages.core.training.test_grouped_lora import random_weights
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS, lora_of, sample_rows


@pytest.fixture(scope="module")
def adapters() -> dict[str, Adapter]:
    lora = lora_of()
    return {f"s{n}": Adapter(random_weights(lora, n), {}, 0) for n in range(3)}


class Exhausted(TorchTrainer):
    """A trainer whose device is full at its first attempts; notes the budget of each, and the passes of the others."""

    failures = 1

    def accumulate(self, samples: Samples, budget: int, recompute: bool = False) -> TokenValues:
        self.budgets = [*getattr(self, "budgets", []), budget]
        self.passes: list[tuple[int, bool]] = []
        if len(self.budgets) <= self.failures:
            raise torch.OutOfMemoryError("full")
        return super().accumulate(samples, budget, recompute)

    def _hidden(self, batch: MicroBatch, routing: Any) -> torch.Tensor:
        self.passes.append((batch.ids_BL.size, bool(self._model.training)))  # recomputation needs train mode
        return super()._hidden(batch, routing)


@pytest.mark.parametrize("above", [None, 16, 96])
def test_an_exhausted_device_gets_half_the_budget_once_and_keeps_no_activations(
    adapters: dict[str, Adapter], above: int | None
) -> None:
    rule = replace(SETTINGS, gradient_checkpointing=above is not None, recompute_above=above or 0)
    samples, trainer = sample_rows(adapters), Exhausted(lora_of(), PAD, rule)
    found, expected = (each.update(adapters, samples) for each in (trainer, TorchTrainer(lora_of(), PAD, SETTINGS)))
    budget = above or 96
    assert trainer.budgets == [budget, budget // 2] and found["s0"].metrics["micro_batch_tokens"] == budget // 2
    assert trainer.passes and all(recomputed for _, recomputed in trainer.passes)
    assert found["s0"].metrics["loss"] == pytest.approx(expected["s0"].metrics["loss"], rel=1e-10)
    assert found["s0"].metrics["grad_norm"] == pytest.approx(expected["s0"].metrics["grad_norm"], rel=1e-10)


def test_a_row_longer_than_half_the_budget_recomputes_as_well(adapters: dict[str, Adapter]) -> None:
    long = {"prompt_ids": [3] * 60, "completion_ids": [4] * 30, "logprobs": [-3.0] * 30}
    rows = [row | long for row in sample_rows({"s0": adapters["s0"]}).to_pylist()]
    trainer = Exhausted(lora_of(), PAD, replace(SETTINGS, row_tokens=0))
    trainer.update({"s0": adapters["s0"]}, tables.table(rows, tables.SAMPLES))
    assert trainer.budgets == [96, 48] and {size > 48 and recomputed for size, recomputed in trainer.passes} == {True}


def measures(adapters: dict[str, Adapter], samples: pa.Table) -> dict[str, Callable[[TorchTrainer], object]]:
    return {
        "update": lambda trainer: trainer.update(adapters, samples),
        "gradients": lambda trainer: trainer.gradients(adapters, samples, response_tokens(samples)),
        "drift": lambda trainer: trainer.drift(adapters, samples),
    }


@pytest.mark.parametrize("name", ["update", "gradients"])
def test_a_device_that_is_full_again_says_what_was_tried_and_what_to_do(name: str, adapters: dict[str, Adapter]) -> None:
    trainer = Exhausted(lora_of(), PAD, SETTINGS)
    trainer.failures = 2
    with pytest.raises(torch.OutOfMemoryError) as raised:
        measures(adapters, sample_rows(adapters))[name](trainer)
    assert str(raised.value) == (
        "out of memory in the update, also with passes of 48 tokens; "
        "fork the run with a smaller learning.row_tokens, shorter completions or fewer adapters in a pass"
    )
    assert trainer.budgets == [96, 48] and str(raised.value.__cause__) == "full"


@pytest.mark.parametrize("name", ["update", "gradients", "drift"])
def test_memory_is_given_back_after_an_error(name: str, adapters: dict[str, Adapter], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, given = Exhausted(lora_of(), PAD, SETTINGS), list[str]()
    trainer.failures, trainer._device = 2, torch.device("cuda")  # the full device fails before anything is put there
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(name))
    with pytest.raises(torch.OutOfMemoryError):
        measures(adapters, sample_rows(adapters))[name](trainer)
    assert len(given) == len(trainer.budgets), "also after the last attempt"
