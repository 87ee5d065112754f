"""The command `populora`.

Exit codes: 0 success, 1 failure, 2 invalid usage or input, 3 unreachable service, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
"""

import argparse
import atexit
import gc as collector
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import argcomplete

from flows.commands import (
    benchmark,
    doctor,
    explain,
    export,
    fork,
    gc,
    init,
    judge,
    notify,
    pretrain,
    publish,
    run,
    serve,
    worker,
)
from flows.commands.arguments import USAGE, Action, OneLineParser, store_option
from flows.commands.reading import browse, compare, cost, fsck, inspect, report, status, track, watch
from flows.commands.studies import attack, bench, clones, experiment, gpu_check, simulate, try_prompts
from flows.config import ConfigError
from flows.execution import orphan_guard
from flows.program import program
from flows.store.errors import Damaged, NotStored, StoreRefused
from stages.core.unavailable import Unavailable

UNREACHABLE, INTERRUPTED = 3, 130
STOPS = (KeyboardInterrupt, orphan_guard.Terminated)
SIGNALLED = "TerminationSignal"
"""What SIGTERM raises in a flow, before Prefect calls our handler. By name: importing Prefect takes a second."""
COMMANDS = (
    *(init, explain, run, serve, worker, notify, fork, gc, benchmark, try_prompts),
    *(status, watch, inspect, compare, cost, report, track, browse, fsck),
    *(judge, attack, export, publish, pretrain, bench, simulate, experiment, clones, doctor, gpu_check),
)
"""The commands in the order of `populora --help`."""
RESUMING = ("run", "experiment", "benchmark")
"""Commands that resume what an earlier call has left; so does `pretrain` with the recipe `reasoner`."""
TELLING = (None, "explain", "status", "watch", "inspect", "compare", "cost", "fsck", "doctor", "bench", "simulate")
"""Commands that only tell something: whoever stops reading has seen enough."""

UNTRACKED = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
"""Settings that keep Prefect from sending usage data. It reads the first one when it is imported."""

atexit.register(collector.freeze)  # objects that end with the process need no collection, which takes a second


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and turn every known failure into one line and its exit code."""
    for name, value in UNTRACKED.items():
        os.environ.setdefault(name, value)
    parser = _parser()
    argcomplete.autocomplete(parser, always_complete_options=False)  # answers a shell that asks, and ends; else does nothing
    parsed = parser.parse_args(arguments)
    if threading.current_thread() is threading.main_thread():
        orphan_guard.exit_on_sigterm()
    action: Action = parsed.action
    try:
        return _all_out(action(parsed))
    except (ConfigError, StoreRefused, NotStored) as error:
        return _fail(error, USAGE)
    except Unavailable as error:
        return _fail(error, UNREACHABLE)
    except Damaged as error:
        return _fail(f"{str(error).splitlines()[0]}{_advice(parsed)}", 1)
    except BrokenPipeError as error:
        return _unread(error, parsed)
    except STOPS as stop:
        return _stopped(stop, parsed)
    except Exception as error:
        known = _known_behind(error)
        if _is_stop(known):
            return _stopped(known, parsed)
        if known is None:
            raise
        return _fail(known, getattr(known, "exit_code", 1))


def _fail(error: object, code: int) -> int:
    with suppress(OSError):  # the code says it, too
        print(f"populora: {str(error).splitlines()[0] if str(error) else type(error).__name__}", file=sys.stderr)
    return code


def _all_out(code: int) -> int:
    """Write what is left in standard output, and return the code of a command that is done."""
    try:
        print(end="", flush=True)
    except OSError as error:
        _silence()
        return code if isinstance(error, BrokenPipeError) else _fail(error, 1)
    return code


def _unread(error: BrokenPipeError, parsed: argparse.Namespace) -> int:
    """Return the code of a command that its reader left before it was done: a failure, unless it would only have told more."""
    _silence()
    return 0 if parsed.command in TELLING or getattr(parsed, "dry_run", False) else _fail(error, 1)


def _silence() -> None:
    from flows.monitoring.progress import silence  # noqa: PLC0415  it loads what draws bars

    silence(sys.stdout)


def _advice(parsed: argparse.Namespace) -> str:
    """Return what to do about a damaged artifact of the run that a command names."""
    run = getattr(parsed, "run", "") or getattr(parsed, "resume", None) or getattr(parsed, "run_id", None)
    if not isinstance(run, str) or not run or parsed.command == "fsck":
        return ""
    store = getattr(parsed, "store", None)
    return f"; {program('fsck', run, *(store_option(store) if store else ()))} says what depends on it"


def _known_behind(error: BaseException | None) -> BaseException | None:
    """Return the error with an exit code, or the signal, that `error` came of; None if it is a bug.

    Prefect fails with an error of its own when a signal arrives while it makes a task run.
    """
    while error is not None and not hasattr(error, "exit_code") and not _is_stop(error):
        error = error.__context__
    return error


def _is_stop(error: BaseException | None) -> bool:
    return isinstance(error, STOPS) or type(error).__name__ == SIGNALLED


def _stopped(stop: BaseException | None, parsed: argparse.Namespace) -> int:
    interrupted = isinstance(stop, KeyboardInterrupt)
    how, code = ("interrupted", INTERRUPTED) if interrupted else ("stopped by SIGTERM", orphan_guard.TERMINATED)
    resumes = parsed.command in RESUMING or getattr(parsed, "recipe", "") == "reasoner"
    elsewhere = any(getattr(parsed, option, False) for option in ("dry_run", "detach", "only_compare"))
    return _fail(f"{how}; the same command resumes from here" if resumes and not elsewhere else how, code)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="populora", description="Co-evolve teachers and students: LoRA adapters on one frozen language model."
    )
    parser.set_defaults(action=status.standing)
    about = "Without a command: where you stand, and the command to type next."
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", description=about)

    def command(name: str, summary: str, action: Action) -> argparse.ArgumentParser:
        made = subparsers.add_parser(name, help=summary, description=summary)
        made.set_defaults(action=action)
        return made

    for module in COMMANDS:
        module.add(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
