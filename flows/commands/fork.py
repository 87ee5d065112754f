"""`populora fork`: start a new run from an old generation."""

from argparse import Namespace
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from flows.commands.arguments import Add, add_settings, add_store, open_run, store_option
from flows.config import RunConfig, dump, parse
from flows.program import program
from flows.stages import STAGE_NAMES


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("fork", "Start a new run from an old generation or stage, sharing what came before.", fork)
    shared = "the last generation that both share; -1: the start; with --stage, the first that is computed again"
    parser.add_argument("--generation", type=int, required=True, help=shared)
    summary = "begin inside that generation: share its stages before STAGE, compute STAGE and all after it again"
    parser.add_argument("--stage", choices=STAGE_NAMES, default="", metavar="STAGE", help=summary)
    parser.add_argument("--run-id", required=True, help="name of the new run")
    add_settings(parser, "settings that differ in the new run")
    add_store(parser)


def fork(arguments: Namespace) -> int:
    """Write the new run and print the command that starts it."""
    from flows.benchmarks.members import config_of
    from flows.execution.recorded import clock
    from flows.run.fork import fork as make
    from flows.run.history import placement_of
    from flows.trust import refusals, remember

    parent = open_run(arguments.store, arguments.run)
    refused = refusals(config_of(parent), parent)
    unseen = {one.key for one in refused} - {setting.partition("=")[0] for setting in arguments.set}
    known = partial(_checked, known=parent.history.description(), unseen=unseen)
    made = make(parent, arguments.run_id, arguments.generation, arguments.set, known, clock(), arguments.stage)
    remember(config_of(made), made, arguments.set if refused else None)
    where = f"{arguments.stage} of generation" if arguments.stage else "generation"
    print(f"created run {made.run_id} from {where} {arguments.generation} of {parent.run_id}")
    places = placement_of(made.history.description())
    placed = ["--detach", *(word for kind, where in places.items() for word in ("--place", f"{kind}={where}"))] if places else []
    print(f"start it with: {program('run', *placed, *store_option(arguments.store), '--resume', made.run_id)}")
    return 0


def _checked(config: RunConfig, known: Mapping[str, Any] | None, unseen: Collection[str]) -> dict[str, object]:
    """Return the fork's versions. Names are checked, but no files that the user has not named: a look loads them."""
    from flows.backend import Backend
    from flows.execution.recorded import versions

    values, usual = dump(config), dump(RunConfig())
    for group, _, name in (key.partition(".") for key in unseen):
        values[group][name] = usual[group][name]
    Backend(parse(values)).check_names()
    return versions(config, known)
