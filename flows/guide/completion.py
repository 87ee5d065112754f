"""What a shell offers at Tab: keys of `--set` and their values, configurations, runs and suites.

argcomplete calls these functions with what has been typed of a word, and leaves out what does not begin with it. The commands
import this module, so it imports nothing slow.
"""

from argparse import Action, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from argcomplete.completers import FilesCompleter

from flows.config import configurations, setting_keys
from flows.guide.setting_list import as_toml, settings
from flows.store.file_store import FileStore
from flows.store.names import RUN_ID

Completer = Callable[..., Iterable[str]]


def complete(action: Action, completer: Completer) -> None:
    """Let shells complete the values of this option or argument with `completer`, where argcomplete looks for it."""
    action.completer = completer  # type: ignore[attr-defined]


def complete_settings(prefix: str, group: str = "", **_: Any) -> list[str]:
    """Return `key=` for every setting, or `key=value` for every value of a setting that has a list of them."""
    start = f"{group}." if group else ""
    key, equals, _text = prefix.partition("=")
    if not equals:
        return [f"{one.removeprefix(start)}=" for one in setting_keys() if one.startswith(start)]
    known = settings().get(start + key)
    values = known.choices if known is not None else ()
    return [f"{key}={value if isinstance(value, str) else as_toml(value)}" for value in values]


def complete_keys(**_: Any) -> list[str]:
    """Return every setting and every group of settings."""
    return setting_keys(groups=True)


def complete_configurations(prefix: str, **more: Any) -> list[str]:
    """Return the shipped configurations, and TOML files."""
    return [*configurations(), *FilesCompleter(("toml",))(prefix=prefix, **more)]


def complete_runs(parsed_args: Namespace, **_: Any) -> list[str]:
    """Return the runs of a store that is a folder. A bucket is not asked: it may take seconds."""
    url = str(getattr(parsed_args, "store", ""))
    if not url or "://" in url:
        return []
    store = FileStore(Path(url))
    return [name for name in store.folders("") if RUN_ID.fullmatch(name) and store.exists(f"{name}/run.json")]


def complete_suites(**_: Any) -> list[str]:
    """Return the names of all suites."""
    from flows.suites.suite_data import suite_names  # noqa: PLC0415 (it loads pyarrow, and only one option needs it)

    return suite_names()
