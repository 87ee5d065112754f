"""`populora attack`: run the attack catalogue in this machine's own sandbox."""

import sys
from argparse import Namespace

from flows.commands.arguments import Add, add_settings
from flows.config import load


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("attack", "Run the attack catalogue on this machine, and print which walls held.", attack)
    parser.add_argument("rows", metavar="ROW", nargs="*", help="only these rows, such as 43b (default: all quick ones)")
    parser.add_argument("--all", action="store_true", help="also the attacks that take seconds each")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of text")
    parser.add_argument("--sandbox", choices=("docker", "local"), default="docker")
    add_settings(parser, "of the sandbox, e.g. runtime=runsc", "sandbox")


def attack(arguments: Namespace) -> int:
    """Try every attack; 1 where a wall did not hold."""
    from flows.audit.attack import attack as try_all
    from flows.audit.attack import chosen
    from flows.backend import Backend

    attacks = chosen(arguments.rows, arguments.all)
    settings = [f"sandbox.{setting}" for setting in arguments.set] + [f"sandbox.kind={arguments.sandbox}"]
    backend = Backend(load("smoke", settings))
    try:
        return try_all(backend.sandbox(), sys.stdout, attacks, arguments.json)
    finally:
        backend.close()
