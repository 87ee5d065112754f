"""`populora simulate`: what an evolution policy does to a population of known skill."""

from argparse import Namespace

from flows.commands.arguments import Add, add_configuration, add_settings
from flows.config import ConfigError, load

USUAL = "paper"


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("simulate", "Simulate an evolution policy and print how often members are replaced.", simulate)
    add_configuration(parser, USUAL)
    add_settings(parser, "override a setting, e.g. evolution.every=5")
    parser.add_argument("--runs", type=int, default=300, metavar="N", help="simulated runs of each policy (default: 300)")


def simulate(arguments: Namespace) -> int:
    """Print the table."""
    from flows.commands.studies.evolution_simulation import simulate as table

    name = USUAL if arguments.config is None else arguments.config
    config = load(name, arguments.set)
    if arguments.runs < 1:
        raise ConfigError(f"simulate: --runs {arguments.runs}: give 1 or more")
    if not config.evolution.every or not config.population.teachers or config.mode == "single":
        raise ConfigError(f"simulate: {name} has no evolution of teachers and students to simulate; try -c {USUAL}")
    print(table(config, arguments.runs))
    return 0
