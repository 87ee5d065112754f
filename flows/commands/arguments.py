"""What commands share: a parser whose errors are one line, and options for stores, runs, configurations and settings."""

import argparse
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flows.config import ConfigError
from flows.guide.completion import complete, complete_configurations, complete_runs, complete_settings
from flows.near_names import hint, near_or_all
from flows.program import program

if TYPE_CHECKING:
    from flows.run.run import Run

Action = Callable[[Namespace], int]
Add = Callable[[str, str, Action], ArgumentParser]
"""Adds a command by name, summary and action; returns its parser."""
USAGE = 2
"""Exit code for invalid usage or input."""


class OneLineParser(argparse.ArgumentParser):
    """An argparse parser that reports an error in one line instead of a page."""

    def error(self, message: str) -> NoReturn:
        """Print the message and end with `USAGE`."""
        if message.endswith("required: RUN"):
            message += f"; {program()} alone says where the latest run stands"
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, and let optional positionals follow options: `publish RUN ADAPTER --license mit DIR`.

        argparse gives an optional positional its default as soon as an option comes, and has no place for a later word.
        """
        found, rest = super().parse_known_args(args, namespace)
        if rest and not any(word.startswith("-") for word in rest):
            for action in self._get_positional_actions():
                if rest and action.nargs == argparse.OPTIONAL and getattr(found, action.dest) == action.default:
                    setattr(found, action.dest, self._later(action, rest.pop(0)))
        return found, rest

    def _later(self, action: argparse.Action, word: str) -> Any:
        """Return the value of a positional's word as argparse would; a word that it cannot be ends the program."""
        try:
            return self._get_values(action, [word])
        except argparse.ArgumentError as error:
            self.error(str(error))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject a command or choice that does not exist, with the one that may be meant."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"{value!r} is not one of {', '.join(known)}{hint(str(value), known)}")


def add_store(parser: ArgumentParser, run: bool = True) -> None:
    """Add `--store`, and RUN unless the command takes none."""
    default = default_store()
    parser.add_argument("--store", default=default, help=f"folder, file:///folder or s3://bucket/prefix (default: {default})")
    if run:
        complete(parser.add_argument("run", metavar="RUN", help="id of the run"), complete_runs)


def default_store() -> str:
    """Return the store of commands without `--store`."""
    return os.environ.get("POPULORA_STORE") or "runs"


def add_configuration(parser: ArgumentParser, default: str) -> None:
    """Add `-c`, a configuration. Not given, it is None: the command takes the default that the help names."""
    summary = f"TOML file, or a name in infra/runs (default: {default})"
    complete(parser.add_argument("-c", "--config", help=summary), complete_configurations)


def add_settings(parser: ArgumentParser, summary: str, group: str = "") -> None:
    """Add `--set key=value`, which may be repeated. With `group`, keys are those of this group, written without it."""
    action = parser.add_argument("--set", action="append", default=[], metavar="key=value", help=summary)
    complete(action, partial(complete_settings, group=group))


def in_group(settings: list[str], group: str) -> list[str]:
    """Return the settings of `--set` with their group, whether they were written with it or without."""
    return [f"{group}.{setting.strip().removeprefix(f'{group}.')}" for setting in settings]


def add_functions(parser: ArgumentParser, summary: str = "folder whose functions (file.py:function) runs may name") -> None:
    """Add `--functions FOLDER`, which may be repeated."""
    summary = f"{summary} (repeatable; default: none)"
    parser.add_argument("--functions", action="append", default=[], type=Path, metavar="FOLDER", help=summary)


TRUSTED = "folder whose functions and interpreters a stored run may choose"
"""Help of `--functions` where a command reads the configuration of a stored run."""


def function_folders(given: list[Path]) -> tuple[Path, ...]:
    """The folders of `--functions`. Raises ConfigError for a folder that does not exist."""
    for folder in given:
        if not folder.is_dir() or os.pathsep in str(folder):
            raise ConfigError(f"--functions {folder}: there is no such folder")
    return tuple(folder.resolve() for folder in given)


def open_run(store: str, run_id: str) -> "Run":
    """The run in the store. Raises NotStored when there is none."""
    from flows.run.run import Run
    from flows.storage import NotStored, open_store

    where = open_store(store)
    if "://" not in store and not Path(store).is_dir():
        raise NotStored(f"no run {run_id}: there is no folder {store}")
    found = Run(where, run_id)
    if found.history.description() is None:
        raise NotStored(f"no run {run_id} in {store}{near_or_all(run_id, found.store.folders(''))}")
    return found


def store_option(store: str) -> tuple[str, ...]:
    """Return the option that names a store in a command to suggest; nothing for the default store."""
    return () if absolute(store) == absolute(default_store()) else ("--store", store)


def absolute(store: str) -> str:
    """A plain folder as an absolute one, because workers run in another folder. An empty name stays one, which no store has."""
    return store if "://" in store or not store else str(Path(store).absolute())


def report_path(store: str, run_id: str) -> Path:
    """Where a run's report goes unless the user says otherwise: next to the run, or in this folder for a remote store."""
    if "://" not in store:
        return Path(store) / f"{run_id}.html"
    return Path(f"{run_id}-report.html")
