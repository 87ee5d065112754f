"""`populora bench orchestration`: the overhead of Prefect, with stages that do nothing.

The real flow of a generation runs against a separate server, on SQLite or PostgreSQL, with 1, 8 and 64 adapters updated
one by one. Seconds are the time a run waits; `cpu` is the share that does not depend on how busy the machine is; `drain` is how
long the server then takes to process its backlog.

`--stage-seconds 0.8` gives the server time between tasks, as a run does; without it tasks follow each other immediately.

`--days 20 --generations 100` shows growth: 20 runs of 100 generations. After each run all records of the server are aged by a day
(PostgreSQL only), so that its vacuum, which keeps `--keep` days here, removes what is due.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flows.commands.arguments import OneLineParser
from flows.config import ConfigError, RunConfig, load
from flows.execution.run_stage import Reference
from flows.prefect_ops import prefect_api, supervised
from flows.prefect_ops.own_server import free_port, own_server

POSTGRES_USER = "postgres"
TABLES = """select relname, pg_total_relation_size(oid) from pg_class
    where relkind = 'r' and relnamespace = 'public'::regnamespace order by 2 desc limit 5"""
AGE = """update flow_run set start_time = start_time - interval '1 day', end_time = end_time - interval '1 day';
    update events set occurred = occurred - interval '1 day';
    update event_resources set occurred = occurred - interval '1 day';
    select 1"""


class NoStages:
    """A session whose steps finish immediately, or after a fixed number of seconds."""

    def __init__(self, config: RunConfig, adapters: int, seconds: float = 0.0) -> None:
        self.config, self._adapters, self.cluster, self._seconds = config, adapters, False, seconds

    def run_stage(self, stage: str, generation: int | None, part: str | None = None, joins: bool = False) -> Reference:
        """Return a valid reference to nothing."""
        time.sleep(self._seconds)
        return {"stage": stage, "generation": generation, "manifest": f"{stage}-{generation}-{part}", "rows": {}}

    def reach(self, stage: str) -> None:
        """Do nothing: nobody watches."""

    def leave(self) -> None:
        """Do nothing: nothing runs in the background."""

    def parts(self, stage: str, generation: int) -> list[tuple[str, str]]:
        """Return one part of the update per adapter."""
        return [(f"{number:02d}", f"s{number}") for number in range(self._adapters if stage == "update" else 0)]

    def spreads(self, stage: str) -> bool:
        """Return False: parts run one after the other, to measure the cost of a task."""
        return False


def main(options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per figure."""
    parser = OneLineParser(prog="populora bench orchestration")
    parser.add_argument("--database", default="sqlite", help="sqlite, postgres (a temporary server), or a SQLAlchemy URL")
    parser.add_argument("--adapters", default="1,8,64", help="numbers of adapters to measure")
    parser.add_argument("--generations", type=int, default=5, help="generations to measure for each number of adapters")
    parser.add_argument("--stage-seconds", type=float, default=0.0, help="seconds that every stage sleeps, not counted")
    parser.add_argument("--days", type=int, default=0, help="number of runs, each followed by a day's ageing")
    parser.add_argument("--keep", type=int, default=5, help="days after which the server forgets a run, with --days")
    arguments = parser.parse_args(options)
    if arguments.days and arguments.database == "sqlite":
        raise ConfigError("--days needs --database postgres")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="populora-bench-")))
        folder.chmod(0o755)
        url = arguments.database
        if url == "postgres":
            url = stack.enter_context(postgres(folder / "postgres"))
        aged = {"LOOP_SECONDS": "15", "RETENTION_PERIOD": str(arguments.keep * 86400)} if arguments.days else {}
        os.environ.update({f"PREFECT_SERVER_SERVICES_DB_VACUUM_{name}": value for name, value in aged.items()})
        server = stack.enter_context(_server(folder, "" if url == "sqlite" else url))
        kind = "sqlite" if url == "sqlite" else "postgresql"
        for adapters in (int(text) for text in arguments.adapters.split(",")):
            size = partial(_size, server, folder, url)
            if arguments.days:
                measured = _days(adapters, arguments.generations, arguments.days, url, size)
            else:
                measured = _measure(adapters, arguments.generations, arguments.stage_seconds, size)
            yield from ({**line, "database": kind, "adapters": adapters} for line in measured)


def _days(adapters: int, generations: int, days: int, url: str, size: Any) -> Iterator[dict[str, Any]]:
    """Yield memory and bytes after each day: they rise until the oldest day is removed, and then stay constant."""
    for day in range(1, days + 1):
        seconds = _generations(adapters, generations)
        _settled(size)
        yield _figure("orchestration.day", sum(seconds), "s") | {"day": day, "generations": day * generations}
        tables = _ask(url, TABLES)
        _ask(url, AGE)
        time.sleep(20)  # time for the vacuum
        sizes = size() | {f"io.table.{name}": bytes_ / 1e6 for name, bytes_ in tables}
        yield from (_figure(name, value, "MB") | {"day": day} for name, value in sizes.items() if name != "cpu.server")


