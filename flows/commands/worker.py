"""`populora worker`: take runs or stages from a work pool."""

import os
from argparse import Namespace

from flows import allowed
from flows.commands.arguments import Add, add_functions, function_folders
from flows.config import ConfigError


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("worker", "Take runs from a work pool of the server at PREFECT_API_URL.", worker)
    parser.add_argument("pool", choices=("cpu", "gpu"), help="cpu: whole runs, and stages that need Docker; gpu: stages on a GPU")
    parser.add_argument("--limit", type=int, help="concurrent runs (default: no limit; gpu: one per GPU)")
    parser.add_argument("--name", help="shown in the UI (default: generated)")
    add_functions(parser)


def worker(arguments: Namespace) -> int:
    """Work until stopped."""
    from flows.prefect_ops.pool_worker import work

    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(f"--limit {arguments.limit}: at least 1")
    if arguments.functions:
        os.environ[allowed.FOLDERS] = os.pathsep.join(map(str, function_folders(arguments.functions)))
    return work(arguments.pool, arguments.limit, arguments.name)
