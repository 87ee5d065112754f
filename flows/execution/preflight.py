"""Check that this machine can run a configuration, before anything is written. Faults are reported in one line."""

import subprocess

from flows.backend import Backend
from flows.config import ConfigError, RunConfig
from flows.execution.estimate import stored_bytes
from flows.run.retention import check_room
from flows.storage import open_store


def check(config: RunConfig, store: str, gpu_elsewhere: bool = False, sandbox_elsewhere: bool = False) -> None:
    """Raise ConfigError, SandboxUnavailable or StoreRefused for faults that a run on this machine would meet later."""
    if config.model.device.startswith("cuda") and not gpu_elsewhere and not gpus():
        raise ConfigError(
            f"model.device: {config.model.device} was requested, but no NVIDIA GPU is visible on this machine; "
            "choose auto or cpu, or place these stages in the pool gpu"
        )
    if not gpu_elsewhere and not sandbox_elsewhere:
        backend = Backend(config)
        try:
            backend.check()
        finally:
            backend.close()
    check_room(open_store(store), stored_bytes(config))


def gpus() -> list[str]:
    """Return the NVIDIA GPUs of this machine, as `nvidia-smi` lists them."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if line.startswith("GPU")] if done.returncode == 0 else []
