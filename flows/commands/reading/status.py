"""`populora status`: where a run stands. `populora` alone: this machine, and where the run with the latest activity stands."""

from argparse import Namespace
from functools import partial

from flows.commands.arguments import Add, add_store, default_store, open_run, report_path, store_option
from flows.program import Commands, called, program


def add(command: Add) -> None:
    """Add the command and its options."""
    add_store(command("status", "Where a run stands.", status))


def status(arguments: Namespace) -> int:
    """Print what is done, what is next, and the newest numbers."""
    from flows.monitoring.status import status as text

    print(Commands(called(), store_option(arguments.store)).named(text(open_run(arguments.store, arguments.run))))
    return 0


def standing(arguments: Namespace) -> int:
    """Print whether this machine is set up, what its store holds, and the next sensible command."""
    from flows.commands.doctor import essentials
    from flows.guide.standing import standing as at_store

    missing = [finding for finding in essentials() if not finding.good]
    store = default_store()
    found = at_store(store, partial(report_path, store))
    machine = "; ".join(f"{finding.name}: {finding.detail}" for finding in missing)
    following = missing[0].mend if missing else program(*found.following)
    print(f"machine    {f'not ready: {machine}' if missing else 'ready'}", *found.lines, f"next       {following}", sep="\n")
    return 0
