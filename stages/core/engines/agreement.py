"""Do engine and trainer give the same log-probabilities for every adapter?

At the start of a process that holds both, each adapter completes one fixed prompt and the trainer scores those very tokens. Every
update compares the samples themselves, whichever process wrote them. What differs is arithmetic (kernels, types, batch shapes) or
a mistake (stale weights, another temperature, another scale), and only the first is small.
"""

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.engines.protocol import Engine, Request
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256

PROMPT = "def f(x):\n    return x + 1\n"
TOKENS = 16


class Scorer(Protocol):
    """A trainer that can measure without stepping."""

    def drift(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, float]:
        """Largest difference to the stored log-probabilities of each adapter's samples, in nats."""
        ...


class Disagreement(RuntimeError):
    """Engine and trainer do not compute the same policy."""


def check_agreement(
    engine: Engine, trainer: Scorer, adapters: Mapping[str, Adapter], temperature: float, threshold: float, seed: int = 0
) -> dict[str, float]:
    """Drift by adapter id, in nats. Raises `Disagreement` naming the adapters above `threshold`."""
    prompt_ids = tuple(engine.encode(PROMPT))
    requests = [Request(prompt_ids, adapter_id, seed, min(TOKENS, engine.window - len(prompt_ids))) for adapter_id in adapters]
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
    drift = trainer.drift(adapters, tables.table(rows, tables.SAMPLES))
    far = {adapter_id: round(value, 4) for adapter_id, value in drift.items() if not value <= threshold}
    if far:
        raise Disagreement(f"engine and trainer differ by more than {threshold} nats: {far}")
    return drift


def check_drift(metrics: pa.Table, threshold: float) -> None:
    """Raises `Disagreement` naming the members whose update's mean drift, in nats a token, is above `threshold`."""
    rows = metrics.filter(pc.equal(metrics["name"], "update.drift_mean")).to_pylist()
    far = {row["member_id"]: round(row["value"], 4) for row in rows if not row["value"] <= threshold}
    if far:
        raise Disagreement(f"engine and trainer differ by more than {threshold} nats a token: {far}")
