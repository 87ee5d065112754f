"""How long an update takes, and what its pace is once reading and writing adapters is set aside.

On a GPU that fixed part takes longer than the passes of a short update, so a longer one is timed as well: its further samples
add passes alone.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.backend import Backend
from flows.gpu_check.machine import product_rate, synchronize
from flows.plan.card_rates import Card
from flows.plan.decoder_shape import DecoderShape
from flows.plan.update_flops import packed, update_flops
from stages.core.lora.adapter import Adapter
from stages.core.training.protocol import Update

REPEATS = {"cuda": 8, "cpu": 1}  # copies of the samples in the longer update; 1: there is none
MOST_ATTEMPTS = 128  # completions of a group; token ids that every model has
TELLING = 0.05  # a longer update takes at least this share more, or the difference is noise


@dataclass(frozen=True)
class TimedUpdate:
    """The updates of the short samples, the fewest tokens of a pass in any, what to say, and its numbers."""

    updates: dict[str, Update]
    width: float
    detail: str
    figures: dict[str, Any]


def timed_update(
    backend: Backend, device: str, shape: DecoderShape | None, rates: Card, adapters: Mapping[str, Adapter], samples: pa.Table
) -> TimedUpdate:
    """Update all adapters on these samples and, on a GPU, on copies of them. Without a `shape`, the arithmetic is unknown.

    `rates`: what the plan assumes of the device. Its tokens per second count the passes alone, without recomputation.
    """
    updates = _updated(backend, device, adapters, samples)  # kernels are compiled and loaded when they are first used
    samples = _apart(samples)
    seconds, width = _timed(backend, device, adapters, samples)
    tokens, times = _positions(samples), REPEATS[device.partition(":")[0]]
    figures: dict[str, Any] = {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds}
    detail = f"{tokens / seconds:,.0f} tokens/s"
    if times > 1:
        whole, least = _timed(backend, device, adapters, _copies(samples, times))
        width = min(width, least)
        if whole - seconds < TELLING * seconds:
            short = f"{times} times as many tokens take no longer: too few to tell the pace"
            return TimedUpdate(updates, width, f"{detail}; {short}", figures)
        seconds, further = whole - seconds, (times - 1) * tokens
        figures |= {"further_seconds": seconds, "further_tokens": further}
        detail += f" in a short update, {further / seconds:,.0f} in what a longer one adds"
    if shape is not None:
        once = _useful(backend, shape, samples)
        rate, useful, planned = product_rate(device, backend.dtype), max(1, times - 1) * once, tokens * rates.flops / once
        figures |= {"product_rate": rate, "share_of_peak": useful / seconds / rate, "planned_tokens_per_s": planned}
        detail += f" (the plan says {planned:,.0f} for {rates.name}), {100 * figures['share_of_peak']:.0f} % of the rate of one "
        detail += f"large product ({rate / 1e12:.2f} TFLOPS)"
    return TimedUpdate(updates, width, detail, figures)


def _timed(backend: Backend, device: str, adapters: Mapping[str, Adapter], samples: pa.Table) -> tuple[float, float]:
    """Return the seconds of an update, and the tokens of a pass: fewer than configured if it ran out of memory."""
    began = time.perf_counter()
    updates = _updated(backend, device, adapters, samples)
    return time.perf_counter() - began, min(update.metrics["micro_batch_tokens"] for update in updates.values())


def _updated(backend: Backend, device: str, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
    trainer, names, updates = backend.trainer(), list(adapters), dict[str, Update]()
    size = backend.config.learning.adapters_per_group or len(names)
    for first in range(0, len(names), size):
        group = {name: adapters[name] for name in names[first : first + size]}
        updates |= trainer.update(group, samples.filter(pc.is_in(samples["adapter_id"], pa.array(list(group)))))
    synchronize(device)
    return updates


def _groups(samples: pa.Table) -> list[Sequence[int]]:
    """Return the prompt of each group."""
    return list(dict(zip(samples["group_id"].to_pylist(), samples["prompt_ids"].to_pylist(), strict=True)).values())


def _positions(samples: pa.Table) -> int:
    """Return the positions that an update computes of samples `_apart`: a prompt once for its group."""
    return sum(map(len, _groups(samples))) + sum(map(len, samples["completion_ids"].to_pylist()))


def _useful(backend: Backend, shape: DecoderShape, samples: pa.Table) -> float:
    """Return the FLOP of an update of these samples, whose groups are alike; recomputation is not useful work."""
    config, prompts = backend.config, _groups(samples)
    lengths = [len(ids) for ids in samples["completion_ids"].to_pylist()]
    attempts, mean = len(lengths) // len(prompts), sum(lengths) / len(lengths)
    rows = packed(len(prompts), len(prompts[0]), attempts, mean, config.learning.row_tokens)
    return update_flops(config.recomputing(False), shape, rows).total


def _apart(samples: pa.Table) -> pa.Table:
    """Replace first tokens so that no two completions of a group begin alike: an update would compute the shared part once."""
    completions = [[row % MOST_ATTEMPTS, *ids[1:]] for row, ids in enumerate(samples["completion_ids"].to_pylist())]
    field = samples.schema.field("completion_ids")
    return samples.set_column(samples.schema.get_field_index("completion_ids"), field, pa.array(completions, field.type))


def _copies(samples: pa.Table, times: int) -> pa.Table:
    """Return the samples that many times, each time with prompts of their own: equal ones would share rows."""
    parts = []
    for number in range(times):
        part = samples
        for name in ("sample_id", "group_id", "prompt_ids"):
            values = [
                [*value[number:], *value[:number]] if name == "prompt_ids" else f"{value}-{number}"
                for value in samples[name].to_pylist()
            ]
            field = part.schema.field(name)
            part = part.set_column(part.schema.get_field_index(name), field, pa.array(values, field.type))
        parts.append(part)
    return pa.concat_tables(parts)
