"""Check that engine and trainer give the same log-probabilities for every adapter.

Before an engine's first use, and whenever it has slept, each adapter completes fixed prompts and the trainer scores the same
tokens. A drift that would stop the run is measured again first, on more of them. Every update also compares the samples
themselves, whichever process wrote them. Differences come from arithmetic (kernels, types, batch shapes) or from a mistake (stale
weights, another temperature, another scale). Only the former are small.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.engines.protocol import Engine, Request
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256
from stages.core.training.protocol import Drift

PROMPTS = (
    "def f(x):\n    return x + 1\n",
    "assert f(",
    "def f(words, n):\n    found = {}\n    for word in words:\n        found[word[:n]] = len(word)\n    return ",
    "# The function returns ",
)
TOKENS = 16  # of a completion
LEAST = 32  # compared tokens of an adapter: one whose completions end early is asked again
ROUNDS, MORE_ROUNDS = 4, 8  # each has all prompts, with seeds of its own

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
    """Return drift by adapter id. Raise `Disagreement` naming the adapters beyond `bounds`, in the mean or at one token.

    What a few tokens find beyond `bounds` counts only if a larger sample does, too.
    """
    found = trainer.drift(adapters, probe(engine, adapters, temperature))
    if not beyond(found, bounds):
        return found
    return compare(trainer, adapters, probe(engine, adapters, temperature, more=True), bounds)


def probe(engine: Engine, adapters: Mapping[str, Adapter], temperature: float, more: bool = False) -> pa.Table:
    """Return SAMPLES that are not trained on: every adapter's completions of the fixed prompts, drawn with its own seeds.

    An adapter with fewer than LEAST tokens is asked again. `more`: other seeds, and eight times as many completions.
    """
    if more:
        return _completed(engine, adapters, temperature, range(ROUNDS, ROUNDS + MORE_ROUNDS))
    samples = _completed(engine, adapters, temperature, [0])
    for number in range(1, ROUNDS):
        counts = _tokens(samples)
        if not (short := {name: adapter for name, adapter in adapters.items() if counts[name] < LEAST}):
            break
        samples = tables.join([samples, _completed(engine, short, temperature, [number])], tables.SAMPLES)
    return samples


def _completed(engine: Engine, adapters: Mapping[str, Adapter], temperature: float, rounds: Sequence[int]) -> pa.Table:
    """Return SAMPLES of these rounds. A prompt that leaves no room in the window keeps its last tokens."""
    most = max(1, engine.window - TOKENS)
    encoded = [tuple(engine.encode(prompt))[-most:] for prompt in PROMPTS]
    requests = [
        Request(ids, name, crc32(f"{name} {number} {place}".encode()), min(TOKENS, engine.window - len(ids)))
        for name in adapters
        for number in rounds
        for place, ids in enumerate(encoded)
    ]
    digests = {name: weights_sha256(adapter.weights) for name, adapter in adapters.items()}
    rows = []
    for request, completion in zip(requests, engine.generate(requests, temperature), strict=True):
        assert request.adapter_id is not None
        names = dict.fromkeys(("sample_id", "member_id", "group_id", "adapter_id"), request.adapter_id)
        numbers = dict.fromkeys(("reward", "baseline", "centred", "advantage"), 0.0)
        ids = {
            "prompt_ids": list(request.prompt_ids),
            "completion_ids": list(completion.token_ids),
            "logprobs": list(completion.logprobs),
        }
        own = {"role": "student", "kind": "deduction", "adapter_sha256": digests[request.adapter_id]}
        rows.append(names | numbers | ids | own)
    return tables.table(rows, tables.SAMPLES)


def _tokens(samples: pa.Table) -> Counter[str]:
    """Return the number of completed tokens by adapter id."""
    found: Counter[str] = Counter()
    for name, ids in zip(samples["adapter_id"].to_pylist(), samples["completion_ids"].to_pylist(), strict=True):
        found[name] += len(ids)
    return found


def beyond(found: Mapping[str, Drift], bounds: Drift) -> list[str]:
    """Return the ids of the adapters whose drift is beyond `bounds`, or is not a number."""
    return [name for name, drift in found.items() if not (drift.mean <= bounds.mean and drift.largest <= bounds.largest)]


def compare(trainer: Scorer, adapters: Mapping[str, Adapter], samples: pa.Table, bounds: Drift) -> dict[str, Drift]:
    """Return the trainer's drift on probed samples. Raise `Disagreement` if it exceeds `bounds`."""
    found, counts = trainer.drift(adapters, samples), _tokens(samples)
    far = {
        name: f"mean {found[name].mean:.4f}, largest {found[name].largest:.4f} of {counts[name]} tokens"
        for name in beyond(found, bounds)
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
