"""What run.json records of a start: the versions of all that decides a run's numbers, and when and where it began."""

import hashlib
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from flows.backend import Backend
from flows.base_model import hub
from flows.choices import sources
from flows.config import PROJECT, RunConfig
from flows.run.history import KEPT_OUT
from flows.run.leaking import recorded
from flows.suites.own_suites import STORED

PACKAGES = ("prefect", "docker", "torch", "transformers", "peft", "boto3", "pyarrow", "numpy", "safetensors", "pydantic")


def versions(config: RunConfig, known: Mapping[str, Any] | None = None) -> dict[str, object]:
    """Return versions of code, packages, the user's files and a hub model's files (from `known`, an existing run's run.json).

    Equal for equal runs on one machine. On resume only the user's files are compared.
    """
    model = hub.description(config) if known is None else known["versions"].get("model")
    return (
        {
            "packages": {name: version(name) for name in PACKAGES},
            "python": platform.python_version(),
            "code": _git("rev-parse", "HEAD") or version("populora-pipeline"),
            "diff": _git("diff", "HEAD", "--", "flows", "stages", "containers", "infra/runs"),
            "choices": sources(config),
            KEPT_OUT: list(STORED),
        }
        | ({"model": model} if model else {})
        | recorded(config.experiment.leak)
        | prompts(config)
    )


def checked_versions(config: RunConfig, known: Mapping[str, Any] | None = None) -> dict[str, object]:
    """Return `versions` of a configuration all of whose names and functions exist. Raises ConfigError for one that does not."""
    Backend(config).check_names()
    return versions(config, known)


def prompts(config: RunConfig) -> dict[str, str]:
    """Return a digest of the prompt style's source; none for compact and trace, whose wording is a seed model's training data."""
    style = config.model.style
    if style in ("compact", "trace", "auto"):
        return {}
    total = hashlib.sha256()
    for name in (style, "labelled", "fences"):
        total.update((PROJECT / "stages" / "core" / "prompts" / f"{name}.py").read_bytes())
    return {"prompts": total.hexdigest()}


def clock() -> dict[str, object]:
    """Return when and where this process runs. No digest covers this."""
    return {"started": time.time(), "host": socket.gethostname(), "command": sys.argv[:1]}


def _git(*arguments: str) -> str:
    """Return the output of git in the project, empty without a repository."""
    try:
        done = subprocess.run(["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
