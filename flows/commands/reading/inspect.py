"""`populora inspect`: any row of a run, and its lineage."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store, open_run


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("inspect", "Any row of a run, and its lineage backwards and forwards.", inspect)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--generation", type=int, metavar="N", help="the stages of a generation: what they read and wrote")
    one.add_argument("--adapter", metavar="ID", help="an adapter: its parents, rating, and what followed from it")
    one.add_argument("--task", metavar="ID", help="a task or rollout: its program, attempts and grades")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    add_store(parser)


def inspect(arguments: Namespace) -> int:
    """Print the run, a generation, an adapter or a task."""
    from flows.run.inspection import inspect as text

    found = open_run(arguments.store, arguments.run)
    print(text(found, arguments.generation, arguments.adapter, arguments.task, arguments.json))
    return 0
