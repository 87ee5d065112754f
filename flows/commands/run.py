"""`populora run`: start a run, or resume it."""

import json
from argparse import Namespace
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.commands.arguments import (
    TRUSTED,
    Add,
    absolute,
    add_configuration,
    add_functions,
    add_settings,
    add_store,
    function_folders,
    open_run,
    report_path,
    store_option,
)
from flows.config import ConfigError, RunConfig, apply, dump, load
from flows.guide.completion import complete, complete_runs
from flows.program import program

if TYPE_CHECKING:
    from flows.run.run import Run

USUAL = "quickstart"


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("run", "Start a run, or resume it if it exists with the same configuration.", run)
    add_configuration(parser, USUAL)
    add_settings(parser, "override a setting, e.g. model.rank=8")
    parser.add_argument("--run-id", help="name of the run (default: the configuration's)")
    resumed = parser.add_argument(
        "--resume", metavar="RUN", help="resume this run with the configuration that it was started with"
    )
    complete(resumed, complete_runs)
    add_functions(parser, f"with --resume: {TRUSTED}")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and the settings that are not defaults, and write nothing"
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: print the whole configuration as JSON instead")
    parser.add_argument("--detach", action="store_true", help="hand the run to the server of populora serve, and return")
    where = "other machines for stages: sandbox=POOL, gpu=POOL, ray=HOST:PORT (repeatable)"
    parser.add_argument("--place", action="append", default=[], metavar="KIND=WHERE", help=where)
    add_store(parser, run=False)


def run(arguments: Namespace) -> int:
    """Start or resume the run; print a line a generation, then where everything is and what comes next."""
    from flows.base_model.hub import pinned
    from flows.benchmarks.learned import learned_text
    from flows.benchmarks.suite_changes import suite_change
    from flows.execution.idle import nothing_left
    from flows.execution.preflight import check_machine, processes
    from flows.execution.recomputation import settled
    from flows.execution.session import check_resumable
    from flows.execution.stage_process import early_worker
    from flows.monitoring.progress import say
    from flows.plan.estimate import stored_bytes
    from flows.prefect_ops.command_server import command_server
    from flows.run.retention import check_room
    from flows.run.run import Run
    from flows.storage import open_store
    from flows.trust import remember

    _check_options(arguments)
    run_id, config, description = _chosen(arguments)
    store, places = absolute(arguments.store), _placement(arguments.place)
    open_store(store)
    _check_suites(config)
    processes()  # a wrong variable is reported before anything starts
    elsewhere = bool(places.keys() & {"gpu", "ray"})
    if arguments.dry_run:
        _show_plan(arguments, config, description, Run(open_store(store), run_id), elsewhere)
        return 0
    stored = Run(open_store(store), run_id)
    idle = not arguments.detach and nothing_left(stored, config.generations)
    if not idle:  # otherwise nothing of what the configuration names is executed
        if description is not None:
            _check_stored(arguments, config, description, stored)
        remember(config, stored)
        if (changed := suite_change(stored, config.benchmark.suite)) is not None:
            say(f"suite      {changed}")
    if arguments.detach:
        from flows.prefect_ops.submit import submit

        print(submit(config, run_id, store, places))
        return 0
    if not idle:  # nothing is computed: the report and the digest need no card, engine or sandbox
        check_machine(config, elsewhere)
    known = stored.history.description()
    config = settled(pinned(config, known, elsewhere), known, elsewhere=elsewhere)
    check_resumable(stored, config)
    if not idle:
        check_room(open_store(store), {run_id: stored_bytes(config)})
    follow = program("watch", run_id, *store_option(arguments.store))
    early = nullcontext(lambda: None) if idle else early_worker(config, prepare=not places)
    with early as check_reachable, command_server() as server_answers:
        from flows.backend import Backend
        from flows.execution.pools import Placement
        from flows.report.report import report as write_report
        from flows.train import train

        if not idle:
            Backend(config).check_names()  # while the worker and the server start
        check_reachable()
        server_answers()
        say(f"run        {run_id}: {config.generations} generations, to {store}/{run_id}; follow it: {follow}")
        head = train(run_id, store, config, Placement(**places))
        if (learned := learned_text(open_run(store, run_id), config)) is not None:
            say(f"learned    {learned}")
        say(f"artifacts  {store}/{run_id}\nreport     {write_report(open_run(store, run_id), report_path(store, run_id))}")
    say(f"head       {head}")
    say(f"next       {_following(run_id, config, arguments.store)}")
    return 0


def _check_options(arguments: Namespace) -> None:
    """Raise ConfigError for options that mean nothing together."""
    if arguments.json and not arguments.dry_run:
        raise ConfigError("--json prints the configuration of a --dry-run")
    if arguments.dry_run and arguments.detach:
        raise ConfigError("--dry-run cannot be combined with --detach: it plans and starts nothing")
    if arguments.resume is not None and (arguments.run_id is not None or arguments.config is not None):
        given = "--run-id" if arguments.run_id is not None else "-c"
        raise ConfigError(
            f"{given} cannot be combined with --resume {arguments.resume}: a resumed run keeps its name and configuration"
        )
    if arguments.functions and arguments.resume is None:
        raise ConfigError("--functions applies to --resume: what your own configuration names needs no permission")


