"""`populora gc`: apply the retention rule by hand."""

from argparse import Namespace

from flows.commands.arguments import Add, add_settings, add_store, in_group, open_run
from flows.config import ConfigError, apply


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("gc", "Remove adapter files that the retention rule no longer keeps; each leaves a tombstone.", gc)
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    add_settings(parser, "another rule than the run's, e.g. newest=1", "retention")
    add_store(parser)


def gc(arguments: Namespace) -> int:
    """Remove what the rule of the run's configuration, or the one given, no longer keeps."""
    from flows.execution.recorded import clock
    from flows.run import lease, retention
    from flows.run.run import Run

    found = open_run(arguments.store, arguments.run)
    description = found.history.description()
    assert description is not None, found.run_id
    chosen = in_group(arguments.set, "retention")
    rule = apply(description["config"], chosen).retention
    named = {setting.partition("=")[0].strip() for setting in chosen}
    if not rule.on and ("retention.on" in named or not named):
        keeps = f"run {found.run_id} keeps everything (retention.on = false)"
        why = "on=false removes nothing" if "retention.on" in named else keeps
        raise ConfigError(
            f"{why}; to remove adapter files all the same, say which stay: "
            f"--set newest={rule.newest} --set optimizer_every={rule.optimizer_every} --set adapter_every={rule.adapter_every}"
        )
    policy = retention.RetentionPolicy(rule.newest, rule.optimizer_every, rule.adapter_every)
    if arguments.dry_run:
        removed = retention.plan(found, policy)
    else:
        with lease.hold(found.store, found.run_id) as epoch:
            removed = retention.retire(Run(found.store, found.run_id, epoch), policy, clock())
    for one in removed:
        print(f"{one.ref.uri}  {one.size}  {one.reason}")
    print(f"{len(removed)} files, {sum(one.size for one in removed) / 1e6:.1f} MB")
    return 0
