"""Micro-batches by token budget, and models that the chunked loss declines."""

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from stages.core import tables
from stages.core.training.grouped_lora import attach
from stages.core.training.packing import MicroBatch, Row, count, lay_out, micro_batches, pack_rows, passes, varied
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.training.test_grouped_lora import SIZES, TARGETS
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS


def test_packing_keeps_every_token_and_budget() -> None:
    rng = np.random.default_rng(0)
    prompts = [[5, 6, 7]] * 5 + [[8]] * 3
    completions = [rng.integers(2, 30, rng.integers(1, 9)).tolist() for _ in prompts]
    rows = pack_rows([0, 0, 1, 1, 1, 0, 0, 0], prompts, completions, row_tokens=16)
    assert sorted(sample for row in rows for sample in row.samples) == list(range(8))
    for batch in micro_batches(rows, tokens=48):
        laid_out = lay_out(batch, prompts, completions, 2, PAD)
        assert len(batch) == 1 or laid_out.ids_BL.size <= 48
        assert [row.slot for row in batch] == sorted(row.slot for row in batch)
        for sample in {sample for row in batch for sample in row.samples}:
            mine = laid_out.samples_T == sample
            assert laid_out.targets_T[mine].tolist() == completions[sample]
            places = laid_out.places_U[laid_out.states_T[mine]]
            assert laid_out.offsets_T[mine].tolist() == list(range(len(completions[sample])))
            read = laid_out.ids_BL.reshape(-1)[places].tolist()
            assert read == [prompts[sample][-1], *completions[sample][:-1]]
            positions = laid_out.positions_BL.reshape(-1)[places]
            assert positions.tolist() == [len(prompts[sample]) - 1 + k for k in range(len(completions[sample]))]


def test_equal_completions_and_beginnings_stand_once_in_a_row() -> None:
    prompt, completions = [9, 8], [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 7], [1, 2], [5, 6]]
    (row,) = pack_rows([0] * 5, [prompt] * 5, completions, row_tokens=64)
    assert row.length == len(prompt) + 4, "1 2 3 and 5: 7, 2 and 6 are predicted, not read"
    batch = lay_out([row], [prompt] * 5, completions, 1, PAD)
    assert batch.ids_BL[0, : row.length].tolist() == [9, 8, 1, 2, 3, 5] and batch.branched
    assert len(batch.places_U) == 5 and len(batch.states_T) == sum(map(len, completions))
    for sample, completion in enumerate(completions):
        assert batch.targets_T[batch.samples_T == sample].tolist() == completion
    first_T = batch.offsets_T == 0
    assert {int(place) for place in batch.places_U[batch.states_T[first_T]]} == {1}, (
        "all first tokens are predicted by the prompt's end"
    )


def test_a_completion_joins_the_row_that_knows_most_of_it() -> None:
    long, other = [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]
    completions = [long, other, long, [*other[:5], 13], [7]]
    rows = pack_rows([0] * 5, [[9]] * 5, completions, row_tokens=8)
    assert [(row.samples, row.length) for row in rows] == [((0, 2, 4), 6), ((1, 3), 6)], "no two of different beginnings fit"


def test_completions_that_only_continue_each_other_need_no_mask() -> None:
    completions = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 7]]
    rows = pack_rows([0] * 3, [[9]] * 3, completions, row_tokens=64)
    assert [row.length for row in rows] == [4] and not lay_out(rows, [[9]] * 3, completions, 1, PAD).branched
    assert len(pack_rows([0] * 3, [[9]] * 3, completions, row_tokens=0)) == 3, "0 shares nothing"
    assert len(pack_rows([0] * 3, [[9] * 80] * 3, completions, row_tokens=64)) == 1, (
        "an equal completion adds nothing to a full row"
    )


