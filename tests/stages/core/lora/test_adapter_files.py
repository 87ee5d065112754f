"""Adapters to bytes and back: equal adapters, equal bytes; nothing of this machine in them."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from stages.core.lora.adapter import Adapter, Weights
from stages.core.lora.adapter_files import (
    CONFIG_FILE,
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    StoredWeights,
    adapter_bytes,
    adapter_from,
    initial_adapter,
    optimizer_state,
    weights_bytes,
    weights_sha256,
)

SHAPES = {"model.layers.0.self_attn.q_proj": (5, 3), "model.layers.0.mlp.down_proj": (3, 7)}


def trained() -> Adapter:
    weights = initial_adapter(SHAPES, 2, 1).weights
    rng = np.random.default_rng(0)
    moments = {
        f"{kind}.{name}": rng.normal(size=array.shape).astype(np.float32)
        for kind in ("exp_avg", "exp_avg_sq")
        for name, array in weights.items()
    }
    return Adapter(weights, moments, 7)


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("adapter", [trained(), initial_adapter(SHAPES, 2, 1)], ids=["trained", "fresh"])
def test_bytes_hold_everything(adapter: Adapter) -> None:
    files = adapter_bytes(adapter, "seed", 2.0)
    back = adapter_from(load(files[WEIGHTS_FILE]), load(files[OPTIMIZER_FILE]))
    assert same(back.weights, adapter.weights) and same(back.moments, adapter.moments) and back.step == adapter.step
    assert adapter_bytes(back, "seed", 2.0) == files


def test_order_and_memory_layout_do_not_matter() -> None:
    weights = trained().weights
    other = {name: np.asfortranarray(array) for name, array in reversed(weights.items())}
    assert weights_bytes(other) == weights_bytes(weights)
    assert weights_sha256(weights | {next(iter(weights)): next(iter(weights.values())) + 1}) != weights_sha256(weights)


def test_stored_weights_keep_the_digest_that_was_verified_and_what_is_made_of_them_has_its_own() -> None:
    stored = StoredWeights(load(weights_bytes(trained().weights)), "verified")
    assert same(stored, trained().weights) and weights_sha256(stored) == "verified"
    truth = weights_sha256(trained().weights)
    for copied in (dict(stored), stored.copy(), stored | {}, {**stored}):
        assert weights_sha256(copied) == truth
    assert weights_sha256(pickle.loads(pickle.dumps(stored))) == "verified"


def test_what_a_process_holds_is_laid_out_as_what_it_would_read() -> None:
    adapter = trained()
    odd = {name: np.asfortranarray(array) for name, array in reversed(adapter.weights.items())}
    moments = {name: np.asfortranarray(array) for name, array in reversed(adapter.moments.items())}
    held = adapter_from(StoredWeights(odd, "known"), optimizer_state(Adapter(odd, moments, adapter.step)))
    files = adapter_bytes(adapter, "seed", 2.0)
    read = adapter_from(load(files[WEIGHTS_FILE]), load(files[OPTIMIZER_FILE]))
    for one, other in ((held.weights, read.weights), (held.moments, read.moments)):
        assert same(one, other) and all(array.flags.c_contiguous for array in one.values())


def test_configuration_is_sorted_and_names_the_base() -> None:
    config = adapter_bytes(trained(), "some/base", 4.0)[CONFIG_FILE]
    values = json.loads(config)
    assert list(values) == sorted(values) and values["target_modules"] == ["down_proj", "q_proj"]
    assert (values["r"], values["lora_alpha"], values["base_model_name_or_path"]) == (2, 4, "some/base")


def test_moments_of_other_weights_and_other_types_are_refused() -> None:
    adapter = trained()
    files = adapter_bytes(adapter, "seed", 2.0)
    first = next(iter(adapter.weights))
    fewer = weights_bytes({name: array for name, array in adapter.weights.items() if name != first})
    with pytest.raises(ValueError, match="other weights"):
        adapter_from(load(fewer), load(files[OPTIMIZER_FILE]))
    with pytest.raises(ValueError, match="float32"):
        weights_bytes({first: adapter.weights[first].astype(np.float64)})


def test_needs_no_torch() -> None:
    modules = "sys, stages.core.lora.adapter_files, stages.core.method.advantages, stages.core.training.packing"
    code = f"import {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[4])
