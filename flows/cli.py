"""The command `populora`. Exit codes: 0 done, 1 the work failed, 2 bad usage or input, 3 a service is not reachable."""

import argparse
import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from flows import attack_command, commands, experiment_command, guard, tracking_command
from flows.config import ConfigError
from flows.storage import Damaged, NotStored, StoreRefused, StoreUnavailable
from stages.core.engine import EngineUnavailable
from stages.core.sandbox import SandboxUnavailable

USAGE, UNREACHABLE = 2, 3
BENCHES = ("sandbox", "update", "rollout", "evolve", "orchestration", "population", "storage", "scoring")


atexit.register(gc.freeze)  # what ends with the process need not be collected first: that takes a second


class _Parser(argparse.ArgumentParser):
    """argparse that says one line instead of a page."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and turns every known failure into one line and its exit code."""
    parsed = _parser().parse_args(arguments)
    if threading.current_thread() is threading.main_thread():
        guard.exit_on_sigterm()
    action: Callable[[argparse.Namespace], int] = parsed.action
    try:
        return action(parsed)
    except (ConfigError, StoreRefused, NotStored) as error:
        return _fail(error, USAGE)
    except (StoreUnavailable, EngineUnavailable, SandboxUnavailable) as error:
        return _fail(error, UNREACHABLE)
    except Damaged as error:
        return _fail(error, 1)
    except BrokenPipeError:
        return 0  # the reader has seen enough
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on from here", 130)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        return _fail(error, code)