def _chosen(arguments: Namespace) -> tuple[str, RunConfig, Mapping[str, Any] | None]:
    """Return the run's name, its configuration, and what its start recorded where a stored run is named to be resumed."""
    from flows.run.planned import is_recorded, planned_of_readable
    from flows.storage import check_run_id

    name = USUAL if arguments.config is None else arguments.config
    fresh = load(name, arguments.set) if arguments.resume is None else None
    run_id = next((one for one in (arguments.resume, arguments.run_id) if one is not None), Path(name).stem)
    check_run_id(run_id)
    if fresh is not None:
        return run_id, fresh, None
    history = open_run(arguments.store, run_id).history
    description = history.description()
    assert description is not None, run_id
    planned = planned_of_readable(history, description)
    if not is_recorded(history, description) and not any(one.startswith("generations=") for one in arguments.set):
        raise ConfigError(
            f"run {run_id} has begun generation {planned - 1}; to how many generations it was raised is not recorded "
            "(by an earlier version): give --set generations=…"
        )
    return run_id, apply(description["config"] | {"generations": planned}, arguments.set), description


def _show_plan(
    arguments: Namespace, config: RunConfig, description: Mapping[str, Any] | None, run: "Run", elsewhere: bool
) -> None:
    """Print what the run will need and its settings, after the checks that need no start."""
    from flows.backend import Backend
    from flows.base_model.folder import check_lengths, check_style, read_folder
    from flows.base_model.hub import local_folder
    from flows.choices import user_files
    from flows.execution.recomputation import settled
    from flows.guide.setting_list import changed_settings
    from flows.plan.estimate import plan

    if description is not None:  # its lengths and style were checked when it began
        functions = {key for key, _ in user_files(config)}  # a plan runs no program and starts no interpreter
        _check_stored(arguments, config, description, run, functions)
    Backend(config).check_names()
    folder = None if elsewhere else local_folder(config.model.name)
    if description is None and folder is not None:
        found = read_folder(folder, config.engine.window)
        check_lengths(config, found)
        check_style(config, found)
    config = settled(config, elsewhere=True) if elsewhere else config  # what the run's cards will compute
    spare = "" if elsewhere else _spare_places(config)
    if arguments.json:
        print(json.dumps(dump(config), indent=2))
        return
    print(plan(config), *filter(None, [spare and f"processes        {spare}"]), *changed_settings(config), sep="\n")


def _check_stored(
    arguments: Namespace, config: RunConfig, description: Mapping[str, Any], run: "Run", keys: Collection[str] | None = None
) -> None:
    """Raise ConfigError if the stored run chooses code that the user has not named, or was begun with other settings or files.

    With `keys`, only the code that these choose is looked at.
    """
    from flows.base_model.hub import pinned
    from flows.choices import check_sources
    from flows.execution.recomputation import settled
    from flows.execution.session import check_same_settings
    from flows.trust import check

    check_same_settings(run.run_id, description, settled(pinned(config, description), description))
    check_sources(config, description["versions"], run.run_id)
    check(config, run, function_folders(arguments.functions), arguments.set, keys)


def _spare_places(config: RunConfig) -> str:
    """Return what `spare_places` says of this machine; empty where the run could not start here: a plan may be for another."""
    from flows.cards import CardUnavailable
    from flows.execution.places import places_for, spare_places

    with suppress(ConfigError, CardUnavailable):
        return spare_places(config, places_for(config))
    return ""


def _following(run_id: str, config: RunConfig, store: str) -> str:
    """Return the commands that a finished run invites, on one line. The fork learns at half the rate from about the middle on."""
    from flows.run.retention import forkable, policy_of

    half, slower = config.generations // 2 - 1, f"learning.learning_rate={config.learning.learning_rate / 2:g}"
    shared = str(min(forkable(policy_of(config), config.generations), key=lambda one: abs(one - half)))
    again = ("fork", run_id, "--generation", shared, "--run-id", f"{run_id}-fork", "--set", slower)
    return "  |  ".join(program(*words, *store_option(store)) for words in (("browse",), ("publish", run_id), again))


def _check_suites(config: RunConfig) -> None:
    """Raise ConfigError for a suite that does not exist, or in the place of the other kind."""
    from flows.suites.own_suites import PROBE, OwnSuites
    from flows.suites.suite_data import suite_of

    OwnSuites().file(config.benchmark.suite)
    for suite in config.benchmark.suites:
        if suite in PROBE:
            raise ConfigError(
                f"benchmark.suites: {suite} is one of our own, asked as the run trains: set benchmark.suite={suite}"
            )
        suite_of(suite)


def _placement(places: list[str]) -> dict[str, str]:
    """Where stages run that do not run here, as flows.execution.pools.Placement takes it. Raises ConfigError."""
    found = {}
    for place in places:
        kind, equals, where = place.partition("=")
        if kind not in ("sandbox", "gpu", "ray") or not equals or not where:
            raise ConfigError(f"--place {place}: write sandbox=POOL, gpu=POOL or ray=HOST:PORT")
        found[kind] = where
    return found
