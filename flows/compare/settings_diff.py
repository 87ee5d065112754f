"""What differs between the configurations and versions of several runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.run.manifest import Json

ABSENT = None
"""The text of a setting that a run does not have."""


@dataclass(frozen=True)
class Difference:
    """One key whose values differ; `values` are texts in the order of the runs, ABSENT where a run has no such key."""

    key: str
    values: tuple[str | None, ...]


@dataclass(frozen=True)
class SettingsDiff:
    """The keys that differ, by name, and how many are equal in all runs."""

    differing: tuple[Difference, ...]
    equal: int


def flat(values: Json, prefix: str = "") -> dict[str, Any]:
    """Return nested groups as one level of dotted keys. An empty group is a value."""
    found: dict[str, Any] = {}
    for key, value in sorted(values.items()):
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def diff(runs: Sequence[Mapping[str, Any]]) -> SettingsDiff:
    """Compare settings by dotted key. Values differ when their JSON differs, so that 1 and 1.0 and true are three values."""
    keys = sorted({key for run in runs for key in run})
    unlike = [key for key in keys if len({_json(run[key]) if key in run else ABSENT for run in runs}) > 1]
    texts = {key: tuple(value_text(run[key]) if key in run else ABSENT for run in runs) for key in unlike}
    return SettingsDiff(tuple(Difference(key, values) for key, values in texts.items()), len(keys) - len(unlike))


def value_text(value: object) -> str:
    """Return a setting's value as text: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
