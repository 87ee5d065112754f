"""How much of a gradient is signal: known gradients, and a run's own."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flows.config import PROJECT
from tests.support.small_run import small_run

SETTINGS = (
    "generations=1",
    "model.rank=4",
    "seeding.rows=6",
    "propose.groups=1",
    "solve.attempts=4",
    "benchmark.every=0",
    "benchmark.start=false",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("gradient_signal", PROJECT / "infra/experiments/gradient_signal.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_signal_is_told_from_noise(script: ModuleType) -> None:
    rng = np.random.default_rng(0)
    noise_KP = rng.normal(size=(64, 4096))
    ratio, cosine = script.signal_and_noise(noise_KP)
    assert abs(ratio) < 0.002 and abs(cosine) < 0.05
    direction_P = rng.normal(size=4096)
    ratio, cosine = script.signal_and_noise(noise_KP + 0.5 * direction_P)
    assert ratio == pytest.approx(0.25, rel=0.1) and cosine > 0.85


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_the_gradients_of_parts_are_compared(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run(tmp_path, "reasoner", SETTINGS)
    script.main(str(tmp_path), "r", "0", "4")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1].strip() for line in lines] == ["as trained", "outcome alone", "right answers alone"]
    ratios = [float(line.split("noise")[1].split()[0]) for line in lines]
    assert ratios[0] == pytest.approx(ratios[1], abs=2e-3), "the run rewards the outcome alone"
    assert all(np.isfinite(ratios))
