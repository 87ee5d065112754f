"""`populora status`: where a run stands."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store, open_run


def add(command: Add) -> None:
    """Add the command and its options."""
    add_store(command("status", "Where a run stands.", status))


def status(arguments: Namespace) -> int:
    """Print what is done, what is next, and the newest numbers."""
    from flows.monitoring.status import status as text

    print(text(open_run(arguments.store, arguments.run)))
    return 0
