"""`populora simulate`: what an evolution policy does to a population of known skill."""

from argparse import Namespace

from flows.commands.arguments import Add, add_configuration, add_settings
from flows.config import load

USUAL = "paper"


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("simulate", "Simulate an evolution policy and print how often members are replaced.", simulate)
    add_configuration(parser, USUAL)
    add_settings(parser, "override a setting, e.g. evolution.every=5")
    parser.add_argument("--runs", type=int, default=300)


def simulate(arguments: Namespace) -> int:
    """Print the table."""
    from flows.commands.studies.evolution_simulation import simulate as table

    print(table(load(arguments.config or USUAL, arguments.set), arguments.runs))
    return 0
