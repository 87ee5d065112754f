"""What a setting means, as text for `populora explain`: its schema, the shipped configurations, and the pages of the method."""

import re
import textwrap
from collections.abc import Iterator

from flows.config import PROJECT, ConfigError, configurations, dump, load, unknown_key
from flows.guide.setting_list import Setting, as_toml, groups, settings, value_at

MAP, METHOD = "docs/map.md", "docs/method.md"
WIDTH, INDENT = 118, 12


def explain(key: str) -> str:
    """Return the explanation of a setting or of a group of settings. Raises ConfigError for any other key."""
    if key in settings():
        return _explained(settings()[key])
    if key in groups():
        own = [setting for name, setting in settings().items() if name.startswith(f"{key}.")]
        return "\n".join([f"[{key}] {groups()[key]}", *(_line(setting) for setting in own)])
    raise ConfigError(unknown_key(key))


def overview() -> str:
    """Return one line for each setting."""
    return "\n".join(map(_line, settings().values()))


def _line(setting: Setting) -> str:
    return f"{setting.key:32} {setting.title} ({as_toml(setting.default)})"


def _explained(setting: Setting) -> str:
    group = setting.key.rpartition(".")[0]
    facts = [
        ("meaning", setting.description),
        ("type", setting.kind),
        ("default", as_toml(setting.default)),
        ("elsewhere", _elsewhere(setting)),
        *(("why", f"{why} ({METHOD})") for why in _reasons(setting.key)),
        *(("rule", rule) for rule in _rules(setting.key)),
        ("group", f"[{group}] {groups()[group]}" if group else ""),
    ]
    lines = [
        textwrap.fill(text, WIDTH, initial_indent=f"{name:{INDENT}}", subsequent_indent=" " * INDENT)
        for name, text in facts
        if text
    ]
    return "\n".join([f"{setting.key}: {setting.title}", *lines])


def _elsewhere(setting: Setting) -> str:
    """Return the other values that shipped configurations have, with their names."""
    found: dict[str, list[str]] = {}
    for name in configurations():
        value = value_at(dump(load(name)), setting.key)
        if value != setting.default:
            found.setdefault(as_toml(value), []).append(name)
    return "; ".join(f"{value} in {', '.join(names)}" for value, names in found.items())


def _reasons(key: str) -> Iterator[str]:
    """Yield why values differ on purpose, as the table of the method says."""
    for _, cells in _rows(METHOD):
        if cells[0] == f"`{key}`":
            yield _plain(cells[-1])


def _rules(key: str) -> Iterator[str]:
    """Yield the rules that the setting changes, each with the file and symbol that implement it, and its section."""
    for section, cells in _rows(MAP):
        if len(cells) == 3 and f"`{key}`" in cells[2].split(", "):
            yield f"{_plain(cells[0])}: {_plain(cells[1])} ({MAP}, {section})"


def _rows(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the tables of a page, each with its section; none where the documentation is not installed."""
    file, section = PROJECT / page, ""
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| "):
            yield section, [cell.strip() for cell in line.strip("| ").split(" | ")]


def _plain(text: str) -> str:
    """Return Markdown without its marks for code and links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")
