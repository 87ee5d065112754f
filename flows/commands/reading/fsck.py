"""`populora fsck`: check every artifact of a run."""

from argparse import Namespace
from dataclasses import replace

from flows.commands.arguments import TRUSTED, Add, add_functions, add_store, function_folders, open_run
from flows.program import Commands, called


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("fsck", "Hash every artifact again and check every reference.", fsck)
    add_functions(parser, TRUSTED)
    add_store(parser)


def fsck(arguments: Namespace) -> int:
    """Print the findings; 1 when anything is damaged or missing. What is not checked is said, and is no finding."""
    from flows.audit.fsck import audit
    from flows.monitoring.status import size_text
    from flows.run.run import Run
    from flows.storage import NotStored, open_store

    folders = function_folders(arguments.functions)
    try:  # not as other commands do: run.json itself may be lost or damaged
        found = audit(Run(open_store(arguments.store), arguments.run), folders)
    except NotStored:
        open_run(arguments.store, arguments.run)  # says which runs there are
        raise
    named = Commands(called()).named  # a finding's command names the store
    for finding in found.findings:
        print(replace(finding, command=named(finding.command)))
    for reason in found.unchecked:
        print(f"not checked: {reason}")
    count = f"{len(found.findings)} finding{'' if len(found.findings) == 1 else 's'}"
    matching = f"{found.artifacts:,} artifacts ({size_text(found.bytes)}) match the digests in {found.manifests:,} manifests"
    print(f"{arguments.run}: {count}; {matching}")
    return 1 if found.findings else 0
