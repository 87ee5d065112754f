"""`populora export`: an adapter as a PEFT folder or merged model, or a run's tasks."""

from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, add_store, open_run
from flows.config import ConfigError
from flows.guide.completion import complete, complete_runs


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("export", "Write an adapter as a PEFT folder or merged model, or a run's tasks.", export)
    complete(parser.add_argument("run", metavar="RUN"), complete_runs)
    parser.add_argument("adapter", metavar="ADAPTER", nargs="?", help="id of the adapter")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?")
    parser.add_argument("--merge", action="store_true", help="a merged model instead of a PEFT folder")
    parser.add_argument("--tasks", type=Path, metavar="DIR", help="the run's valid, deduplicated tasks as Parquet")
    add_store(parser, run=False)


def export(arguments: Namespace) -> int:
    """Write the folder and print its path."""
    found = open_run(arguments.store, arguments.run)
    if arguments.tasks is not None:
        from flows.export.tasks import export_tasks

        print(export_tasks(found, arguments.tasks))
        return 0
    if arguments.adapter is None or arguments.folder is None:
        raise ConfigError("export: give RUN ADAPTER DIR, or RUN --tasks DIR")
    from flows.export.adapter import export_adapter

    print(export_adapter(found, arguments.adapter, arguments.folder, arguments.merge))
    return 0
