"""How much of a student's gradient is signal: the gradients of parts of one generation, compared. Writes nothing.

    .venv/bin/python infra/experiments/gradient_signal.py STORE RUN GENERATION [PARTS]

The groups (a task's attempts) of one generation are dealt into PARTS (8), and each part's gradient is computed for the weights
that wrote the attempts; the store must still hold these (`retention.adapter_every`). With g the mean of the K gradients and v
their mean squared distance from it, times K / (K - 1), each line gives, for one kind of reward:

- `signal / noise` of one part, (|g|^2 - v / K) / v: an unbiased |E g|^2 over the variance of a part's gradient. It grows in
  proportion to the rollouts; below 0 it is not told from 0.
- `halves`: the cosine of the angle between the mean gradients of the first and the second half of the parts.
"""

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors.numpy import load

from flows.backend import Backend
from flows.config import parse
from flows.run.run import Run
from flows.storage import open_store
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import WEIGHTS_FILE
from stages.core.method.advantages import Advantages, positive_only, reinforce_plus_plus_baseline
from stages.core.training.packing import response_tokens
from stages.core.training.protocol import Trainer


def signal_and_noise(gradients_KP: np.ndarray) -> tuple[float, float]:
    """Return signal over noise of one part, and the cosine of the halves; NaN where gradients are all 0."""
    parts = len(gradients_KP)
    mean_P = gradients_KP.mean(0)
    noise = float(((gradients_KP - mean_P) ** 2).sum() / (parts - 1))
    first_P, second_P = gradients_KP[: parts // 2].mean(0), gradients_KP[parts // 2 :].mean(0)
    lengths = float(np.linalg.norm(first_P) * np.linalg.norm(second_P))
    cosine = float(first_P @ second_P) / lengths if lengths else np.nan
    return (float(mean_P @ mean_P) - noise / parts) / noise if noise else np.nan, cosine


def gradients(trainer: Trainer, adapters: dict[str, Adapter], samples: pa.Table, parts: int) -> np.ndarray:
    """Return the gradient of each part of the samples of one adapter, [K, P]; all are divided by the same number of tokens."""
    groups = samples["group_id"].to_pylist()
    part_of = {group: place % parts for place, group in enumerate(dict.fromkeys(groups))}
    rows = []
    for part in range(parts):
        own = samples.filter(pa.array([part_of[group] == part for group in groups]))
        (gradient,) = trainer.gradients(adapters, own, response_tokens(samples))[0].values()
        rows.append(np.concatenate([gradient.values[name].ravel() for name in sorted(gradient.values)]))
    return np.array(rows)


def rewarded(samples: pa.Table, correct: dict[str, bool]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the samples with the advantages of several rewards."""
    columns = (samples[name].to_pylist() for name in ("group_id", "kind", "role"))
    asked = (*columns, pc.list_value_length(samples["completion_ids"]).to_numpy())
    outcome_S = np.array([1.0 if correct[name] else -0.5 for name in samples["sample_id"].to_pylist()])
    yield "as trained", samples
    yield "outcome alone", _with(samples, reinforce_plus_plus_baseline(outcome_S, *asked, shift=False))
    yield "right answers alone", _with(samples, positive_only(outcome_S, *asked))


def _with(samples: pa.Table, found: Advantages) -> pa.Table:
    return samples.set_column(samples.schema.get_field_index("advantage"), "advantage", pa.array(found.advantage_S))


def main(store: str, run_id: str, generation: str, parts: str = "8") -> None:
    """Print a line for each kind of reward."""
    run, number = Run(open_store(store), run_id), int(generation)
    samples = run.read_table(number, "samples")
    samples = samples.filter(pc.equal(samples["role"], "student"))
    names = sorted(set(samples["adapter_id"].to_pylist()))
    grades = run.read_table(number, "grades")
    correct = dict(zip(grades["rollout_id"].to_pylist(), grades["correct"].to_pylist(), strict=True))
    trainer = Backend(parse((run.history.description() or {})["config"])).trainer()
    for name in names:
        own = samples.filter(pc.equal(samples["adapter_id"], name))
        adapters = {name: Adapter(load(run.read_adapter(name, [WEIGHTS_FILE])[WEIGHTS_FILE]), {}, 0)}
        for reward, rows in rewarded(own, correct):
            ratio, cosine = signal_and_noise(gradients(trainer, adapters, rows, int(parts)))
            print(f"{name}  {reward:20} signal / noise {ratio:7.3f}  halves {cosine:6.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
