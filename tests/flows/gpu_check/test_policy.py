"""Engine and trainer on the seed model: all checks pass, and an engine that loses its adapters fails them."""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from flows.backend import Backend
from flows.config import load
from flows.gpu_check import strong_adapters, update_pace
from flows.gpu_check.machine import MemoryMeter
from flows.gpu_check.policy import PolicyCheck
from stages.core.engines.protocol import Engine
from stages.core.lora.adapter import Adapter
from stages.core.training.protocol import Update

SHORT = ["solve.max_new_tokens=12", "population.teachers=1", "population.students=2"]
CURRICULUM = "propose.curriculum=infra/experiments/deductions.py:by_success_variance"


class Forgetful(Backend):
    """Serves untrained adapters under the names that it is given."""

    def engine(self, adapters: Mapping[str, Adapter]) -> Engine:
        return super().engine(dict.fromkeys(adapters, self.initial_adapter()))


def findings(backend: Backend, device: str = "cpu") -> Iterator[tuple[str, bool | None]]:
    with closing(backend):
        for finding in PolicyCheck(backend, device, MemoryMeter(device)).examine():
            yield finding.name, finding.good


def test_the_seed_model_passes() -> None:
    assert list(findings(Backend(load("smoke", SHORT)))) == [
        ("engine start", None),
        ("memory start", None),
        ("rollout", True),
        ("memory rollout", None),
        ("drift at start", True),
        ("a wrong adapter shows", True),
        ("update", True),
        ("memory update", None),
        ("operators", True),
        ("memory evolve", None),
        ("drift after wake", True),
    ]


@pytest.mark.parametrize("scale", [0.0005, 3.0])
def test_adapters_of_any_strength_become_strong_enough_to_show(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strong_adapters, "SCALE", scale)
    with closing(Backend(load("smoke", SHORT))) as backend:
        found = {one.name: one for one in PolicyCheck(backend, "cpu", MemoryMeter("cpu")).examine()}
    least, most = strong_adapters.ENOUGH
    assert least <= found["a wrong adapter shows"].figures["mean"] <= most and found["drift at start"].good


@pytest.mark.parametrize("unit", [1e-4, 0.3, 40.0, 1e6])
@pytest.mark.parametrize("power", [0.5, 1, 3])
def test_strength_is_found_whatever_the_effect_of_b(unit: float, power: float) -> None:
    def effect_of(adapters: Mapping[str, Adapter]) -> float:
        size = unit * float(adapters["a0"].weights["lora_B"][0, 0])
        return math.inf if size > 1e4 else size**power

    first = Adapter({"lora_B": np.ones((1, 1), np.float32)}, {}, 0)
    found = strong_adapters.strong_enough({"a0": first, "a1": first}, effect_of)
    least, most = strong_adapters.ENOUGH
    assert least <= effect_of(found) <= most


def test_one_adapter_alone_is_examined_without_a_neighbour() -> None:
    found = dict(findings(Backend(load("smoke", [*SHORT, "population.teachers=0", "population.students=1", CURRICULUM]))))
    assert found["a wrong adapter shows"] is None
    assert (found["drift at start"], found["update"], found["drift after wake"]) == (True, True, True)


def test_an_engine_that_loses_its_adapters_fails() -> None:
    found = dict(findings(Forgetful(load("smoke", SHORT))))
    assert (found["drift at start"], found["drift after wake"]) == (False, False)


def test_a_longer_update_tells_the_pace_from_what_every_update_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(update_pace.REPEATS, "cpu", 3)
    with closing(Backend(load("smoke", SHORT))) as backend:
        found = {one.name: one for one in PolicyCheck(backend, "cpu", MemoryMeter("cpu")).examine()}
    update, rollout = found["update"], found["rollout"]
    assert rollout.figures["planned_tokens_per_s"] > 0 and " for two CPU cores, at full length)" in rollout.detail
    assert update.good and "in what a longer one adds" in update.detail
    assert update.figures["further_tokens"] == 2 * update.figures["tokens"]
    assert update.figures["planned_tokens_per_s"] > 0 and " (the plan says " in update.detail


def test_a_longer_update_that_takes_no_longer_tells_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(update_pace.REPEATS, "cpu", 2)
    monkeypatch.setattr(update_pace, "TELLING", math.inf)
    with closing(Backend(load("smoke", SHORT))) as backend:
        [update] = [one for one in PolicyCheck(backend, "cpu", MemoryMeter("cpu")).examine() if one.name == "update"]
    assert update.good and "too few to tell" in update.detail
    assert "share_of_peak" not in update.figures


def test_a_longer_update_that_did_not_fit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(update_pace.REPEATS, "cpu", 2)
    backend = Backend(load("smoke", SHORT))
    trainer = backend.trainer()
    updated, shortest = trainer.update, math.inf

    def halved(adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
        nonlocal shortest
        shortest = min(shortest, len(samples))
        found, width = updated(adapters, samples), backend.config.learning.micro_batch_tokens
        share = 0.5 if len(samples) > shortest else 1.0
        return {name: replace(one, metrics=one.metrics | {"micro_batch_tokens": share * width}) for name, one in found.items()}

    trainer.update = halved  # type: ignore[method-assign]
    assert dict(findings(backend))["update"] is False


def test_an_update_that_did_not_fit_fails() -> None:
    backend = Backend(load("smoke", SHORT))
    trainer = backend.trainer()
    updated = trainer.update

    def halved(adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
        found = updated(adapters, samples)
        width = backend.config.learning.micro_batch_tokens / 2
        return {name: replace(one, metrics=one.metrics | {"micro_batch_tokens": width}) for name, one in found.items()}

    trainer.update = halved  # type: ignore[method-assign]
    assert dict(findings(backend))["update"] is False


@pytest.mark.gpu
def test_the_seed_model_passes_on_a_gpu() -> None:
    found = list(findings(Backend(load("smoke", [*SHORT, "model.device=cuda", "model.dtype=bfloat16"])), "cuda"))
    assert [name for name, good in found if good is False] == []
