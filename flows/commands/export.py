"""`populora export`: an adapter as a PEFT folder or merged model, a run's tasks, or its pages as a static site."""

import sys
from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, add_store, open_run
from flows.config import ConfigError
from flows.guide.completion import complete, complete_runs


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command(
        "export", "Write an adapter as a PEFT folder or merged model, a run's tasks, or its pages as a static site.", export
    )
    complete(parser.add_argument("run", metavar="RUN"), complete_runs)
    parser.add_argument("adapter", metavar="ADAPTER", nargs="?", help="id of the adapter")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?")
    parser.add_argument("--merge", action="store_true", help="a merged model instead of a PEFT folder")
    parser.add_argument("--tasks", type=Path, metavar="DIR", help="the run's valid, deduplicated tasks as Parquet")
    parser.add_argument("--site", type=Path, metavar="DIR", help="the run's pages in the artifact browser, as a static site")
    summary = "largest artifact that the site holds for download, in MB (default: 10; 0: none)"
    parser.add_argument("--files-up-to", type=float, default=10.0, metavar="MB", help=summary)
    add_store(parser, run=False)


def export(arguments: Namespace) -> int:
    """Write the folder and print its path."""
    found = open_run(arguments.store, arguments.run)
    if arguments.tasks is not None:
        from flows.export.tasks import export_tasks

        print(export_tasks(found, arguments.tasks))
        return 0
    if arguments.site is not None:
        from flows.export.site import export_site

        if not arguments.files_up_to >= 0:
            raise ConfigError(f"--files-up-to {arguments.files_up_to}: must be 0 or more")
        print(f"writing every page of {arguments.run}; this may take a minute", file=sys.stderr, flush=True)
        print(export_site(found, arguments.site, int(min(arguments.files_up_to, 1e9) * 1_000_000)))
        return 0
    if arguments.adapter is None or arguments.folder is None:
        raise ConfigError("export: give RUN ADAPTER DIR, RUN --tasks DIR, or RUN --site DIR")
    from flows.export.adapter import export_adapter

    print(export_adapter(found, arguments.adapter, arguments.folder, arguments.merge))
    return 0