@pytest.mark.parametrize(
    ("centred", "advantages", "steps", "still"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], True, 2),  # positive_only, all accepted: equal rewards train there
        ([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], True, 2),
        ([1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], True, 1),  # with an entropy bonus, it has a gradient
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], False, 2),
        ([1.5, 1.5, 1.5, 1.5], [0.0, 0.0, 0.0, 0.0], False, 2),  # whitened
    ],
)
def test_what_makes_an_adapter_step(centred: list[float], advantages: list[float], steps: bool, still: int) -> None:
    blank = {"member_id": "m", "role": "student", "kind": "deduction", "adapter_id": "s0", "adapter_sha256": "sha"}
    blank |= {"prompt_ids": [1], "completion_ids": [2], "logprobs": [0.0], "baseline": 0.0}
    rows = [
        blank | {"sample_id": str(row), "group_id": f"g{row // 2}", "reward": one, "centred": one, "advantage": other}
        for row, (one, other) in enumerate(zip(centred, advantages, strict=True))
    ]
    samples = tables.table(rows, tables.SAMPLES)
    assert varied(samples) == ({"s0"} if steps else set())
    counted = count(samples, "s0")
    assert (counted["varied"], counted["groups"], counted["zero_variance_groups"]) == (float(steps), 2.0, float(still))
    assert count(samples, "s1")["varied"] == 0.0


def test_a_large_micro_batch_is_cut_by_adapters_and_a_small_one_is_not() -> None:
    def rows(*lengths: int) -> list[Row]:
        return [Row(number // 2, (number,), length) for number, length in enumerate(lengths)]

    large = rows(1025, 600, 800, 900)
    assert passes(large) == [large[:2], large[2:]]
    assert passes(rows(1024, 1000, 1000, 1000)) == [rows(1024, 1000, 1000, 1000)], "4,096 positions"
    many = [Row(slot, (slot,), 500) for slot in range(10)]
    assert passes(many) == [many], "504 positions for each adapter"


def test_a_pass_is_laid_out_as_its_part_of_the_whole_micro_batch() -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 30, length).tolist() for length in (40, 1200, 900)]
    prompts = [prompts[0], prompts[0], prompts[1], prompts[2], prompts[2]]
    completions = [rng.integers(2, 30, length).tolist() for length in (7, 5, 90, 80, 60)]
    batch = sorted(pack_rows([0, 0, 1, 2, 2], prompts, completions, row_tokens=1024), key=lambda row: row.slot)
    parts = passes(batch)
    assert [[row.slot for row in part] for part in parts] == [[0], [1], [2, 2]]
    assert laid_out_together(parts, prompts, completions, batch) == laid_out_together([batch], prompts, completions, batch)


def laid_out_together(parts: list[list[Row]], prompts: list, completions: list, batch: list[Row]) -> list[object]:
    """Everything that the passes compute, the rows of one after those of another."""
    found: list[MicroBatch] = [lay_out(part, prompts, completions, 3, PAD, batch) for part in parts]
    first = np.cumsum([0, *(one.ids_BL.size for one in found)])
    columns = [(one.ids_BL, one.positions_BL, one.ends_BL, one.targets_T, one.samples_T, one.offsets_T) for one in found]
    return [
        np.sum([one.counts_N for one in found], axis=0).tolist(),
        {one.branched for one in found},
        np.concatenate([one.places_U[one.states_T] + start for one, start in zip(found, first, strict=False)]).tolist(),
        *(np.concatenate(column).tolist() for column in zip(*columns, strict=True)),
    ]


class Scaled(LlamaForCausalLM):
    """A model that changes its logits after the output head, as some families do."""

    def forward(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 2
        return out


def test_models_that_the_loss_would_compute_wrongly_are_refused() -> None:
    for made, message in [
        (Scaled(LlamaConfig(**SIZES)), "after the output head"),
        (LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1)), "dropout"),
    ]:
        with pytest.raises(ValueError, match=message):
            TorchTrainer(attach(made, TARGETS, 2, 4, 1), PAD, SETTINGS)
    sliding = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    for window in (None, 9):
        with pytest.raises(ValueError, match="sliding_attention"):
            attach(Qwen2ForCausalLM(sliding), TARGETS, 2, 4, 1, window)
    assert attach(Qwen2ForCausalLM(sliding), TARGETS, 2, 4, 1, 8).num_adapters == 1
