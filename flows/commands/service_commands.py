"""Commands that stay: `populora serve`, `worker` and `browse`. Imports stand inside the functions, as in flows/commands/commands.py."""

import os
from argparse import Namespace
from pathlib import Path

from flows import allowed
from flows.commands.commands import absolute
from flows.config import ConfigError


def serve(arguments: Namespace) -> int:
    """`populora serve`: until it is stopped."""
    from flows.prefect_ops import serve as service
    from flows.storage import open_store

    home = arguments.home.absolute() if arguments.home else service.HOME
    if arguments.link:
        print(service.link(home))
        return 0
    store = absolute(arguments.store)
    open_store(store)  # an address that is none is said at once
    functions = _folders(arguments.functions)
    plan = service.Plan(store, port=arguments.port, browser_port=arguments.browser_port, home=home, functions=functions)
    return service.serve(plan)


def worker(arguments: Namespace) -> int:
    """`populora worker`: until it is stopped."""
    from flows.prefect_ops.pool_worker import work

    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(f"--limit {arguments.limit}: at least 1")
    if arguments.functions:
        os.environ[allowed.FOLDERS] = os.pathsep.join(map(str, _folders(arguments.functions)))
    return work(arguments.pool, arguments.limit, arguments.name)


def browse(arguments: Namespace) -> int:
    """`populora browse`: until it is stopped."""
    from flows.browser.serve import serve

    return serve(arguments.store, arguments.host, arguments.port, arguments.allow_host)


def _folders(given: list[Path]) -> tuple[Path, ...]:
    """The folders of --functions. Raises ConfigError for one that is none."""
    for folder in given:
        if not folder.is_dir() or os.pathsep in str(folder):
            raise ConfigError(f"--functions {folder}: there is no such folder")
    return tuple(folder.resolve() for folder in given)
