"""`populora compare`: runs side by side."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store, open_run, store_option
from flows.config import ConfigError
from flows.guide.completion import complete, complete_runs
from flows.program import Commands, called

UNSEEN_WIDTH = 200  # columns where the output is no terminal


def add(command: Add) -> None:
    """Add the command and its options."""
    summary = "Runs side by side: configuration, curves, scores paired by problem, costs, best members."
    parser = command("compare", summary, compare)
    about = "ids of two or more runs; the others are compared with the first one"
    complete(parser.add_argument("runs", metavar="RUN", nargs="+", help=about), complete_runs)
    parser.add_argument("--json", action="store_true", help="JSON instead of tables")
    add_store(parser, run=False)


def compare(arguments: Namespace) -> int:
    """Print the comparison."""
    import json
    import sys

    from rich.console import Console
    from rich.text import Text

    from flows.compare.side_by_side import MOST, Comparer, as_json
    from flows.compare.text import blocks
    from flows.monitoring.run_tables import RunTables

    names = list(dict.fromkeys(arguments.runs))
    if not 2 <= len(names) <= MOST:
        raise ConfigError(f"compare: give 2 to {MOST} different runs, not {len(names)}")
    runs = [open_run(arguments.store, name) for name in names]
    found = Comparer(runs[0].store).compare([RunTables(run).look() for run in runs])
    named = Commands("populora" if arguments.json else called(), store_option(arguments.store)).named
    if arguments.json:
        print(json.dumps(as_json(found, named), indent=1, sort_keys=True, ensure_ascii=True))
        return 0
    console = Console(highlight=False, width=None if sys.stdout.isatty() else UNSEEN_WIDTH)
    for block in blocks(found, named):
        console.print(block, soft_wrap=isinstance(block, Text))  # a command in a note is copied: no line may break in it
    return 0
