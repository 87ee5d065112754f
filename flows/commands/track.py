"""`populora track`, as the command line calls it; libraries load when it runs."""

from argparse import Namespace

from flows.run.run import Run
from flows.storage import open_store


def track(arguments: Namespace) -> int:
    """`populora track`."""
    from flows.monitoring.tracking import track as send  # noqa: PLC0415 (no other command waits for it)

    sent = send(Run(open_store(arguments.store), arguments.run), arguments.to, arguments.follow)
    print(f"{sent} generations sent to {arguments.to}")
    return 0
