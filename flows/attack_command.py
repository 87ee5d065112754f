"""`populora attack`, as the command line calls it."""

import sys
from argparse import Namespace

from flows.config import load


def attack(arguments: Namespace) -> int:
    """Tries the catalogue in the chosen sandbox; the exit code: 1 where a wall did not hold."""
    from flows.attack import attack as try_all
    from flows.attack import chosen
    from flows.backend import Backend

    attacks = chosen(arguments.rows, arguments.all)
    settings = [f"sandbox.{setting}" for setting in arguments.set] + [f"sandbox.kind={arguments.sandbox}"]
    backend = Backend(load("smoke", settings))
    try:
        return try_all(backend.sandbox(), sys.stdout, attacks, arguments.json)
    finally:
        backend.close()
