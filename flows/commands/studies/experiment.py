"""`populora experiment FILE`: run or resume arms times seeds, and compare them."""

from argparse import Namespace
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from flows.commands.arguments import Add, absolute, add_store
from flows.config import ConfigError, RunConfig


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("experiment", "Run or resume arms times seeds, and compare them on one page.", experiment)
    parser.add_argument("file", type=Path, metavar="FILE", help="what is compared, such as infra/experiments/size.toml")
    parser.add_argument("--dry-run", action="store_true", help="print hours and bytes of every run, and write nothing")
    parser.add_argument("--only-compare", action="store_true", help="run nothing; compare the runs that exist")
    parser.add_argument("--out", type=Path, help="the page (default: next to the runs, or in this folder)")
    add_store(parser, run=False)


def experiment(arguments: Namespace) -> int:
    """Run the experiment's runs one after another, then compare those that exist."""
    from flows.execution.preflight import processes
    from flows.experiments.cost import check, plan_text
    from flows.experiments.spec import planned, read
    from flows.prefect_ops.command_server import command_server
    from flows.run.run import Run
    from flows.storage import open_store
    from flows.trust import remember

    out = "" if arguments.out is None else str(arguments.out.absolute())
    if out and (arguments.out.suffix != ".html" or arguments.out.is_dir()):
        raise ConfigError(f"--out {arguments.out}: name a file that ends in .html; the tables go into the folder of that name")
    described = read(arguments.file)
    runs, store = planned(described), absolute(arguments.store)
    if arguments.dry_run:
        _check_names(planned.config for planned in runs)
        print(plan_text(described, runs, open_store(store)))
        return 0
    if not arguments.only_compare:
        processes()  # a wrong variable is reported before anything starts
        check(runs, open_store(store), _check_reachable)
        for one in runs:
            remember(one.config, Run(open_store(store), one.run_id))
    with command_server() as server_answers:
        from flows.experiments.flow import experiment as conduct

        server_answers()
        written = conduct(str(arguments.file.absolute()), store, out, arguments.only_compare)
    print(f"primary    {written['primary']}\ncomparison {written['page']}\ntables     {Path(written['page']).with_suffix('')}")
    return 0


def _check_names(configs: Iterable[RunConfig]) -> None:
    """Fails for a name or function that does not exist. Runs of an arm differ in their seed alone."""
    from flows.backend import Backend

    checked: set[str] = set()
    for config in configs:
        named = config.model_copy(update={"seed": 0}).model_dump_json()
        if named not in checked:
            Backend(config).check_names()
            checked.add(named)


def _check_reachable(config: RunConfig) -> None:
    """Fails before anything is written: a missing model, an unknown choice, a sandbox that does not answer."""
    from flows.backend import Backend
    from flows.execution.preflight import check_machine

    check_machine(config)
    with closing(Backend(config)) as backend:
        backend.check_run()