def _fail(error: object, code: int) -> int:
    print(f"populora: {str(error).splitlines()[0] if str(error) else type(error).__name__}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="populora", description="Co-evolve teachers and students: LoRA adapters on one frozen language model.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, action: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = subparsers.add_parser(name, help=summary, description=summary)
        made.set_defaults(action=action)
        return made

    _add_run_commands(command)
    _add_reading_commands(command)
    _add_judge_commands(command)
    _add_attack_command(command)
    _add_other_commands(command)
    return parser


Add = Callable[[str, str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]


def _store(parser: argparse.ArgumentParser, run: bool = True) -> None:
    default = os.environ.get("POPULORA_STORE") or "runs"
    parser.add_argument("--store", default=default, help=f"folder, file:///folder or s3://bucket/prefix (default: {default})")
    if run:
        parser.add_argument("run", metavar="RUN", help="id of the run")


def _add_run_commands(command: Add) -> None:
    run = command("run", "Start a run, or go on with it if it exists with the same configuration.", commands.run)
    run.add_argument("-c", "--config", default="smoke", help="TOML file, or a name in infra/runs (default: smoke)")
    run.add_argument("--set", action="append", default=[], metavar="key=value", help="override a setting, e.g. model.rank=8")
    run.add_argument("--run-id", help="name of the run (default: the configuration's)")
    run.add_argument("--resume", metavar="RUN", help="go on with this run, with the configuration that it was started with")
    run.add_argument("--dry-run", action="store_true", help="print the resolved configuration and the plan, and write nothing")
    run.add_argument("--detach", action="store_true", help="hand the run to the server of populora serve, and return")
    where = "other machines for stages: sandbox=POOL, gpu=POOL, ray=HOST:PORT (repeatable)"
    run.add_argument("--place", action="append", default=[], metavar="KIND=WHERE", help=where)
    _store(run, run=False)
    _add_service_commands(command)
    fork = command("fork", "Start a new run from an old generation, sharing what came before.", commands.fork)
    fork.add_argument("--generation", type=int, required=True, help="the last generation that both share; -1: the start")
    fork.add_argument("--run-id", required=True, help="name of the new run")
    fork.add_argument("--set", action="append", default=[], metavar="key=value", help="what the new run does otherwise")
    _store(fork)
    gc = command("gc", "Remove adapter files that the retention rule lets go; each leaves a tombstone.", commands.gc)
    gc.add_argument("--dry-run", action="store_true", help="print what would go, and remove nothing")
    _store(gc)
    _add_benchmark_command(command)


def _add_benchmark_command(command: Add) -> None:
    bench = command("benchmark", "Score members of a run, a model, or completions made elsewhere, on suites.", commands.benchmark)
    bench.add_argument("run", metavar="RUN", nargs="?", help="id of a run")
    bench.add_argument("--suite", action="append", required=True, help="name of a suite (repeatable), such as probe-dev, gsm8k")
    bench.add_argument("--model", metavar="FOLDER", help="score a model (folder or hub name) instead of a run")
    bench.add_argument("--completions", metavar="FILE", help="score completions in JSON lines: problem_id and text or solution")
    bench.add_argument("--adapter", action="append", default=[], help="id of an adapter, or with --model a PEFT folder")
    bench.add_argument("--members", default="students", help="students (default), all, top:N by fitness, or ids with commas")
    bench.add_argument("--generation", type=int, help="score the members as trained in this generation; -1: the start")
    bench.add_argument("--data", metavar="DIR", help="local copies of the suites (default: the hub, or POPULORA_SUITES)")
    bench.add_argument("--limit", type=int, default=0, help="problems to score, evenly spread (0: all)")
    bench.add_argument("--attempts", type=int, default=0, help="sampled attempts beside the greedy one, for avg@k and pass@k")
    bench.add_argument("--style", choices=("plain", "azr"), default="", help="how public suites are asked (recorded)")
    bench.add_argument("--probe-prompts", choices=("compact", "chat"), default="compact", help="for the probe with --model")
    bench.add_argument("--max-new-tokens", type=int, default=0, help="longest answer (default: the suite's)")
    bench.add_argument("--since", default="", metavar="DATE", help="LiveCodeBench: problems released from this day on")
    bench.add_argument("--until", default="", metavar="DATE", help="LiveCodeBench: problems released until this day")
    bench.add_argument("--set", action="append", default=[], metavar="key=value", help="a setting with --model, e.g. threads=8")
    bench.add_argument("--dry-run", action="store_true", help="print what it would cost, and score nothing")
    bench.add_argument(
        "--contamination", action="store_true", help="with RUN: its tasks beside all problems; scores without matches"
    )
    _store(bench, run=False)


def _add_service_commands(command: Add) -> None:
    serve = command("serve", "Prefect server and UI, a worker, the deployments and the artifact browser.", commands.serve)
    serve.add_argument("--port", type=int, default=4200, help="of the Prefect UI (default: 4200)")
    serve.add_argument("--browser-port", type=int, default=8750, help="of the artifact browser (default: 8750)")
    serve.add_argument("--home", type=Path, help="folder of the server's database and logs (default: .cache/serve)")
    _store(serve, run=False)
    worker = command("worker", "Take runs from a work pool of the server at PREFECT_API_URL.", commands.worker)
    worker.add_argument("pool", choices=("cpu", "gpu"), help="cpu: whole runs, and stages that need Docker; gpu: stages on a GPU")
    worker.add_argument("--limit", type=int, help="runs at work at once (default: no limit; gpu: one a GPU)")
    worker.add_argument("--name", help="shown in the UI (default: made up)")


def _add_reading_commands(command: Add) -> None:
    _store(command("status", "Where a run stands.", commands.status))
    inspect = command("inspect", "Any row of a run, and its lineage backwards and forwards.", commands.inspect)
    inspect.add_argument("--generation", type=int)
    inspect.add_argument("--adapter", metavar="ID")
    inspect.add_argument("--task", metavar="ID")
    inspect.add_argument("--json", action="store_true", help="JSON instead of text")
    _store(inspect)
    report = command("report", "A self-contained HTML page with the run's figures.", commands.report)
    report.add_argument("--out", type=Path, help="where to write it (default: beside the run, or in this folder)")
    _store(report)
    report.add_argument("--figures", type=Path, metavar="DIR", help="also write every figure as SVG and PNG")
    track = command("track", "Send a run's numbers to TensorBoard, MLflow or Weights & Biases, too.", tracking_command.track)
    track.add_argument("--to", required=True, metavar="WHERE", help="tensorboard:FOLDER, mlflow:URI or wandb:FOLDER")
    track.add_argument("--follow", action="store_true", help="go on until the run is whole")
    _store(track)
    browse = command("browse", "Serve read-only pages of every run in a store.", commands.browse)
    browse.add_argument("--port", type=int, default=8750)
    browse.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; beyond this machine, put a proxy with a log-in before it"
    )
    _store(browse, run=False)
    _store(command("fsck", "Hash every artifact again and check every reference.", commands.fsck))


def _add_judge_commands(command: Add) -> None:
    for name, summary in (
        ("verify", "Judge tasks: JSON lines in, JSON lines out."),
        ("grade", "Grade answers: JSON lines in and out."),
    ):
        judge = command(name, summary, getattr(commands, name))
        judge.add_argument("--strict", action="store_true", help="end with code 2 at a line that cannot be read, before any run")
        judge.add_argument("--sandbox", choices=("docker", "local"), default="docker")
        judge.add_argument("--set", action="append", default=[], metavar="key=value", help="a limit, e.g. cpu_seconds=1")


def _add_attack_command(command: Add) -> None:
    attack = command("attack", "Run the attack catalogue on this machine; say which walls held.", attack_command.attack)
    attack.add_argument("rows", metavar="ROW", nargs="*", help="only these rows, such as 43b (default: all quick ones)")
    attack.add_argument("--all", action="store_true", help="also the attacks that take seconds each")
    attack.add_argument("--json", action="store_true", help="JSON lines instead of text")
    attack.add_argument("--sandbox", choices=("docker", "local"), default="docker")
    attack.add_argument("--set", action="append", default=[], metavar="key=value", help="of the sandbox, e.g. runtime=runsc")


def _add_other_commands(command: Add) -> None:
    export = command("export", "Write an adapter as a PEFT folder or merged model, or a run's tasks.", commands.export)
    export.add_argument("run", metavar="RUN")
    export.add_argument("adapter", metavar="ADAPTER", nargs="?", help="id of the adapter")
    export.add_argument("folder", metavar="DIR", type=Path, nargs="?")
    export.add_argument("--merge", action="store_true", help="a merged model instead of a PEFT folder")
    export.add_argument("--tasks", type=Path, metavar="DIR", help="the run's valid, deduplicated tasks as Parquet")
    _store(export, run=False)
    pretrain = command("pretrain", "Train the seed model from scratch on generated programs.", commands.pretrain)
    pretrain.add_argument("--out", type=Path, required=True)
    pretrain.add_argument("--minutes", type=float, default=81.0, help="worth of tokens on two cores")
    pretrain.add_argument("--seed", type=int, default=0)
    pretrain.add_argument("--threads", type=int, default=2)
    bench = command("bench", "Measure: one JSON object a line.", commands.bench)
    bench.add_argument("name", choices=BENCHES)
    bench.add_argument("options", nargs=argparse.REMAINDER)
    simulate = command("simulate", "Show the cull statistics of an evolution policy.", commands.simulate)
    simulate.add_argument("-c", "--config", default="paper")
    simulate.add_argument("--set", action="append", default=[], metavar="key=value")
    simulate.add_argument("--runs", type=int, default=300)
    experiment = command(
        "experiment", "Run or resume arms times seeds, and compare them on one page.", experiment_command.experiment
    )
    experiment.add_argument("file", type=Path, metavar="FILE", help="what is compared, such as infra/experiments/size.toml")
    experiment.add_argument("--dry-run", action="store_true", help="print hours and bytes of every run, and write nothing")
    experiment.add_argument("--only-compare", action="store_true", help="run nothing; compare what there is")
    experiment.add_argument("--out", type=Path, help="the page (default: beside the runs, or in this folder)")
    _store(experiment, run=False)
    doctor = command("doctor", "What is missing on this machine, and the command that mends it.", commands.doctor)
    doctor.add_argument("--store", help="also check this store")


if __name__ == "__main__":
    sys.exit(main())
