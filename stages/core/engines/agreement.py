"""Check that engine and trainer give the same log-probabilities for every adapter.

Before an engine's first use, and whenever it has slept, each adapter completes fixed prompts and the trainer scores the same
tokens. An adapter whose drift would stop the run is asked again first, for more of them. More tokens steady a mean, but have a
larger maximum: there, tokens of two rounds must be beyond the bound. Every update also compares the samples themselves,
whichever process wrote them. Differences come from arithmetic (kernels, types, batch shapes) or from a mistake (stale
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
ROUNDS, MORE_ROUNDS = 4, 8  # each has all prompts, with seeds of its own, and is scored by itself: memory_plan.PROBE

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
    """Return drift by adapter id. Raise `Disagreement` naming the adapters beyond `bounds`, in the mean or at single tokens.

    An adapter that a few tokens find beyond `bounds` counts only if a larger sample does, too (see `compare`).
    """
    found = measured(trainer, adapters, probe(engine, adapters, temperature))
    if not (again := beyond(found, bounds)):
        return found
    return found | compare(trainer, adapters, probe(engine, adapters, temperature, again), bounds)


def probe(engine: Engine, adapters: Mapping[str, Adapter], temperature: float, again: Sequence[str] = ()) -> pa.Table:
    """Return SAMPLES that are not trained on: every adapter's completions of the fixed prompts, drawn with its own seeds.

    An adapter with fewer than LEAST tokens is asked once more. `again`: eight times as many completions of these adapters
    alone, with other seeds.
    """
    if again:
        asked = {name: adapters[name] for name in again}
        return _completed(engine, asked, temperature, range(ROUNDS, ROUNDS + MORE_ROUNDS))
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


def measured(trainer: Scorer, adapters: Mapping[str, Adapter], samples: pa.Table, rank: int = 1) -> dict[str, Drift]:
    """Return the trainer's drift on probed samples, scored round by round: so many tokens at once as the memory plan counts.

    `largest` is that of the round with the `rank`-th largest token; of fewer rounds, the last.
    """
    found: dict[str, list[tuple[int, Drift]]] = {}
    for own in _rounds(samples):
        counts = _tokens(own)
        for name, drift in trainer.drift(adapters, own).items():
            found.setdefault(name, []).append((counts[name], drift))
    return {name: _pooled(drifts, rank) for name, drifts in found.items()}


def _rounds(samples: pa.Table) -> list[pa.Table]:
    """Return the samples of each round: a completion of every prompt for each adapter that was asked."""
    seen: Counter[str] = Counter()
    numbers = []
    for name in samples["adapter_id"].to_pylist():
        numbers.append(seen[name] // len(PROMPTS))
        seen[name] += 1
    return [samples.filter(pc.equal(pa.array(numbers), number)) for number in sorted(set(numbers))]


def _pooled(drifts: Sequence[tuple[int, Drift]], rank: int) -> Drift:
    """Return the mean over all tokens of some rounds, and the largest token of the round with the `rank`-th largest."""
    tokens = sum(count for count, _ in drifts)
    mean = sum(count * drift.mean for count, drift in drifts) / tokens
    largest = sorted((drift.largest for _, drift in drifts), reverse=True)  # one that is not a number is in the mean, too
    return Drift(mean, largest[min(rank, len(largest)) - 1])


def beyond(found: Mapping[str, Drift], bounds: Drift) -> list[str]:
    """Return the ids of the adapters whose drift is beyond `bounds`, or is not a number."""
    return [name for name, drift in found.items() if not (drift.mean <= bounds.mean and drift.largest <= bounds.largest)]


def compare(trainer: Scorer, adapters: Mapping[str, Adapter], samples: pa.Table, bounds: Drift) -> dict[str, Drift]:
    """Return the trainer's drift on a larger sample. Raise `Disagreement` if it exceeds `bounds`.

    It does so in the mean over all tokens, or at a token in at least two rounds: among hundreds of tokens, a healthy engine may
    be off once.
    """
    found, counts = measured(trainer, adapters, samples, rank=2), _tokens(samples)
    far = {
        name: f"mean {found[name].mean:.4f}, {found[name].largest:.4f} or more at two of {counts[name]} tokens"
        for name in beyond(found, bounds)
    }
    if far:
        raise Disagreement(
            f"engine and trainer differ by more than {bounds.mean} nats per token in the mean "
            f"or {bounds.largest} at two tokens: {far}"
        )
    return found


def check_drift(metrics: pa.Table, threshold: float) -> None:
    """Raise `Disagreement` naming the members whose update's mean drift, in nats per token, is above `threshold`."""
    rows = metrics.filter(pc.equal(metrics["name"], "update.drift_mean")).to_pylist()
    far = {row["member_id"]: round(row["value"], 4) for row in rows if not row["value"] <= threshold}
    if far:
        raise Disagreement(f"engine and trainer differ by more than {threshold} nats per token: {far}")
