"""`populora benchmark`: score members of a run, a model, or stored completions."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from flows.commands.arguments import TRUSTED, Add, add_functions, add_settings, add_store, function_folders, open_run
from flows.guide.completion import complete, complete_runs, complete_suites
from flows.settings import BenchmarkRule

if TYPE_CHECKING:
    from flows.run.run import Run

STYLES = tuple(style for style in get_args(BenchmarkRule.model_fields["style"].annotation) if style)
PROBE_STYLES = ("auto", "compact", "trace", "document", "chat", "azr")


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("benchmark", "Score members of a run, a model, or completions made elsewhere, on suites.", benchmark)
    complete(parser.add_argument("run", metavar="RUN", nargs="?", help="id of a run"), complete_runs)
    named = "name of a suite (repeatable), such as probe-dev, gsm8k"
    complete(parser.add_argument("--suite", action="append", required=True, help=named), complete_suites)
    parser.add_argument("--model", metavar="FOLDER", help="score a model (folder or hub name) instead of a run")
    parser.add_argument("--completions", metavar="FILE", help="score completions in JSON lines: problem_id and text or solution")
    parser.add_argument("--adapter", action="append", default=[], help="id of an adapter, or with --model a PEFT folder")
    parser.add_argument("--members", default="students", help="students (default), all, top:N by fitness, or ids with commas")
    parser.add_argument("--generation", type=int, help="score the members as trained in this generation; -1: the start")
    parser.add_argument(
        "--against",
        type=int,
        metavar="GENERATION",
        help="also score that generation (-1: the start), and print the paired change since then",
    )
    parser.add_argument("--data", metavar="DIR", help="local copies of the suites (default: the hub, or POPULORA_SUITES)")
    limited = (
        "problems to score (0: all): of public suites spread evenly over forms and groups, of our own in turn over kinds and "
        "depths"
    )
    parser.add_argument("--limit", type=int, default=0, help=limited)
    parser.add_argument(
        "--problems", default="", metavar="PATTERN", help="only problems whose ids match, e.g. 'test-deduction-07-*'"
    )
    parser.add_argument("--attempts", type=int, default=0, help="sampled attempts next to the greedy one, for avg@k and pass@k")
    parser.add_argument("--style", choices=STYLES, default="", help="how public suites are asked (default: by the tokenizer)")
    parser.add_argument(
        "--probe-prompts", choices=PROBE_STYLES, default="auto", help="for the probe with --model (default: by the model)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=0, help="longest answer (default: the suite's)")
    parser.add_argument("--since", default="", metavar="DATE", help="LiveCodeBench: problems released from this day on")
    parser.add_argument("--until", default="", metavar="DATE", help="LiveCodeBench: problems released until this day")
    add_settings(parser, "a setting with --model, e.g. threads=8")
    add_functions(parser, f"with RUN: {TRUSTED}")
    parser.add_argument("--dry-run", action="store_true", help="print what it would cost, and score nothing")
    parser.add_argument(
        "--contamination", action="store_true", help="with RUN: compare its tasks with all problems; scores without matches"
    )
    add_store(parser, run=False)


def benchmark(arguments: Namespace) -> int:
    """Print scores as tables; everything else is stored under benchmarks/."""
    from flows.benchmarks.benchmark_suites import benchmark as score
    from flows.storage import open_store

    folders = function_folders(arguments.functions)
    run = open_run(arguments.store, arguments.run) if arguments.run else None
    if run is not None and not (arguments.dry_run or arguments.contamination or arguments.completions):
        _check_stored(run, folders, arguments.set)
    return score(arguments, open_store(arguments.store), run)


def _check_stored(run: "Run", folders: Sequence[Path], settings: Sequence[str]) -> None:
    """Raise ConfigError if the run chooses an interpreter, or no sandbox, that the user has not named. It loads no functions."""
    from flows.benchmarks.members import config_of
    from flows.trust import PYTHON, SANDBOX, check

    check(config_of(run), run, folders, settings, {PYTHON, SANDBOX})
