"""`populora simulate`: what an evolution policy does to a population of known skill."""

from argparse import Namespace

from flows.commands.arguments import Add, add_configuration, add_settings
from flows.config import ConfigError, RunConfig, load

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
    if why := _nothing_to_simulate(config):
        raise ConfigError(f"simulate: {name}: {why}")
    print(table(config, arguments.runs))
    return 0


def _nothing_to_simulate(config: RunConfig) -> str:
    """Return why no member of this configuration is ever replaced by an offspring of its role; empty if some are."""
    if config.mode == "single":
        return f"one adapter in both roles has no population to simulate; try -c {USUAL}"
    if not config.population.teachers:
        return f"it has no teachers, and skill is simulated of matches between the roles; try -c {USUAL}"
    if not config.evolution.every or not config.evolution.gamma:
        return f"evolution.{'gamma' if config.evolution.every else 'every'}=0 replaces nobody; set it, or try -c {USUAL}"
    if max(config.population.teachers, config.population.students) < 2:
        return f"a role with one member replaces nobody; set population.teachers and population.students, or try -c {USUAL}"
    return ""
