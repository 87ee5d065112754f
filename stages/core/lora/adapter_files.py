"""Adapters as named arrays and as files: names and shapes, fresh adapters, and conversion to and from stored bytes. Pure.

Equal adapters give equal bytes. `adapter_model.safetensors` and `adapter_config.json` are what PEFT loads;
`optimizer.safetensors` holds AdamW's moments and step count. We write the configuration ourselves instead of using PEFT, so that
it is sorted and contains no path of this machine.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from zlib import crc32

import numpy as np
from safetensors.numpy import load, save

from stages.core.lora.adapter import Adapter, Gradient, Weights

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
OPTIMIZER_FILE = "optimizer.safetensors"

_BUDGET = "micro_batch_tokens"
_METADATA = {"format": "pt"}  # a single key: safetensors writes several keys in no fixed order


def parameter_shapes(shapes: Mapping[str, tuple[int, int]], rank: int) -> dict[str, tuple[int, int]]:
    """Return PEFT parameter name -> shape: A [R, I] and B [O, R] of every module path in `shapes` (path -> (O, I))."""
    named: dict[str, tuple[int, int]] = {}
    for path, (outputs, inputs) in shapes.items():
        named[f"base_model.model.{path}.lora_A.weight"] = (rank, inputs)
        named[f"base_model.model.{path}.lora_B.weight"] = (outputs, rank)
    return named


def initial_adapter(shapes: Mapping[str, tuple[int, int]], rank: int, seed: int) -> Adapter:
    """Return a fresh adapter: A uniform in ±1/sqrt(I) (PEFT's Kaiming-uniform with a = sqrt 5), B zero, so that delta W = 0.

    Each matrix is drawn from its own generator keyed by `seed` and its name: members with one seed share A.
    """
    weights: Weights = {}
    for name, shape in parameter_shapes(shapes, rank).items():
        if name.endswith("lora_A.weight"):
            bound = 1 / np.sqrt(shape[1])
            draw = np.random.default_rng([seed, crc32(name.encode())]).uniform(-bound, bound, shape)
            weights[name] = draw.astype(np.float32)
        else:
            weights[name] = np.zeros(shape, np.float32)
    return Adapter(weights=weights, moments={}, step=0)


def weights_bytes(weights: Weights) -> bytes:
    """Return the bytes of `adapter_model.safetensors`. Raise ValueError for any type except float32."""
    odd = {name: array.dtype for name, array in weights.items() if array.dtype != np.float32}
    if odd:
        raise ValueError(f"adapter arrays must be float32: {odd}")
    data: bytes = save(as_stored(weights), _METADATA)
    return data


def as_stored(arrays: Weights) -> Weights:
    """Return arrays by name, in the memory layout in which they are read back: products of them then round alike."""
    return {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}


class StoredWeights(dict[str, np.ndarray]):
    """Weights whose `weights_bytes` have a known digest: at 7B and rank 32, making it again takes most of a second.

    Never changed in place: a step, an operator or a copy makes a plain dictionary.
    """

    def __init__(self, arrays: Weights, digest: str) -> None:
        super().__init__(as_stored(arrays))
        self.sha256 = digest


def weights_sha256(weights: Weights) -> str:
    """Return the hexadecimal digest of `weights_bytes`: the `adapter_sha256` of every table."""
    return weights.sha256 if isinstance(weights, StoredWeights) else sha256(weights_bytes(weights)).hexdigest()


def config_bytes(weights: Weights, base_model: str, alpha: float) -> bytes:
    """Return `adapter_config.json` as PEFT reads it: rank and targets from the weights, base by name, keys sorted."""
    config = {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank_of(weights),
        "target_modules": targets_of(weights),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def optimizer_state(adapter: Adapter) -> Weights:
    """Return the arrays of `optimizer.safetensors`: the moments (none for a fresh adapter) and the step count."""
    return as_stored(adapter.moments) | {"step": np.array([adapter.step], np.int64)}


def optimizer_bytes(adapter: Adapter) -> bytes:
    """Return the bytes of `optimizer.safetensors`."""
    data: bytes = save(optimizer_state(adapter), _METADATA)
    return data


def adapter_bytes(adapter: Adapter, base_model: str, alpha: float) -> dict[str, bytes]:
    """Return file name -> bytes of the three files of an adapter."""
    return {
        WEIGHTS_FILE: weights_bytes(adapter.weights),
        CONFIG_FILE: config_bytes(adapter.weights, base_model, alpha),
        OPTIMIZER_FILE: optimizer_bytes(adapter),
    }


def adapter_from(arrays: Weights, state: Weights) -> Adapter:
    """Return the adapter from its weights and its `optimizer_state`. Raise ValueError if they do not match."""
    moments = dict(state)
    step = int(moments.pop("step")[0])
    expected = {f"{moment}.{name}" for moment in ("exp_avg", "exp_avg_sq") for name in arrays}
    if moments and set(moments) != expected:
        raise ValueError(f"optimizer state belongs to other weights: {sorted(set(moments) ^ expected)[:4]}")
    return Adapter(weights=arrays, moments=moments, step=step)


def gradient_bytes(gradient: Gradient) -> bytes:
    """Return a gradient as safetensors: its arrays under the names of the weights, and the tokens of its micro-batches."""
    data: bytes = save(as_stored(gradient.values) | {_BUDGET: np.array([gradient.micro_batch_tokens], np.int64)}, _METADATA)
    return data


def read_gradient(data: bytes) -> Gradient:
    """Return the gradient of its `gradient_bytes`."""
    arrays = load(data)
    budget = int(arrays.pop(_BUDGET)[0])
    return Gradient(arrays, budget)


def rank_of(weights: Weights) -> int:
    """Return the common rank of all A matrices. Raise ValueError if they differ."""
    ranks = {array.shape[0] for name, array in weights.items() if name.endswith("lora_A.weight")}
    if len(ranks) != 1:
        raise ValueError(f"adapter must have exactly one rank, but has {sorted(ranks)}")
    rank: int = ranks.pop()
    return rank


def targets_of(weights: Weights) -> list[str]:
    """Return the sorted names of the adapted modules in the shortest form PEFT understands: the last part of each path."""
    return sorted({name.split(".")[-3] for name in weights})
