"""`populora bench pages RUN [OTHER] --store URL`: what the browser's pages of a run cost the first time.

Each page is the first request of a new `populora browse`. Reported are the seconds of processor time that the server spends and
the seconds that pass until the first piece of the page, and until all of it. By default the server may first finish loading;
`--at-once` asks as soon as it listens. Processor time needs Linux, and is what to compare on a machine that others use.
"""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flows.browser.serve import LOAD_SECONDS
from flows.commands.arguments import OneLineParser
from flows.config import ConfigError
from flows.run.addresses import Addresses
from flows.run.run import Run
from flows.servers.gate import LOOPBACK
from flows.storage import open_store

Line = dict[str, Any]
SETTLED = 2.0  # seconds without work, after which the server has loaded everything


def main(options: Sequence[str]) -> Iterator[Line]:
    """Yield one JSON object for each page."""
    parser = OneLineParser(prog="populora bench pages")
    parser.add_argument("run", nargs="?", default="quickstart", help="run whose pages are measured")
    parser.add_argument("other", nargs="?", default="", help="a run to compare it with")
    parser.add_argument("--store", default="runs", help="folder, file:///folder or s3://bucket/prefix of the run")
    parser.add_argument("--repeats", type=int, default=3, help="requests for each page; the median counts")
    parser.add_argument("--at-once", action="store_true", help="do not wait until the server has loaded its plotting library")
    arguments = parser.parse_args(options)
    for name, path in pages_of(Run(open_store(arguments.store), arguments.run), arguments.other).items():
        turns = [first_request(arguments.store, path, not arguments.at_once) for _ in range(arguments.repeats)]
        columns = zip(*turns, strict=True)
        values = [round(statistics.median(column), 2) for column in columns]
        keys = ("text_cpu", "text_wall", "cpu", "wall", "kilobytes")
        yield {"name": name, "path": path} | dict(zip(keys, values, strict=True))


def pages_of(run: Run, other: str) -> dict[str, str]:
    """Return the path of each measured page, by name. Raises ConfigError for a run without a complete generation."""
    whole = run.finished_generations()
    if not whole:
        raise ConfigError(f"run {run.run_id} in {run.store.url} has no complete generation to show")
    at, name, middle = Addresses(), run.run_id, whole[len(whole) // 2]
    rated = run.read_table(middle, "ratings")["next_adapter_id"].to_pylist()[-1]
    task = run.read_table(middle, "tasks")["task_id"].to_pylist()[0]
    found = {
        "run": at.run(name),
        "generation": at.generation(name, middle),
        "task": at.task(name, task),
        "adapters": at.adapters(name),
        "adapter": at.adapter(name, rated),
        "figures": at.figures(name),
        "figure": at.figure_page(name, "solve-rate"),
        "picture": at.figure(name, "recovery", "svg"),
        "list by age": at.runs(),
        "list by size": at.runs(sort="-size"),
        "list by score": at.runs(sort="-score"),
    }
    return found | ({"compare": at.compare([name, other])} if other else {})


def first_request(store: str, path: str, loaded: bool) -> tuple[float, float, float, float, float]:
    """Return processor and wall seconds until the first piece of a page, both until all of it, and its kilobytes."""
    with socket.socket() as free:
        free.bind((LOOPBACK[0], 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flows.cli", "browse", "--store", store, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            if loaded:
                _settle(server.pid)
            return _ask(port, path, server.pid)
        finally:
            server.terminate()


def _ask(port: int, path: str, pid: int) -> tuple[float, float, float, float, float]:
    began, spent = time.perf_counter(), _cpu(pid)
    with socket.create_connection((LOOPBACK[0], port)) as asked:
        asked.sendall(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK[0]}\r\nConnection: close\r\n\r\n".encode())
        first = asked.recv(1 << 16)
        if not first.startswith(b"HTTP/1.1 200"):
            raise ConfigError(f"{path}: the browser answers {first[:40]!r}")
        text, size = (_cpu(pid) - spent, time.perf_counter() - began), len(first)
        while piece := asked.recv(1 << 16):
            size += len(piece)
    return *text, _cpu(pid) - spent, time.perf_counter() - began, size / 1000


def _settle(pid: int) -> None:
    """Wait until the process has loaded what it loads after its start."""
    time.sleep(LOAD_SECONDS + SETTLED)
    before = -1.0
    while (now := _cpu(pid)) > before + 0.02:
        before = now
        time.sleep(SETTLED)


def _cpu(pid: int) -> float:
    """Return the processor seconds that a process has spent."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
