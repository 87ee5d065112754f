"""`populora watch`: follow a run at work in the terminal until it ends."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store, open_run, store_option


def add(command: Add) -> None:
    """Add the command and its options."""
    add_store(command("watch", "Follow a run until it ends: stage, speed, time left, newest tasks, alarms.", watch))


def watch(arguments: Namespace) -> int:
    """Show the run until it ends: 0 if it is finished, 1 if no process works on it any more, 130 after Ctrl-C."""
    from rich.console import Console

    from flows.monitoring.live import Follower
    from flows.monitoring.run_tables import RunTables
    from flows.monitoring.watching import watch as follow
    from flows.program import Commands, called

    run = open_run(arguments.store, arguments.run)
    named = Commands(called(), store_option(arguments.store)).named
    try:
        return follow(Follower(run, RunTables(run)).look, Console(), named=named)
    except KeyboardInterrupt:
        return 130  # quietly: whoever only watches has interrupted nothing
