"""Every setting of a run as data: title, meaning, type, limits and default, read from the schema of RunConfig."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from flows.config import RunConfig, differences, dump

WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
LIMITS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most", "exclusiveMaximum": "less than"}


@dataclass(frozen=True)
class Setting:
    """One setting. `choices` are its values where it has a list of them."""

    key: str
    title: str
    description: str
    kind: str
    default: Any
    choices: tuple[Any, ...] = ()

    @property
    def meaning(self) -> str:
        """Title and description as sentences."""
        return f"{self.title}. {self.description}".rstrip()


@cache
def settings() -> Mapping[str, Setting]:
    """Return every setting by its dotted key, in the order of a configuration file."""
    schema = RunConfig.model_json_schema()
    found = {}
    for name, about in schema["properties"].items():
        group = _group(schema, about)
        fields = {name: about} if group is None else {f"{name}.{field}": one for field, one in group["properties"].items()}
        found.update({key: _setting(key, field) for key, field in fields.items()})
    return found


@cache
def groups() -> Mapping[str, str]:
    """Return what each group of settings is about, by its name."""
    schema = RunConfig.model_json_schema()
    found = {name: _group(schema, about) for name, about in schema["properties"].items()}
    return {name: " ".join(group["description"].split()) for name, group in found.items() if group is not None}


def as_toml(value: object) -> str:
    """Return a setting's value as a configuration file has it; for these types TOML and JSON agree."""
    return json.dumps(value, ensure_ascii=False)


def changed_settings(config: RunConfig) -> list[str]:
    """Return a heading and one line for each setting that is not the default, as `--set` takes it."""
    values = dump(config)
    changed = differences(dump(RunConfig()), values)
    heading = "settings         the defaults (populora explain)" + (", except" if changed else "")
    return [heading, *(f"  {key}={as_toml(value_at(values, key))}" for key in settings() if key in changed)]


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key in a dumped configuration."""
    group, _, name = key.rpartition(".")
    return (values[group] if group else values)[name]


def _group(schema: Mapping[str, Any], about: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of a group, None for a single setting."""
    return schema["$defs"][about["$ref"].rpartition("/")[2]] if "$ref" in about else None


def _setting(key: str, about: Mapping[str, Any]) -> Setting:
    choices = tuple(choice for one in about.get("anyOf", [about]) for choice in _choices(one))
    return Setting(key, about["title"], about.get("description", ""), _kind(about), about["default"], choices)


def _choices(about: Mapping[str, Any]) -> Sequence[Any]:
    return about.get("enum", (False, True) if about.get("type") == "boolean" else ())


def _kind(about: Mapping[str, Any]) -> str:
    if "anyOf" in about:
        return " or ".join(_kind(one) for one in about["anyOf"])
    if "const" in about:
        return as_toml(about["const"])
    if "enum" in about:
        return f"one of {', '.join(as_toml(value) for value in about['enum'])}"
    if "prefixItems" in about:
        kinds = [_kind(item) for item in about["prefixItems"]]
        alike = f"each: {kinds[0]}" if len(set(kinds)) == 1 else ", ".join(kinds)
        return f"list of {len(kinds)}; {alike}"
    if about["type"] == "array":
        return f"list; each: {_kind(about['items'])}"
    limits = [f"{words} {_number(about[limit])}" for limit, words in LIMITS.items() if limit in about]
    return ", ".join([WORDS[about["type"]], *limits])


def _number(value: float) -> str:
    """Return a limit without a fraction that is zero."""
    return str(int(value)) if value == int(value) else str(value)
