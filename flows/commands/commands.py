"""What each command does. Imports stand inside the functions: a command loads only what it needs (Prefect takes a second)."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from flows.config import PROJECT, ConfigError, apply, dump, load, parse
from flows.execution import orphan_guard
from flows.prefect_ops.own_server import own_server


def run(arguments: Namespace) -> int:
    """`populora run`: start or resume; prints a line a generation, and where everything is."""
    from flows.execution.estimate import plan, stored_bytes
    from flows.execution.session import check_resumable
    from flows.execution.stage_process import early_worker
    from flows.run.hub_models import pinned
    from flows.run.retention import check_room
    from flows.run.run import Run
    from flows.storage import check_run_id, open_store

    run_id = arguments.resume or arguments.run_id or Path(arguments.config).stem
    check_run_id(run_id)
    if arguments.resume:
        config = apply(_open(arguments.store, run_id).history.description()["config"], arguments.set)
    else:
        config = load(arguments.config, arguments.set)
    if arguments.dry_run:
        print(json.dumps(dump(config), indent=2), plan(config), sep="\n")
        return 0
    store, places = absolute(arguments.store), _placement(arguments.place)
    if arguments.detach:
        from flows.prefect_ops.submit import submit

        print(submit(config, run_id, store, places))
        return 0
    config = pinned(config, Run(open_store(store), run_id).history.description())
    check_resumable(Run(open_store(store), run_id), config)
    check_room(open_store(store), stored_bytes(config))
    with early_worker(config, prepare=not places) as check_reachable, _prefect() as server_answers:
        from flows.execution.pools import Placement
        from flows.report.report import report as write_report
        from flows.train import train

        check_reachable()
        server_answers()
        head = train(run_id, store, config, Placement(**places))
        print(f"artifacts  {store}/{run_id}\nreport     {write_report(_open(store, run_id), _report_path(store, run_id))}")
    print(f"head       {head}")
    return 0


def _placement(places: list[str]) -> dict[str, str]:
    """Where stages go that do not run here, as flows.execution.pools.Placement takes it. Raises ConfigError naming the option."""
    found = {}
    for place in places:
        kind, equals, where = place.partition("=")
        if kind not in ("sandbox", "gpu", "ray") or not equals or not where:
            raise ConfigError(f"--place {place}: write sandbox=POOL, gpu=POOL or ray=HOST:PORT")
        found[kind] = where
    return found


@contextmanager
def _prefect() -> Iterator[Callable[[], None]]:
    """Prefect for a run that the command line starts: quiet, private, and no heartbeats when nobody listens.

    Starts a server unless the environment names one; what it yields waits until that answers.
    """
    orphan_guard.start()  # before the server, which must not outlive us
    quiet = ("PREFECT_LOGGING_LEVEL", "PREFECT_SERVER_LOGGING_LEVEL")  # what fails is said in our one line
    settings = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"} | dict.fromkeys(quiet, "CRITICAL")
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if "PREFECT_API_URL" in os.environ:
        from flows.prefect_ops import serve as service

        service.sign_in(os.environ["PREFECT_API_URL"])
        yield lambda: None
        return
    home = Path(os.environ.get("PREFECT_HOME", PROJECT / ".cache" / "prefect"))
    with own_server(home, {}, "--alone") as (_, answers):
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        # A heartbeat's thread costs a second at a flow's end, and without a worker beside us nothing reads the beats.
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield answers


def fork(arguments: Namespace) -> int:
    """`populora fork`: makes the run; `populora run --run-id` with its configuration goes on with it."""
    from flows.execution.session import clock, versions
    from flows.run.fork import fork as make

    parent = _open(arguments.store, arguments.run)
    known = partial(versions, known=parent.history.description())
    made = make(parent, arguments.run_id, arguments.generation, arguments.set, known, clock())
    print(f"run {made.run_id} stands at generation {arguments.generation} of {parent.run_id}")
    print(f"go on with: populora run --store {arguments.store} --resume {made.run_id}")
    return 0


def gc(arguments: Namespace) -> int:
    """`populora gc`: retention by hand, by the rule of the run's configuration."""
    from flows.execution.session import clock
    from flows.run import lease, retention
    from flows.run.run import Run

    found = _open(arguments.store, arguments.run)
    rule = parse(found.history.description()["config"]).retention
    policy = retention.Policy(rule.newest, rule.optimizer_every, rule.adapter_every)
    if arguments.dry_run:
        going = retention.plan(found, policy)
    else:
        with lease.hold(found.store, found.run_id) as epoch:
            going = retention.retire(Run(found.store, found.run_id, epoch), policy, clock())
    for one in going:
        print(f"{one.ref.uri}  {one.size}  {one.reason}")
    print(f"{len(going)} files, {sum(one.size for one in going) / 1e6:.1f} MB")
    return 0