def _measure(adapters: int, generations: int, asleep: float, size: Any) -> Iterator[dict[str, Any]]:
    before, client = size(), time.process_time()
    seconds = _generations(adapters, generations, asleep)
    client, began = time.process_time() - client, time.monotonic()
    _settled(size)
    tasks = 11 + adapters
    mean = sum(seconds) / len(seconds)
    yield _figure("orchestration.generation", mean, "s") | {"tasks": tasks, "n": len(seconds), "worst": round(max(seconds), 3)}
    yield _figure("orchestration.task", 1000 * mean / tasks, "ms")
    yield _figure("cpu.client_a_task", 1000 * client / (generations * tasks), "ms")
    yield _figure("cpu.server_a_task", (size()["cpu.server"] - before["cpu.server"]) / (generations * tasks), "ms")
    yield _figure("orchestration.drain", time.monotonic() - began, "s")
    after = size()
    yield _figure("memory.server", after["memory.server"], "MB")
    grown = (after["io.database"] - before["io.database"]) * 1000 / (generations * tasks)
    yield _figure("io.database_a_task", grown, "kB")


def _generations(adapters: int, generations: int, asleep: float = 0.0) -> list[float]:
    """Return the seconds of each generation of one run, minus those that its stages slept."""
    import prefect
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.execution import gc_tuning, session
    from flows.generation import run_generation

    seconds: list[float] = []

    @prefect.flow(name="bench", persist_result=False)
    def whole() -> None:
        population: Reference = {}
        with gc_tuning.relaxed_gc(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            for generation in range(generations):
                began = time.monotonic()
                population = run_generation("bench", generation, population)
                seconds.append(time.monotonic() - began - (10 + adapters) * asleep)

    config = load("chaos", [f"generations={generations + 1}", "benchmark.every=1"])
    with session.as_current(NoStages(config, adapters, asleep)):  # type: ignore[arg-type]
        whole()
    return seconds


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}


def _settled(size: Any, still: int = 3) -> None:
    """Return once the database has not grown for `still` checks, one second apart."""
    seen: list[float] = []
    while len(seen) < still or len(set(seen[-still:])) > 1:
        if len(seen) > 600:
            return
        time.sleep(1)
        seen.append(size()["io.database"])


def _size(server: supervised.Child, folder: Path, url: str) -> dict[str, float]:
    """Return the server's memory and database size in megabytes, and the CPU milliseconds it has used."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    memory = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1000
    ticks = sum(int(field) for field in Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    found = {"memory.server": memory, "cpu.server": 1000.0 * ticks / os.sysconf("SC_CLK_TCK")}
    if url != "sqlite":
        return found | {"io.database": _ask(url, "select pg_database_size(current_database())")[0][0] / 1e6}
    files = folder.glob("home/prefect.db*")
    return found | {"io.database": sum(file.stat().st_size for file in files) / 1e6}


def _ask(url: str, statements: str) -> list[tuple]:
    """Run statements and return the rows of the last one."""
    import asyncio

    import asyncpg  # type: ignore[import-untyped]

    async def ask() -> list[tuple]:
        connection = await asyncpg.connect(url.replace("+asyncpg", ""))
        try:
            *first, last = statements.split(";")
            for statement in first:
                await connection.execute(statement)
            return [tuple(row) for row in await connection.fetch(last)]
        finally:
            await connection.close()

    return asyncio.run(ask())


@contextmanager
def _server(folder: Path, database: str) -> Iterator[supervised.Child]:
    """Start a separate Prefect server with this process as its client."""
    quiet = {"PREFECT_LOGGING_LEVEL": "CRITICAL"}
    more = prefect_api.WORKER_SETTINGS | quiet | ({"PREFECT_SERVER_DATABASE_CONNECTION_URL": database} if database else {})
    with own_server(folder / "home", more) as (server, answers):
        answers()
        yield server


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Yield the URL of a temporary PostgreSQL server on its own socket and port. Raises ConfigError if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        raise ConfigError("--database postgres: PostgreSQL is not installed; on Debian: apt-get install postgresql")
    programs = Path(initdb).parent
    folder.mkdir()
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, POSTGRES_USER, POSTGRES_USER)
        as_user = ["runuser", "-u", POSTGRES_USER, "--"]
    port = free_port()
    data, log = folder / "data", folder / "log"

    def run(*words: str) -> None:
        subprocess.run([*as_user, *words], check=True, capture_output=True, timeout=120, cwd=folder)

    run(initdb, "-D", str(data), "-U", "prefect", "-A", "trust", "--encoding=UTF8")
    settings = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    run(str(programs / "pg_ctl"), "-D", str(data), "-l", str(log), "-w", "-o", settings, "start")
    try:
        run(str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "prefect")
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect"
    finally:
        run(str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
