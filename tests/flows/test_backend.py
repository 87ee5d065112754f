"""The composition root: what it builds for a configuration, and what it does not need to."""

import numpy as np
import pytest

from flows.backend import Backend
from flows.config import ConfigError, load


def test_the_first_adapters_need_the_model_s_shape_and_not_the_model() -> None:
    cold, warm = Backend(load("chaos")), Backend(load("chaos"))
    warm.trainer()
    first, again = cold.initial_adapter(), warm.initial_adapter()
    assert "_lora" in vars(warm) and "_lora" not in vars(cold)
    assert list(first.weights) == list(again.weights)
    assert all(np.array_equal(first.weights[name], again.weights[name]) for name in first.weights)


def test_the_window_of_the_configuration_bounds_what_the_engine_reads_and_writes() -> None:
    backend = Backend(load("chaos", ["engine.window=64"]))
    assert backend.engine({}).window == backend.window == 64
    assert Backend(load("chaos", ["engine.window=9999"])).engine({}).window == 1024


def test_a_shard_without_adapters_is_no_check_of_its_stage() -> None:
    backend = Backend(load("chaos", []))
    backend.check_agreement("solve", {})
    assert backend._agreed == set() and "_lora" not in backend.__dict__


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("['qproj']", r"^model.targets: infra/models/\S+: targets \['qproj'\] name no module; its linear layers are .*q_proj"),
        ("['q_proj', 'lm_head']", "^model.targets: .*target lm_head is the output head, not nn.Linear$"),
    ],
)
def test_targets_that_the_model_has_not_are_refused_before_a_run_begins(targets: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Backend(load("chaos", [f"model.targets={targets}"])).check_run()
