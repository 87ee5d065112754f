"""What `populora experiment FILE` does. Imports stand inside the function, as in `flows.commands.commands`."""

from argparse import Namespace
from contextlib import closing
from pathlib import Path

from flows.commands import commands
from flows.config import RunConfig


def experiment(arguments: Namespace) -> int:
    """The runs of an experiment one after another, started or resumed, then the comparison of what there is."""
    from flows.experiments.cost import check, plan_text
    from flows.experiments.spec import planned, read
    from flows.storage import open_store

    described = read(arguments.file)
    runs, store = planned(described), commands.absolute(arguments.store)
    if arguments.dry_run:
        print(plan_text(described, runs, open_store(store)))
        return 0
    if not arguments.only_compare:
        check(runs, open_store(store), _check_reachable)
    with commands._prefect() as server_answers:
        from flows.experiments.flow import experiment as conduct

        server_answers()
        out = str(arguments.out.absolute()) if arguments.out else ""
        written = conduct(str(arguments.file.absolute()), store, out, arguments.only_compare)
    print(f"comparison {written['page']}\ntables     {Path(written['page']).with_suffix('')}")
    return 0


def _check_reachable(config: RunConfig) -> None:
    """Fails before anything is written: a missing model, an unknown choice, a sandbox that does not answer."""
    from flows.backend import Backend

    with closing(Backend(config)) as backend:
        backend.check()
