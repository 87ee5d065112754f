"""`populora bench sandbox`: programs per second through the judge's sandbox, paired in one run with other ways to run them.

Rivals: fork and exit on the host (the floor of every such design), AZR's way (in-process `exec` in warm pool workers), an
interpreter a program through `docker exec`, and a container a program. They are a pair of equals with ours: as many workers, as
many runs of every program (one for a rate of programs; two, with two hash seeds where there is a choice, for a rate of validated
tasks), warm before the clock starts, and each begins every other turn. A ratio is the middle of the turns' ratios.
"""

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import docker

from flows.bench.turns import in_turns, usable_cores
from flows.commands.arguments import OneLineParser
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
_LIMIT, _PAUSE = 10, 1.0  # seconds; the daemon goes on removing a rival's containers for as long as the latter
_INTERPRETER = ["/python", "-s", "-S", "-P", "-c"]
_WITNESSED = Job("def f(x):\n    return {x, x + 1}", "1", True)  # starts every server that a worker may have


def bench_sandbox(
    kind: str = "docker", programs: int = 2000, containers: int | None = None, repeats: int = 7
) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per figure: ours alone, then paired with each rival (`ratio` over 1: ours is faster)."""
    count = containers or os.cpu_count() or 1
    sandbox: Pool = LocalSandbox(count) if kind == "local" else DockerSandbox(containers=count)
    try:
        _warm(sandbox, count)
        yield from _paired(sandbox, programs, count, repeats, kind)
        yield from _latency(sandbox, min(programs, 400))
    finally:
        sandbox.close()
    yield from _by_containers(kind, programs // 2, count)


def main(options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run the command with options `--kind docker|local --programs N --containers N --repeats N`."""
    parser = OneLineParser(prog="populora bench sandbox")
    parser.add_argument(
        "--kind", choices=("docker", "local"), default="docker", help="sandbox that is measured: docker, or local (no isolation)"
    )
    parser.add_argument("--programs", type=int, default=2000, help="programs in each measurement")
    parser.add_argument("--containers", type=int, help="warm containers (default: one for each core)")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each side, in turn; the median counts")
    chosen = parser.parse_args(options)
    return bench_sandbox(chosen.kind, chosen.programs, chosen.containers, chosen.repeats)


def _paired(sandbox: Pool, programs: int, count: int, repeats: int, kind: str) -> Iterator[dict[str, Any]]:
    """Ours and each rival in turn; the middle of the turns, and of their ratios."""
    cores = usable_cores()
    for name, runs, ours in (("programs_per_s", 1, programs), ("validated_tasks_per_s", 2, programs // 2)):
        sides = {name: partial(_rate, sandbox, ours, runs == 2)} | rivals(kind, programs, count, runs)
        found = in_turns(repeats, sides)
        middle = {side: statistics.median(rates) for side, rates in found.items()}
        yield _line(name, middle[name], "1/s")
        yield _line(f"{name}_and_core", middle[name] / cores, "1/s")
        for rival in list(sides)[1:]:
            ratios = [value / other for value, other in zip(found[name], found[rival], strict=True)]
            line = _line(name, middle[name], "1/s") | _against(rival, middle[rival], statistics.median(ratios))
            yield line | {"workers": count, "runs_a_program": runs}


def rivals(kind: str, programs: int, count: int, runs: int) -> dict[str, Callable[[], float]]:
    """Other ways to run every program so many times with so many workers: programs a second each."""
    made: dict[str, Callable[[], float]] = {
        "fork_exit": lambda: _fork_exit(programs, count, runs),
        "azr_exec": lambda: _azr(programs, count, runs),
    }
    if kind == "docker":
        made["docker_exec"] = lambda: _docker_exec(8 * count, count, runs)
        made["container_per_program"] = lambda: _container_each(4 * count, count, runs)
    return made


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


def _fork_exit(programs: int, workers: int, runs: int) -> float:
    """Bare interpreters that fork children which exit at once, one a run: nothing of this kind can be faster."""
    command = [sys.executable, "-I", "-S", "-c", _FORKS]
    bare = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    for process in bare:
        assert process.stdout is not None
        process.stdout.readline()  # wait until it is ready
    start = time.perf_counter()
    for process in bare:
        assert process.stdin is not None
        process.stdin.write(f"{programs // workers * runs}\n")
        process.stdin.close()
    for process in bare:
        process.wait()
    seconds = time.perf_counter() - start
    for process in bare:
        assert process.stdout is not None
        process.stdout.close()
    return programs // workers * workers / seconds


def _azr(programs: int, workers: int, runs: int) -> float:
    """AZR's way, written anew: warm worker processes, `exec` and `eval` in them, again for the determinism check."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers) as pool:
        pool.starmap(exec_runs, [("def f(x):\n    return x", "1", runs)] * (32 * workers), 1)
        jobs = [_job(number, True) for number in range(programs)]
        start = time.perf_counter()
        asked = [pool.apply_async(exec_runs, (job.program, job.input, runs)) for job in jobs]
        for answer in asked:
            answer.get(_LIMIT)
        return programs / (time.perf_counter() - start)


def exec_runs(program: str, text: str, runs: int) -> str:
    """The program's value after so many runs in this process, which must agree."""
    outputs = []
    for _ in range(runs):
        scope: dict[str, Any] = {}
        exec(program, scope)
        outputs.append(repr(eval(f"f({text})", scope)))
    assert len(set(outputs)) == 1, outputs
    return outputs[0]


def _at_once(programs: int, workers: int, runs: int, run: Callable[[int, int, int], bytes]) -> float:
    """Programs a second of `run(number, seed, worker)` where each worker does its part, run after run."""

    def part(worker: int) -> None:
        for number in range(worker, programs, workers):
            outputs = {run(number, seed, worker) for seed in range(runs)}
            if len(outputs) != 1 or not outputs.pop():
                raise RuntimeError(f"program {number} gave nothing, or two values")

    with ThreadPoolExecutor(workers) as threads:
        start = time.perf_counter()
        list(threads.map(part, range(workers)))
        return programs / (time.perf_counter() - start)


def _docker_exec(programs: int, workers: int, runs: int) -> float:
    """Warm containers, one `docker exec` of an interpreter a run."""
    client = docker.from_env(timeout=30)
    sleep = ["/python", "-c", "import time; time.sleep(600)"]
    containers = []
    try:
        for _ in range(workers):
            containers.append(client.containers.run(IMAGE, entrypoint=sleep, detach=True, network_mode="none", auto_remove=True))

        def run(number: int, seed: int, worker: int) -> bytes:
            environment = {"PYTHONHASHSEED": str(seed)}
            code, output = containers[worker].exec_run([*_INTERPRETER, _script(number)], environment=environment)
            return b"" if code else bytes(output)

        for worker in range(workers):
            run(0, 0, worker)
        return _at_once(programs, workers, runs, run)
    finally:
        for container in containers:
            container.remove(force=True)
        client.close()


def _container_each(programs: int, workers: int, runs: int) -> float:
    """A new container a run, removed afterwards."""
    client = docker.from_env(timeout=30)

    def run(number: int, seed: int, worker: int) -> bytes:
        environment, command = {"PYTHONHASHSEED": str(seed)}, [*_INTERPRETER, _script(number)]
        return bytes(client.containers.run(IMAGE, entrypoint=command, environment=environment, network_mode="none", remove=True))

    try:
        run(0, 0, 0)
        return _at_once(programs, workers, runs, run)
    finally:
        client.close()
        time.sleep(_PAUSE)


def _script(number: int) -> str:
    job = _job(number, False)
    return f"{job.program}\nprint(repr(f({job.input})))"
