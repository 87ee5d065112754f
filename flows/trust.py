"""Which code a stored run may make this machine execute: functions, vLLM's interpreter, programs without a sandbox's walls.

Whoever shares a run wrote its run.json, digests included. What is read there is used only if it belongs to the project, lies in
a folder that the user names now, or was named by the user on this machine before, with the same contents. The owner of the
stored files says nothing: whoever unpacks an archive owns what was in it.
"""

import hashlib
import os
import shlex
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flows import allowed
from flows.choices import user_files
from flows.config import PROJECT, ConfigError, RunConfig
from flows.run.run import Run

SHIPPED = PROJECT / "infra"
PYTHON, SANDBOX = "engine.python", "sandbox.kind"
WITHOUT_WALLS = f"{SANDBOX}=local"
"""The setting that lets model-written programs run without a sandbox. It is remembered for one run at a time."""


@dataclass(frozen=True)
class Refusal:
    """A choice of a stored configuration that is not used: its key, its value, and one line that says what would allow it."""

    key: str
    name: str
    message: str


@dataclass(frozen=True)
class _Choice:
    """A choice that decides what is executed. `mark` identifies it on this machine; None: its file does not exist."""

    key: str
    name: str
    mark: str | None
    known: bool
    remedy: str


def refusals(config: RunConfig, run: Run, folders: Iterable[Path] = ()) -> list[Refusal]:
    """Return what may not be used of the configuration that is stored with `run`. `folders` are trusted, too."""
    trusted = [*folders, *allowed.folders()]
    return [
        Refusal(one.key, one.name, _message(one))
        for one in _choices(config, run, trusted)
        if not one.known and not _is_recorded(one.mark)
    ]


def check(
    config: RunConfig,
    run: Run,
    folders: Iterable[Path] = (),
    settings: Iterable[str] = (),
    keys: Collection[str] | None = None,
) -> None:
    """Raise ConfigError if the configuration that is stored with `run` chooses what may not be used.

    `settings` (key=value) are the user's own, which have been applied to it. With `keys`, only these are looked at.
    """
    own = _keys(settings)
    for one in refusals(config, run, folders):
        if one.key not in own and (keys is None or one.key in keys):
            raise ConfigError(one.message)


def remember(config: RunConfig, run: Run, settings: Iterable[str] | None = None) -> None:
    """Record that the user has named what the configuration chooses, or only what `settings` (key=value) choose.

    Where nothing can be recorded, the user is asked again.
    """
    own = None if settings is None else _keys(settings)
    for one in _choices(config, run, ()):
        if not one.known and one.mark is not None and (own is None or one.key in own):
            with suppress(OSError):
                place = _record(one.mark)
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                place.write_text(f"{one.mark}\n", encoding="utf-8")


def _choices(config: RunConfig, run: Run, trusted: Iterable[Path]) -> Iterator[_Choice]:
    folders = [SHIPPED, *trusted]
    for key, name in user_files(config):
        path = (PROJECT / name.rpartition(":")[0]).resolve()
        yield _Choice(key, name, _mark_of_file(path), allowed.is_inside(path, folders), _functions(path.parent))
    if config.engine.kind == "vllm":
        python = config.engine.python
        place = allowed.place_of_interpreter(python)
        known = allowed.is_known_interpreter(python, trusted)
        yield _Choice(PYTHON, python, f"interpreter {place}", known, _functions(place.parent))
    if config.sandbox.kind == "local":
        mark = f"{WITHOUT_WALLS} {run.store.url}/{run.run_id}"
        yield _Choice(SANDBOX, config.sandbox.kind, mark, False, f"--set {WITHOUT_WALLS}")


def _mark_of_file(path: Path) -> str | None:
    try:
        return f"function {path} {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else None
    except OSError:
        return None


def _functions(folder: Path) -> str:
    return f"--functions {shlex.quote(str(folder))}"


def _message(one: _Choice) -> str:
    """Return the line about a choice. Its text comes from elsewhere: what a terminal would obey is left out."""
    said = f"{one.key}: {one.name} was chosen by the stored run, not by you; if you trust it, add {one.remedy}"
    return "".join(letter if letter.isprintable() else "?" for letter in said)


def _keys(settings: Iterable[str]) -> set[str]:
    return {setting.partition("=")[0].strip() for setting in settings}


def _is_recorded(mark: str | None) -> bool:
    return mark is not None and _record(mark).is_file()


def _record(mark: str) -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "populora" / "named" / hashlib.sha256(mark.encode()).hexdigest()
