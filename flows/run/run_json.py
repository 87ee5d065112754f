"""run.json, checked once where it is read, so that whoever lists or measures runs need not doubt its shape."""

from typing import Any

from flows.config import RunConfig
from flows.run.manifest import Json, is_moment, read_json
from flows.settings import Group
from flows.storage import Damaged

GROUPS = tuple(name for name, field in RunConfig.model_fields.items() if isinstance(field.default, Group))
"""The parts of a configuration that are objects."""
MANY = 10**9
"""More generations than a folder has a name for."""


def read_run_json(data: bytes, uri: str) -> Json:
    """Parse a run.json. Raises Damaged, also if a part has another shape than every version wrote, or StoreRefused if too new.

    What it says of the configuration's values beyond that is for whoever uses them: other versions had other settings.
    """
    values = read_json(data, uri)
    wrong = _wrong(values)
    if wrong:
        raise Damaged(uri, f"{wrong} is missing or has an invalid value")
    return values


def _wrong(values: Json) -> str:
    """Return the first part that is not as it must be; empty if all are."""
    config = values.get("config")
    if not isinstance(config, dict):
        return "config"
    for name in ("versions", "clock"):
        if not isinstance(values.get(name, {}), dict):
            return name
    for name in GROUPS:
        if not isinstance(config.get(name, {}), dict):
            return f"config.{name}"
    for name, count in (("generations", config.get("generations", 0)), ("benchmark.every", _every(config))):
        if not isinstance(count, int) or not 0 <= count < MANY:
            return f"config.{name}"
    return "" if is_moment(values.get("clock", {}).get("started", 0.0)) else "clock.started"


def _every(config: Json) -> Any:
    return config.get("benchmark", {}).get("every", 0)
