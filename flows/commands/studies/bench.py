"""`populora bench NAME`: one measurement as JSON lines."""

import argparse
import json

from flows.commands.arguments import Add

BENCHES = ("sandbox", "update", "rollout", "evolve", "orchestration", "population", "storage", "scoring", "pages")


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("bench", "Measure: one JSON object a line.", bench)
    parser.add_argument("name", choices=BENCHES)
    parser.add_argument("options", nargs=argparse.REMAINDER)


def bench(arguments: argparse.Namespace) -> int:
    """Print a JSON object for every figure."""
    from importlib import import_module

    for line in import_module(f"flows.bench.{arguments.name}").main(arguments.options):
        print(json.dumps(line), flush=True)
    return 0
