"""`populora fsck`: check every artifact of a run."""

from argparse import Namespace

from flows.commands.arguments import Add, add_store, open_run


def add(command: Add) -> None:
    """Add the command and its options."""
    add_store(command("fsck", "Hash every artifact again and check every reference.", fsck))


def fsck(arguments: Namespace) -> int:
    """Print the findings; 1 when anything is damaged or missing."""
    from flows.audit.fsck import fsck as check

    findings = check(open_run(arguments.store, arguments.run))
    for finding in findings:
        print(finding)
    print(f"{arguments.run}: {len(findings)} findings")
    return 1 if findings else 0
