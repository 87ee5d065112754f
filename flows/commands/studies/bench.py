"""`populora bench NAME`: one measurement as JSON lines."""

import argparse
import json

from flows.commands.arguments import Add

BENCHES = {
    "sandbox": "programs a second through the judge's sandbox",
    "update": "adapters trained in one pass, against PEFT's in turn",
    "rollout": "completions of many adapters in one call, against one call each",
    "evolve": "offspring by every operator, at 7B shapes",
    "orchestration": "the seconds that Prefect adds",
    "population": "a generation of 4T+4S, against one adapter with as many tokens",
    "storage": "the cost of storing everything",
    "scoring": "MBPP+ solutions a minute, against EvalPlus",
    "pages": "the browser's pages of a run",
}


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("bench", "Measure: one JSON object a line.", bench)
    about = "; ".join(f"{name}: {measured}" for name, measured in BENCHES.items())
    parser.add_argument("name", choices=tuple(BENCHES), metavar="NAME", help=about)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its own options; NAME --help lists them")


def bench(arguments: argparse.Namespace) -> int:
    """Print a JSON object for every figure."""
    from importlib import import_module

    for line in import_module(f"flows.bench.{arguments.name}").main(arguments.options):
        print(json.dumps(line), flush=True)
    return 0
