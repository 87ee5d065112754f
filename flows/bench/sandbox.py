"""`populora bench sandbox`: programs per second through the judge's sandbox, paired in one run with other ways to run them.

Rivals: fork and exit on the host (the floor of every such design), AZR's way (serial in-process `exec` in a pool worker), one
interpreter per program through `docker exec`, and one container per program. Turns alternate, and a ratio is the median of the
turns' ratios, so that load affects both equally.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import docker

from stages.core.sandbox.docker import DockerSandbox
from stages.core.sandbox.local import LocalSandbox
from stages.core.sandbox.pool import Pool
from stages.core.sandbox.protocol import IMAGE, Job

_SOURCES = (
    "def f(x):\n    total = 0\n    for i in range(x):\n        total += i * {n}\n    return total",
    "def f(x):\n    words = ['a' * i for i in range(x)]\n    return sorted(words, key=len, reverse=True)[:{n} % 5 + 1]",
    "def f(x):\n    def step(n):\n        return n // 2 if n % 2 == 0 else 3 * n + {n}\n    seen = []\n"
    "    while x not in seen and len(seen) < 20:\n        seen.append(x)\n        x = step(x)\n    return seen",
    "def f(x):\n    table = {{}}\n    for c in str(x * {n}):\n        table[c] = table.get(c, 0) + 1\n"
    "    return sorted(table.items())",
)
_LIMIT, _PAUSE = 10, 1.0  # seconds; the daemon continues to remove a rival's containers for as long as the latter
_WITNESSED = Job("def f(x):\n    return {x, x + 1}", "1", True)  # starts every server that a worker may have


def bench_sandbox(
    kind: str = "docker", programs: int = 2000, containers: int | None = None, repeats: int = 7
) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per figure: ours alone, then paired with each rival (`ratio` over 1: ours is faster)."""
    count = containers or os.cpu_count() or 1
    sandbox: Pool = LocalSandbox(count) if kind == "local" else DockerSandbox(containers=count)
    try:
        _warm(sandbox, count)
        yield from _paired(sandbox, programs, repeats, kind)
        yield from _latency(sandbox, min(programs, 400))
    finally:
        sandbox.close()
    yield from _by_containers(kind, programs // 2, count)


def main(options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run the command with options `--kind docker|local --programs N --containers N --repeats N`."""
    parser = argparse.ArgumentParser(prog="populora bench sandbox")
    parser.add_argument("--kind", choices=("docker", "local"), default="docker")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--containers", type=int)
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args(options)
    return bench_sandbox(chosen.kind, chosen.programs, chosen.containers, chosen.repeats)


def _paired(sandbox: Pool, programs: int, repeats: int, kind: str) -> Iterator[dict[str, Any]]:
    """Run ours and each rival in turn; yield the medians of the turns and of their ratios."""
    ours = {
        "programs_per_s": lambda: _rate(sandbox, programs, False),
        "validated_tasks_per_s": lambda: _rate(sandbox, programs // 2, True),
    }
    rivals: dict[str, Callable[[], float]] = {"fork_exit": lambda: _fork_exit(programs), "azr_exec": lambda: _azr(programs)}
    if kind == "docker":
        rivals |= {"docker_exec": lambda: _docker_exec(8), "container_per_program": lambda: _container_each(4)}
    found: dict[str, list[float]] = {name: [] for name in [*ours, *rivals]}
    for _ in range(repeats):
        for name in ("programs_per_s", "fork_exit", "validated_tasks_per_s", *[name for name in rivals if name != "fork_exit"]):
            found[name].append((ours | rivals)[name]())
        time.sleep(_PAUSE)
    middle = {name: statistics.median(values) for name, values in found.items()}
    cores = len(os.sched_getaffinity(0))
    for name in ours:
        yield _line(name, middle[name], "1/s")
        yield _line(f"{name}_and_core", middle[name] / cores, "1/s")
        for rival in rivals:
            ratios = [value / other for value, other in zip(found[name], found[rival], strict=True)]
            yield _line(name, middle[name], "1/s") | _against(rival, middle[rival], statistics.median(ratios))


def _warm(sandbox: Pool, containers: int) -> None:
    """Run programs until every container has started its servers and has run some programs in them."""
    list(sandbox.run([_WITNESSED] * 200 * containers))
    _rate(sandbox, 500 * containers, False)


def _latency(sandbox: Pool, programs: int) -> Iterator[dict[str, Any]]:
    """Measure one program at a time, from the call to the verdict."""
    seconds = []
    for number in range(programs):
        start = time.perf_counter()
        list(sandbox.run([_job(number, False)]))
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    yield _line("latency_p50", seconds[len(seconds) // 2] * 1000, "ms")
    yield _line("latency_p99", seconds[int(len(seconds) * 0.99)] * 1000, "ms")


def _by_containers(kind: str, programs: int, most: int) -> Iterator[dict[str, Any]]:
    """Measure single runs by number of containers: one, the number of cores, one more."""
    for count in sorted({1, most, most + 1}):
        sandbox: Pool = LocalSandbox(count) if kind == "local" else DockerSandbox(containers=count)
        try:
            _warm(sandbox, count)
            yield _line(f"programs_per_s_with_{count}_containers", _rate(sandbox, programs, False), "1/s")
        finally:
            sandbox.close()


def _line(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}


def _against(rival: str, value: float, ratio: float) -> dict[str, Any]:
    return {"against": rival, "rival": round(value, 3), "ratio": round(ratio, 3)}


def _job(number: int, validate: bool) -> Job:
    """Return a different program for every number, so that no result comes from a cache."""
    return Job(_SOURCES[number % len(_SOURCES)].format(n=number + 2), str(number % 17 + 3), validate)


def _rate(sandbox: Pool, programs: int, validate: bool) -> float:
    jobs = [_job(number, validate) for number in range(programs)]
    start = time.perf_counter()
    valid = sum(verdict.status == "valid" for verdict in sandbox.run(jobs))
    seconds = time.perf_counter() - start
    if valid != programs:
        raise RuntimeError(f"{programs - valid} of {programs} honest programs were not valid")
    return programs / seconds


# --- rivals


_FORKS = """
import os, sys
print(flush=True)
for _ in range(int(sys.stdin.readline())):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""


def _fork_exit(programs: int) -> float:
    """Fork children that exit immediately from bare interpreters, one per core: the upper bound of this design."""
    cores = len(os.sched_getaffinity(0))
    command = [sys.executable, "-I", "-S", "-c", _FORKS]
    bare = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(cores)]
    for process in bare:
        assert process.stdout is not None
        process.stdout.readline()  # wait until it is ready
    start = time.perf_counter()
    for process in bare:
        assert process.stdin is not None
        process.stdin.write(f"{programs // cores}\n")
        process.stdin.close()
    for process in bare:
        process.wait()
    seconds = time.perf_counter() - start
    for process in bare:
        assert process.stdout is not None
        process.stdout.close()
    return programs // cores * cores / seconds


def _azr(programs: int) -> float:
    """Reimplement AZR's way: `exec` and `eval` in one warm worker process, twice for the determinism check."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        pool.apply(_exec_twice, ("def f(x):\n    return x", "1"))
        jobs = [_job(number, True) for number in range(programs)]
        start = time.perf_counter()
        for job in jobs:
            pool.apply_async(_exec_twice, (job.program, job.input)).get(_LIMIT)
        return programs / (time.perf_counter() - start)


def _exec_twice(program: str, text: str) -> str:
    outputs = []
    for _ in range(2):
        scope: dict[str, Any] = {}
        exec(program, scope)
        outputs.append(repr(eval(f"f({text})", scope)))
    assert outputs[0] == outputs[1]
    return outputs[0]


def _docker_exec(programs: int) -> float:
    """Run each program with `docker exec` of an interpreter in a warm container."""
    client = docker.from_env(timeout=30)
    container = client.containers.run(
        IMAGE, entrypoint=["/python", "-c", "import time; time.sleep(600)"], detach=True, network_mode="none", auto_remove=True
    )
    try:
        start = time.perf_counter()
        for number in range(programs):
            code, output = container.exec_run(["/python", "-I", "-S", "-c", _script(number)])
            if code or not output:
                raise RuntimeError(f"docker exec ended with {code}")
        return programs / (time.perf_counter() - start)
    finally:
        container.remove(force=True)
        client.close()


def _container_each(programs: int) -> float:
    """Run each program in a new container, removed afterwards."""
    client = docker.from_env(timeout=30)
    try:
        start = time.perf_counter()
        for number in range(programs):
            client.containers.run(
                IMAGE, entrypoint=["/python", "-I", "-S", "-c", _script(number)], network_mode="none", remove=True
            )
        return programs / (time.perf_counter() - start)
    finally:
        client.close()


def _script(number: int) -> str:
    job = _job(number, False)
    return f"{job.program}\nprint(repr(f({job.input})))"
