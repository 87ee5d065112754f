"""Workers: `populora worker POOL` takes runs from a work pool.

`python -m flows.prefect_ops.pool_worker setup STORE` creates the pools and deployments.

A worker is Prefect's own. It starts with our settings after three checks: the server answers, its version matches, and the
machine has a GPU if the pool requires one. It ends by itself when the server is away for a quarter of an hour, and is then
started again. A thread next to it cleans up after lost runs.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from flows import allowed
from flows.config import PROJECT, ConfigError
from flows.execution import orphan_guard
from flows.prefect_ops import prefect_api, serve
from flows.storage import open_store
from flows.store.s3_store import S3Store

SWEEP_SECONDS = 60.0
FORMS_SECONDS = 10.0
LAST_WORDS_SECONDS = 6.0
WISH_SECONDS = 2.0
RESTART_SECONDS = 30.0
ENGINE = "prefect.engine"


def work(pool: str, limit: int | None, name: str | None) -> int:
    """Take runs from the pool until SIGTERM, SIGINT or SIGHUP, and return the exit code.

    Raises ConfigError for an unsuitable machine.
    """
    from flows import cards
    from flows.execution.residents import Residents, idle_minutes

    url = os.environ.get("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    serve.sign_in(url)
    prefect_api.require(url)
    found = cards.cards() if pool == "gpu" else []
    if pool == "gpu" and not found:
        raise ConfigError("no NVIDIA GPU is visible on this machine (nvidia-smi -L): it cannot take work from the pool gpu")
    if pool == "gpu" and limit is None:
        limit = len(found)
    minutes = idle_minutes()
    home = Path(os.environ.get("PREFECT_HOME", PROJECT / ".cache" / "prefect"))
    os.environ.update(prefect_api.WORKER_SETTINGS | prefect_api.settings_without_tls(url, home) | {"PREFECT_API_URL": url})
    os.environ.update(allowed.worker_settings() | {orphan_guard.WORKER: str(os.getpid())})
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"]
    command += ["--limit", str(limit)] if limit else []
    command += ["--name", name] if name else []
    if not found:
        return _watched(command, pool)
    orphan_guard.start()
    with Residents(found, minutes):
        return _watched(command, pool)


def _watched(command: list[str], pool: str) -> int:
    orphan_guard.start()
    threading.Thread(target=_sweep, args=(pool,), name="sweep", daemon=True).start()
    if pool == "cpu":  # where the forms' flows run, so that the store can be reached
        threading.Thread(target=_refresh_forms, name="forms", daemon=True).start()
    return keep_at_work(command, pool)


def keep_at_work(command: list[str], pool: str, pause: float = RESTART_SECONDS) -> int:
    """Run Prefect's worker until SIGTERM, SIGINT or SIGHUP, and start it again, after a pause, when it ends by itself.

    On a signal its flow runs get one too, so they can release what they hold. What the machine keeps for its cards stays.
    """
    worker: subprocess.Popen[bytes] | None = None
    stopped: list[bool] = []

    def stop(*_: object) -> None:
        stopped.append(True)
        if worker is not None and worker.poll() is None:
            runs = orphan_guard.descendants(worker.pid, ENGINE)
            tell_to_end(runs)
            threading.Thread(target=_end, args=(worker, runs), name="end", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT, *orphan_guard.hang_ups()):
        signal.signal(number, stop)
    code = 0
    while not stopped:
        worker = subprocess.Popen(command, start_new_session=True)
        if stopped:  # between the look and the start
            stop()
        code = worker.wait()
        if not stopped:
            said = f"Prefect's worker of the pool {pool} ended with code {code}; it is started again in {pause:g} s"
            print(said, file=sys.stderr, flush=True)
            until, code = time.monotonic() + pause, 0
            while not stopped and time.monotonic() < until:
                time.sleep(0.1)
    return 0 if code in (0, -signal.SIGTERM, 128 + signal.SIGTERM) else 1


def tell_to_end(runs: list[int]) -> None:
    """Send the runs SIGTERM. One of them may end by itself at this moment."""
    for pid in runs:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _end(worker: "subprocess.Popen[bytes]", runs: list[int]) -> None:
    """On shutdown, wait for the runs to report their state, then stop Prefect's worker, which would kill them earlier."""
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while time.monotonic() < deadline and any(orphan_guard.lives(pid, ENGINE) for pid in runs):
        time.sleep(0.1)
    for _ in range(2):  # it may ignore the first signal
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
            time.sleep(WISH_SECONDS)


def _sweep(pool: str) -> None:
    from flows.execution import flow_cleanup
    from flows.notes import endings

    watch = flow_cleanup.SilentRuns([pool])
    while True:
        time.sleep(SWEEP_SECONDS)
        try:
            watch.crash_the_silent()
            flow_cleanup.sweep([pool])
            endings.explain_lost()
        except Exception as error:  # the server may be unreachable for a while; the next sweep tries again
            print(f"sweep: {type(error).__name__}: {error}", file=sys.stderr)


def _refresh_forms() -> None:
    """Keep the forms' lists of runs, generations and members up to date."""
    from flows.prefect_ops.forms import Forms

    forms, faulty = Forms(), ""
    while True:
        time.sleep(FORMS_SECONDS)
        try:
            if forms.outdated():
                forms.refresh()
            faulty = ""
        except Exception as error:  # the server or the store may be unreachable for a while
            if faulty != (fault := f"forms: {type(error).__name__}: {error}"):
                print(fault, file=sys.stderr)
            faulty = fault


def setup(store: str, make_bucket: bool = False, own_worker: str = "") -> int:
    """Create pools, queues, deployments, schedule and automation on the environment's server; the bucket on request.

    Runs that seem to be running are marked as crashed at once where no worker can be alive; `own_worker` names one that cannot.
    Where one can, the sweep next to it finds those that have stopped reporting.
    """
    prefect_api.require(os.environ.get("PREFECT_API_URL", "http://127.0.0.1:4200/api"))
    from flows.execution import flow_cleanup
    from flows.prefect_ops import deployments

    if make_bucket and isinstance(place := open_store(store), S3Store):
        place.make_bucket()
    lost = flow_cleanup.sweep(list(deployments.POOLS), nobody_works=not deployments.workers_heard(own_worker))
    if lost:
        print(f"{lost} runs were running when the server stopped; they are marked as crashed and can be retried")
    for name in deployments.deploy(store, deployments.local_timezone()):
        print(name)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m flows.prefect_ops.pool_worker")
    inputs = parser.add_subparsers(required=True).add_parser("setup", help="create the pools and deployments")
    inputs.add_argument("store", metavar="STORE")
    inputs.add_argument("--make-bucket", action="store_true")
    inputs.add_argument("--own-worker", default="", metavar="NAME", help="a worker that is not running yet")
    arguments = parser.parse_args()
    sys.exit(setup(arguments.store, arguments.make_bucket, arguments.own_worker))
