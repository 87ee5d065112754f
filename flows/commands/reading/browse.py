"""`populora browse`: read-only pages of every run in a store."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store, store_option
from flows.program import Commands, called


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("browse", "Serve read-only pages of every run in a store.", browse)
    parser.add_argument("--port", type=int, default=8750)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; beyond this machine, put a proxy with a login in front of it"
    )
    summary = "a further host name to answer to, such as that of a proxy in front of it (repeatable)"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=summary)
    add_store(parser, run=False)


def browse(arguments: Namespace) -> int:
    """Serve until stopped."""
    from flows.browser.serve import serve

    commands = Commands(called(), store_option(arguments.store))
    return serve(arguments.store, arguments.host, arguments.port, arguments.allow_host, commands)
