"""`populora export`: an adapter as a PEFT folder or merged model, a run's tasks, or its pages as a static site."""

import sys
from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, add_store, open_run
from flows.config import ConfigError
from flows.guide.completion import complete, complete_runs

LARGEST_MB = 10.0  # of an artifact for download on a site


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command(
        "export", "Write an adapter as a PEFT folder or merged model, a run's tasks, or its pages as a static site.", export
    )
    complete(parser.add_argument("run", metavar="RUN", help="id of the run"), complete_runs)
    parser.add_argument("adapter", metavar="ADAPTER", nargs="?", help="id of the adapter; `populora inspect RUN` lists them")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="folder to write; it must be new or empty")
    parser.add_argument("--merge", action="store_true", help="a merged model instead of a PEFT folder")
    summary = "number format of a merged model (default: the wider of the run's model.dtype and the checkpoint's)"
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help=summary)
    parser.add_argument("--tasks", type=Path, metavar="DIR", help="the run's valid, deduplicated tasks as Parquet")
    parser.add_argument("--site", type=Path, metavar="DIR", help="the run's pages in the artifact browser, as a static site")
    summary = f"largest artifact that the site holds for download, in MB (default: {LARGEST_MB:g}; 0: none)"
    parser.add_argument("--files-up-to", type=float, metavar="MB", help=summary)
    add_store(parser, run=False)


def export(arguments: Namespace) -> int:
    """Write the folder and print its path."""
    _check_one_form(arguments)
    found = open_run(arguments.store, arguments.run)
    if arguments.tasks is not None:
        from flows.export.tasks import export_tasks

        print(export_tasks(found, arguments.tasks))
        return 0
    if arguments.site is not None:
        from flows.export.site import export_site

        largest = LARGEST_MB if arguments.files_up_to is None else arguments.files_up_to
        if not largest >= 0:
            raise ConfigError(f"--files-up-to {largest}: must be 0 or more")
        print(f"writing every page of {arguments.run}; this may take a minute", file=sys.stderr, flush=True)
        print(export_site(found, arguments.site, int(min(largest, 1e9) * 1_000_000)))
        return 0
    from flows.export.adapter import export_adapter

    print(export_adapter(found, arguments.adapter, arguments.folder, arguments.merge, dtype=arguments.dtype or ""))
    return 0


def _check_one_form(arguments: Namespace) -> None:
    """Raise ConfigError unless exactly one thing is to be written, with options of its own."""
    adapter = arguments.adapter is not None
    if sum((adapter, arguments.tasks is not None, arguments.site is not None)) != 1 or adapter != (arguments.folder is not None):
        raise ConfigError("export: give one of RUN ADAPTER DIR, RUN --tasks DIR, and RUN --site DIR")
    if arguments.merge and not adapter:
        raise ConfigError("export: --merge needs an ADAPTER and a DIR")
    if arguments.dtype and not arguments.merge:
        raise ConfigError("export: --dtype needs --merge")
    if arguments.files_up_to is not None and arguments.site is None:
        raise ConfigError("export: --files-up-to needs --site")
