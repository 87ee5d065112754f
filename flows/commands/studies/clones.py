"""`populora clones RUN …`: every evolution event of runs against the same event with copies of the parents."""

from argparse import Namespace
from functools import partial
from pathlib import Path

from flows.commands.arguments import TRUSTED, Add, absolute, add_functions, add_settings, add_store, function_folders, open_run
from flows.config import ConfigError, apply
from flows.guide.completion import complete, complete_runs


def add(command: Add) -> None:
    """Add the command and its options."""
    summary = (
        "Fork every evolution event of runs with copies in the children's place, train the forks, and compare child and copy."
    )
    parser = command("clones", summary, clones)
    complete(parser.add_argument("runs", metavar="RUN", nargs="+", help="ids of finished runs"), complete_runs)
    event = "generation of an event (repeatable; default: every event)"
    parser.add_argument("--event", action="append", type=int, default=[], metavar="GENERATION", help=event)
    age = "generations of training after which both are scored; 0: at birth (repeatable; default: 0, 10, 20)"
    parser.add_argument("--age", action="append", type=int, default=[], metavar="GENERATIONS", help=age)
    parser.add_argument("--out", type=Path, help="folder of tables and figure (default: next to the runs, or in this folder)")
    add_functions(parser, TRUSTED)
    add_settings(parser, "sandbox.kind=local: agree to what the runs chose; no other setting can be given")
    add_store(parser, run=False)


def clones(arguments: Namespace) -> int:
    """Make and train the forks that are missing, then print and write the comparison."""
    from flows.base_model.hub import pinned
    from flows.benchmarks.members import config_of
    from flows.execution.preflight import processes
    from flows.execution.recorded import checked_versions, clock
    from flows.experiments.clones import ClonePair, clone_events, clone_fork, clone_pairs
    from flows.experiments.clones_text import pairs_text, write_pairs
    from flows.prefect_ops.command_server import command_server
    from flows.storage import StoreRefused
    from flows.trust import WITHOUT_WALLS, check

    if changed := [setting for setting in arguments.set if setting != WITHOUT_WALLS]:
        raise ConfigError(f"--set {changed[0]}: the forks keep the settings of their runs")
    ages = sorted(set(arguments.age or (0, 10, 20)))
    if ages[0] < 0:
        raise ConfigError(f"--age {ages[0]}: write 0 or more")
    processes()  # a wrong variable is reported before anything is written
    store = absolute(arguments.store)
    runs = [open_run(store, name) for name in dict.fromkeys(arguments.runs)]
    for run in runs:
        check(config_of(run), run, function_folders(arguments.functions), arguments.set)
    events = [event for run in runs for event in clone_events(run, arguments.event)]
    pairs: list[ClonePair] = []
    refused: list[str] = []
    with command_server() as server_answers:
        from flows.train import train

        server_answers()
        for event in events:
            known = partial(checked_versions, known=event.run.history.description())
            try:
                made = clone_fork(event, ages, known, clock())
            except StoreRefused as error:
                refused.append(str(error))
                print(f"{event.fork_id}: {error}", flush=True)
                continue
            config = pinned(apply((made.history.description() or {})["config"], ()), made.history.description())
            if made.manifest("evolve", config.generations - 1) is None:
                print(f"{event.fork_id}: generations {event.generation} to {config.generations - 1}", flush=True)
                train(run_id=made.run_id, store=store, config=config)
            pairs += clone_pairs(event, ages)
    if not pairs:
        raise ConfigError("no event could be compared" + (f": {refused[0]}" if refused else ""))
    print(pairs_text(pairs))
    name = f"{runs[0].run_id}-clones"
    folder = arguments.out or (Path(name) if "://" in store else Path(store) / name)
    print("\n".join(write_pairs(pairs, folder.absolute())))
    return 0
