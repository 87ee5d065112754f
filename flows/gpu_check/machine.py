"""The machine: packages, device, the rate of its products, and a meter of the memory in use."""

import gc
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch

from flows.cards import cards
from flows.config import PROJECT, RunConfig
from flows.gpu_check.finding import CheckFinding
from flows.plan.decoder_shape import shape_of
from flows.plan.memory_plan import lacking

GIB = 2**30
SIDE = {"cuda": 8192, "cpu": 2048}  # of the square matrices whose product is timed
SECONDS = 1.0
PERIOD = 0.1
_MISSING = (
    "import os, shutil, sysconfig; "
    "header = os.path.join(sysconfig.get_paths()['include'], 'Python.h'); "
    "compiler = os.environ.get('CC') or shutil.which('gcc') or shutil.which('clang'); "
    "print('missing:', ' and '.join([*([] if compiler else ['a C compiler']), *([] if os.path.isfile(header) else [header])]))"
)
"""Python that prints what Triton would not find."""
OTHERS = 2 * GIB  # more than this process's own context and what the driver reserves


def device_of(configured: str) -> str:
    """Return the device that a configuration's `model.device` means here."""
    if configured != "auto":
        return configured
    return "cuda" if torch.cuda.is_available() else "cpu"


def examine(config: RunConfig, device: str) -> Iterator[CheckFinding]:
    """Yield what is installed and what the device is."""
    packages = {name: version(name) for name in ("torch", "transformers", "peft")} | {"cuda": torch.version.cuda or "none"}
    yield CheckFinding("packages", None, ", ".join(f"{name} {text}" for name, text in packages.items()), dict(packages))
    if config.engine.kind == "vllm":
        yield _vllm(config.engine.python, device.startswith("cuda"))
    yield _device(device, config.model.device)


def unusable(config: RunConfig, device: str, model_path: str) -> str:
    """Return why this configuration's engine cannot be checked on this machine; empty if it can."""
    if config.engine.kind == "vllm" and not _vllm(config.engine.python, device.startswith("cuda")).good:
        return "vLLM is not installed; make vllm"
    shape = shape_of(model_path)
    if shape is None or not device.startswith("cuda"):
        return ""
    return lacking(config, shape, config.adapters, float(torch.cuda.mem_get_info(device)[0]))


def product_rate(device: str, dtype: str) -> float:
    """Return the floating-point operations a second of a large square product: this machine's peak, as measured."""
    side = SIDE["cuda" if device.startswith("cuda") else "cpu"]
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    torch.mm(left, right)
    synchronize(device)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        torch.mm(left, right)
        synchronize(device)
        done += 1
    return 2 * side**3 * done / (time.perf_counter() - began)


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _vllm(python: str, compiles: bool) -> CheckFinding:
    """Check vLLM's interpreter. On a GPU, vLLM compiles kernels with the machine's compiler and Python's headers."""
    command = [python, "-c", f"import vllm, torch; print(vllm.__version__); print(torch.version.cuda); {_MISSING}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=PROJECT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckFinding("vLLM", False, f"{python}: {error}; make vllm")
    said = done.stdout.strip().splitlines()
    if done.returncode or len(said) < 3:
        return CheckFinding("vLLM", False, f"{python} cannot import vllm; make vllm")
    release, cuda, missing = said[-3], said[-2], said[-1].removeprefix("missing:").strip()
    if compiles and cuda == "None":
        return CheckFinding("vLLM", False, f"{release} was built for a CPU and leaves the GPU unused; VLLM_BUILD=cuda make vllm")
    if compiles and missing:
        return CheckFinding(
            "vLLM", False, f"{release} cannot compile its kernels without {missing}; make vllm says what to install"
        )
    return CheckFinding("vLLM", True, release, {"version": release})


def _device(device: str, configured: str) -> CheckFinding:
    if not device.startswith("cuda"):
        unused = len(cards()) if configured != "cpu" else 0
        detail = f"the CPU, {torch.get_num_threads()} threads"
        if unused:
            detail += f"; this torch ({torch.__version__}) cannot use the machine's {unused} NVIDIA GPUs: make setup"
        return CheckFinding("device", False if unused else None, detail)
    known = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    figures = {"name": known.name, "capability": f"{known.major}.{known.minor}", "bytes": total, "free_bytes": free}
    others = total - free > OTHERS
    detail = f"{known.name}, {total / GIB:.0f} GiB, compute capability {known.major}.{known.minor}"
    if others:
        detail += f"; other processes hold {(total - free) / GIB:.1f} GiB"
    return CheckFinding("device", not others, detail, figures)


def release(device: str) -> None:
    """Give back the memory of what is no longer referred to: another process needs it next."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


class MemoryMeter:
    """The largest use of the device since it was made: of the whole card, or of this process on a CPU."""

    def __init__(self, device: str) -> None:
        self._device, self._before = device, _used(device)
        self.peak = 0.0
        """Bytes beyond what was used before."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure inside the block; `peak` is the block's own."""
        self.peak, stop = 0.0, threading.Event()

        def look() -> None:
            while True:
                self.peak = max(self.peak, _used(self._device) - self._before)
                if stop.wait(PERIOD):
                    return

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.peak = max(self.peak, _used(self._device) - self._before)


def _used(device: str) -> float:
    """Return the bytes in use: of the card, by all processes; on a CPU, of this process (0 where the system does not say)."""
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        return float(total - free)
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return float(line.split()[1]) * 1024
