"""Named choices of a configuration: a name that the project knows, or `path/to/file.py:function` of the user's."""

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flows import allowed
from flows.config import ConfigError, RunConfig


def choose(key: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The function that `name` means for the configuration key `key`. Raises ConfigError naming the key."""
    if name in known:
        return known[name]
    if ".py:" not in name:
        raise ConfigError(f"{key}: {name!r} is none of {', '.join(sorted(known))}, nor path/to/file.py:function")
    path, _, function = name.rpartition(":")
    allowed.check_function(key, path)
    if not Path(path).is_file():
        raise ConfigError(f"{key}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"choice_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chosen = getattr(module, function, None)
    if not callable(chosen):
        raise ConfigError(f"{key}: {path} has no function {function}")
    return chosen


def sources(config: RunConfig) -> dict[str, str]:
    """sha256 of every user file that the configuration names, by `file.py:function`, for run.json."""
    evolution = config.evolution
    names = [
        config.population.matchmaker,
        config.reward.rule,
        *config.reward.gates,
        config.learning.estimator,
        *evolution.mutations,
        *evolution.crossovers,
    ]
    return {name: _sha256(Path(name.rpartition(":")[0])) for name in names if ".py:" in name}


def _sha256(path: Path) -> str:
    allowed.check_function("the configuration", str(path))
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    return hashlib.sha256(path.read_bytes()).hexdigest()
