"""Check that engine and trainer give the same log-probabilities for every adapter.

Before an engine's first use, and whenever it has slept, each adapter completes a fixed prompt and the trainer scores the same
tokens. Every update also compares the samples themselves, whichever process wrote them. Differences come from arithmetic
(kernels, types, batch shapes) or from a mistake (stale weights, another temperature, another scale). Only the former are small.
"""

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.engines.protocol import Engine, Request
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256
from stages.core.training.protocol import Drift

PROMPT = "def f(x):\n    return x + 1\n"
TOKENS = 32


BOUNDS = {"float32": Drift(0.0001, 0.005), "bfloat16": Drift(0.05, 1.0)}
"""Differences that arithmetic alone explains, by type (measured: docs/metrics.md)."""


class Scorer(Protocol):
    """A trainer that can measure drift without taking a step."""

    def drift(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Drift]:
        """Return how far each adapter's samples are from their stored log-probabilities."""
        ...


class Disagreement(RuntimeError):
    """Engine and trainer do not compute the same policy. The message says what to do; `exit_code` is that of a command."""

    exit_code = 1


def check_agreement(
    engine: Engine, trainer: Scorer, adapters: Mapping[str, Adapter], temperature: float, bounds: Drift
) -> dict[str, Drift]:
    """Return drift by adapter id. Raise `Disagreement` naming the adapters beyond `bounds`, in the mean or at one token."""
    return compare(trainer, adapters, probe(engine, adapters, temperature), bounds)


def probe(engine: Engine, adapters: Mapping[str, Adapter], temperature: float) -> pa.Table:
    """Return SAMPLES that are not trained on: every adapter's completion of the fixed prompt."""
    prompt_ids = tuple(engine.encode(PROMPT))
    requests = [Request(prompt_ids, adapter_id, 0, min(TOKENS, engine.window - len(prompt_ids))) for adapter_id in adapters]
    rows = []
    for request, completion in zip(requests, engine.generate(requests, temperature), strict=True):
        assert request.adapter_id is not None
        names = dict.fromkeys(("sample_id", "member_id", "group_id", "adapter_id"), request.adapter_id)
        numbers = dict.fromkeys(("reward", "baseline", "centred", "advantage"), 0.0)
        ids = {
            "prompt_ids": list(prompt_ids),
            "completion_ids": list(completion.token_ids),
            "logprobs": list(completion.logprobs),
        }
        digest = weights_sha256(adapters[request.adapter_id].weights)
        rows.append(names | numbers | ids | {"role": "student", "kind": "deduction", "adapter_sha256": digest})
    return tables.table(rows, tables.SAMPLES)


def compare(trainer: Scorer, adapters: Mapping[str, Adapter], samples: pa.Table, bounds: Drift) -> dict[str, Drift]:
    """Return the trainer's drift on probed samples. Raise `Disagreement` if it exceeds `bounds`."""
    found = trainer.drift(adapters, samples)
    far = {
        adapter_id: f"mean {drift.mean:.4f}, largest {drift.largest:.4f}"
        for adapter_id, drift in found.items()
        if not (drift.mean <= bounds.mean and drift.largest <= bounds.largest)
    }
    if far:
        raise Disagreement(
            f"engine and trainer differ by more than {bounds.mean} nats per token in the mean "
            f"or {bounds.largest} at one token: {far}"
        )
    return found


def check_drift(metrics: pa.Table, threshold: float) -> None:
    """Raise `Disagreement` naming the members whose update's mean drift, in nats per token, is above `threshold`."""
    rows = metrics.filter(pc.equal(metrics["name"], "update.drift_mean")).to_pylist()
    far = {row["member_id"]: round(row["value"], 4) for row in rows if not row["value"] <= threshold}
    if far:
        raise Disagreement(f"engine and trainer differ by more than {threshold} nats per token: {far}")