def benchmark(arguments: Namespace) -> int:
    """`populora benchmark`: scores as tables on standard output, everything else stored under benchmarks/."""
    from flows.commands.benchmark import benchmark as score
    from flows.storage import open_store

    return score(arguments, open_store(arguments.store), _open(arguments.store, arguments.run) if arguments.run else None)


def status(arguments: Namespace) -> int:
    """`populora status`."""
    from flows.commands.status import status as text

    print(text(_open(arguments.store, arguments.run)))
    return 0


def inspect(arguments: Namespace) -> int:
    """`populora inspect`."""
    from flows.commands.inspect import inspect as text

    found = _open(arguments.store, arguments.run)
    print(text(found, arguments.generation, arguments.adapter, arguments.task, arguments.json))
    return 0


def report(arguments: Namespace) -> int:
    """`populora report`."""
    from flows.report.report import export_figures
    from flows.report.report import report as write_report

    out = arguments.out or _report_path(arguments.store, arguments.run)
    found = _open(arguments.store, arguments.run)
    print(write_report(found, out))
    for figure in export_figures(found, arguments.figures) if arguments.figures else ():
        print(figure)
    return 0


def fsck(arguments: Namespace) -> int:
    """`populora fsck`: code 1 when anything is damaged or missing."""
    from flows.audit.fsck import fsck as check

    findings = check(_open(arguments.store, arguments.run))
    for finding in findings:
        print(finding)
    print(f"{arguments.run}: {len(findings)} findings")
    return 1 if findings else 0


def verify(arguments: Namespace) -> int:
    """`populora verify < tasks.jsonl`."""
    return _judge("verify", arguments)


def grade(arguments: Namespace) -> int:
    """`populora grade < answers.jsonl`."""
    return _judge("grade", arguments)


def _judge(name: str, arguments: Namespace) -> int:
    from flows.backend import Backend
    from flows.commands import judge

    settings = [f"sandbox.{setting}" for setting in arguments.set] + [f"sandbox.kind={arguments.sandbox}"]
    backend = Backend(load("smoke", settings))
    try:
        stream = judge.verify if name == "verify" else judge.grade
        return stream(backend.sandbox(), sys.stdin.buffer, sys.stdout, arguments.strict)
    finally:
        backend.close()


def export(arguments: Namespace) -> int:
    """`populora export`."""
    found = _open(arguments.store, arguments.run)
    if arguments.tasks is not None:
        from flows.commands.export_tasks import export_tasks

        print(export_tasks(found, arguments.tasks))
        return 0
    if arguments.adapter is None or arguments.folder is None:
        raise ConfigError("export: give RUN ADAPTER DIR, or RUN --tasks DIR")
    from flows.commands.export import export_adapter

    print(export_adapter(found, arguments.adapter, arguments.folder, arguments.merge))
    return 0


def pretrain(arguments: Namespace) -> int:
    """`populora pretrain`."""
    from flows.commands.pretrain import pretrain as train_seed_model

    train_seed_model(
        arguments.out,
        arguments.minutes,
        arguments.seed,
        arguments.threads,
        PROJECT / "infra" / "benchmarks",
        lambda line: print(line),
    )
    return 0


def bench(arguments: Namespace) -> int:
    """`populora bench NAME`: JSON lines."""
    from importlib import import_module

    for line in import_module(f"flows.bench_{arguments.name}").main(arguments.options):
        print(json.dumps(line), flush=True)
    return 0


def simulate(arguments: Namespace) -> int:
    """`populora simulate`."""
    from flows.commands.simulate import simulate as table

    print(table(load(arguments.config, arguments.set), arguments.runs))
    return 0


def doctor(arguments: Namespace) -> int:
    """`populora doctor`."""
    from flows.commands.doctor import doctor as examine

    return examine(arguments.store)


def _open(store: str, run_id: str):  # type: ignore[no-untyped-def]
    from flows.run.run import Run
    from flows.storage import open_store
    from flows.store.file_store import NotStored

    found = Run(open_store(store), run_id)
    if found.history.description() is None:
        raise NotStored(f"no run {run_id} in {store}")
    return found


def absolute(store: str) -> str:
    """A plain folder as an absolute one: the worker runs elsewhere."""
    return store if "://" in store else str(Path(store).absolute())


def _report_path(store: str, run_id: str) -> Path:
    if "://" not in store:
        return Path(store) / f"{run_id}.html"
    return Path(f"{run_id}-report.html")
