"""What is said of vLLM's interpreter: its version, and whether it can compile kernels where there is a GPU."""

import sys
from pathlib import Path

import pytest

from flows.gpu_check.machine import _vllm


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in vLLM's place, and no compiler."""
    (tmp_path / "vllm.py").write_text("__version__ = '0.1'\nprint('what an import says')\n")
    (tmp_path / "torch.py").write_text("import os\nclass version:\n    cuda = os.environ.get('CUDA_OF_TORCH')\n")
    monkeypatch.setenv("CUDA_OF_TORCH", "13.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.usefixtures("stand_in")
def test_without_a_compiler_vllm_fails_on_a_gpu_and_not_on_a_processor() -> None:
    assert _vllm(sys.executable, compiles=False).good
    found = _vllm(sys.executable, compiles=True)
    assert found.good is False and found.detail.startswith("0.1 cannot compile its kernels without a C compiler")


@pytest.mark.usefixtures("stand_in")
def test_a_build_for_processors_fails_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM would run on the CPU there, and every other check would pass."""
    monkeypatch.delenv("CUDA_OF_TORCH")
    assert _vllm(sys.executable, compiles=False).good
    found = _vllm(sys.executable, compiles=True)
    assert not found.good and found.detail == "0.1 was built for a CPU and leaves the GPU unused; VLLM_BUILD=cuda make vllm"


def test_an_interpreter_without_vllm_is_named(tmp_path: Path) -> None:
    assert _vllm(sys.executable, compiles=True).detail == f"{sys.executable} cannot import vllm; make vllm"
    assert "make vllm" in _vllm(str(tmp_path / "python"), compiles=False).detail
