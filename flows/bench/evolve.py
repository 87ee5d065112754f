"""`populora bench evolve`: seconds and memory for one offspring by every operator, at the shapes of Qwen2.5-7B.

    populora bench evolve [--device cuda] [--threads 1] [--layers 28] [--shrink 1] [--repeats 3] [--rival-python PATH]
                          [--mutation path/to/file.py:function] [--crossover path/to/file.py:function]

Two random adapters of rank 32 on the seven projections of 28 layers (80.7 M parameters, float32) in memory; an offspring is ready
when its weights are. Reading and writing files is stated apart (`io.`), as are the checks and the measurements that a row of the
offspring table needs. `--mutation` and `--crossover` also time operators of yours. Every rival is timed in turns with ours, warm
and as often. Ours takes one thread, and so do they unless `--threads` gives them more:

- PEFT's `add_weighted_adapter`: `linear` and `dare_linear` on factors against our factor-space C2 and X1, on one layer and scaled
  by the number of layers; `svd`, the same mathematics as our C2, on the narrowest matrix and scaled by m n min(m, n).
- the `populora` package of PyPI (with `--rival-python`, an interpreter that has it), whose operators act on the same factors.
- a dense SVD of one matrix's delta W, scaled, which our thin SVD replaces.

`ratio` over 1: ours is faster (`cpu_ratio`: by CPU time, for busy machines). Peak memory needs Linux (VmHWM) or CUDA.
"""

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from flows.bench.evolve_rivals import (
    LAYERS,
    RANK,
    Elapsed,
    Line,
    Shapes,
    against,
    dense_svd,
    line,
    median,
    middle,
    package,
    peft_merges,
    shapes_of,
    timed,
)
from flows.bench.turns import in_turns
from flows.choices import choose
from flows.commands.arguments import OneLineParser
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import initial_adapter, weights_bytes, weights_sha256
from stages.core.lora.delta import check_alike

USERS = {"mutation": 1, "crossover": 2}
"""Options that name a user's operators, with the number of parents."""


def main(options: Sequence[str]) -> Iterator[Line]:
    """Yield one JSON object per figure."""
    parser = OneLineParser(prog="populora bench evolve")
    parser.add_argument("--device", default="cpu", help="cpu, or a torch device such as cuda")
    parser.add_argument("--threads", type=int, default=1, help="of the rivals; ours takes one")
    parser.add_argument("--layers", type=int, default=LAYERS, help="layers of the base")
    parser.add_argument("--shrink", type=int, default=1, help="divide every side of the matrices by this, for a quick look")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each operator; the median counts")
    parser.add_argument("--rival-python", help="an interpreter that can import torch and the populora package")
    for role in USERS:
        parser.add_argument(f"--{role}", action="append", default=[], metavar="FILE:FUNCTION", help="also time your own operator")
    chosen = parser.parse_args(options)
    import torch

    torch.set_num_threads(chosen.threads)
    shapes, named = shapes_of(chosen.shrink), {role: getattr(chosen, role) for role in USERS}
    own = {(role, name): choose(f"--{role}", name, {}) for role in USERS for name in named[role]}  # reject a mistake immediately
    yield from bench(chosen.device, chosen.threads, chosen.layers, chosen.repeats, chosen.rival_python, chosen.shrink)
    yield from users_operators(own, shapes, chosen.layers, chosen.repeats)


def users_operators(
    own: Mapping[tuple[str, str], Callable[..., object]], shapes: Shapes, layers: int, repeats: int
) -> Iterator[Line]:
    """Return the seconds of a user's operators, by role and name, on parents of the same shapes."""
    parents = [random_adapter(seed, shapes, layers) for seed in (1, 2)] if own else []
    for (role, name), operator in own.items():
        taken = middle(_maker(operator, parents[: USERS[role]]), repeats)
        yield line(f"offspring.{name}", taken.seconds, "s") | {"cpu_s": round(taken.cpu, 3)}


def bench(device: str, threads: int, layers: int, repeats: int, rival_python: str | None, shrink: int) -> Iterator[Line]:
    """Measure every operator in both spaces, then files and bookkeeping, then the rivals."""
    from stages.core.lora.operators import OPERATORS, operators
    from stages.core.lora.paper import PAPER_OPERATORS

    shapes = shapes_of(shrink)
    parents = [random_adapter(seed, shapes, layers) for seed in (1, 2)]
    ours: dict[str, Callable[[], object]] = {}
    for prefix, known in (("", OPERATORS), ("paper.", PAPER_OPERATORS)):
        for name, operator in operators(device, known).items():
            given = parents[: 2 if name in ("X1", "X2", "X3", "X4", "C2") else 1]
            ours[prefix + name] = _maker(operator, given)
    rivals = package(rival_python, shapes, threads, layers) if rival_python else None
    medians: dict[str, Elapsed] = {}
    for name, make in ours.items():
        sides = {"ours": partial(timed, make)}
        if rivals and name.startswith("paper."):
            sides["rival"] = partial(rivals, name.removeprefix("paper."))
        make()  # warm, as the rival's process is after its first call
        turns = in_turns(repeats, sides)
        medians[name], theirs = median(turns["ours"]), turns.get("rival", [])
        own = line(f"offspring.{name}", medians[name].seconds, "s") | {"cpu_s": round(medians[name].cpu, 3)}
        yield own | (against("populora-package", median(theirs), medians[name]) if theirs else {})
        if not name.startswith("paper."):
            yield from _memory(name, make, device)
    yield from _files(parents, repeats)
    if device == "cpu":
        yield from peft_merges(ours, shapes, layers, repeats)
        yield from dense_svd(shapes, layers, repeats)


def random_adapter(seed: int, shapes: Shapes, layers: int) -> Weights:
    """Return an adapter that resembles a trained one: A as PEFT initializes it, B normal."""
    named = {f"model.layers.{layer}.{path}": shape for layer in range(layers) for path, shape in shapes.items()}
    rng = np.random.default_rng(seed)
    start = initial_adapter(named, RANK, seed).weights
    return {
        name: values if "lora_A" in name else 0.01 * rng.standard_normal(values.shape, dtype=np.float32)
        for name, values in start.items()
    }


def _maker(operator: Callable[..., object], given: Sequence[Weights]) -> Callable[[], object]:
    return lambda: operator(given, np.random.default_rng(0))


def _memory(name: str, make: Callable[[], object], device: str) -> Iterator[Line]:
    """Measure peak memory beyond the parents."""
    from stages.core.lora.algebra import forget_spare

    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats()
        make()
        yield line(f"memory.offspring.{name}", torch.cuda.max_memory_allocated() / 2**20, "MiB")
        return
    with suppress(OSError, AttributeError):  # anything other than Linux with glibc
        forget_spare()  # freed memory must not hide new allocations
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
        before = _resident("VmRSS")
        make()
        yield line(f"memory.offspring.{name}", (_resident("VmHWM") - before) / 1024, "MiB")


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _files(parents: Sequence[Weights], repeats: int) -> Iterator[Line]:
    """Measure reading both parents, writing the child, and computing its row in the offspring table."""
    from safetensors.numpy import load_file

    from stages.core.lora.operators import compare

    first, second = parents
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter_model.safetensors"
        yield line("io.write_adapter", middle(lambda: path.write_bytes(weights_bytes(first)), repeats).seconds, "s")
        yield line("io.read_adapter", middle(lambda: load_file(path), repeats).seconds, "s")
    yield line("io.digest", middle(lambda: weights_sha256(first), repeats).seconds, "s")
    yield line("check.parents", middle(lambda: check_alike({"one": first, "two": second}), repeats).seconds, "s")
    yield line("measure.change", middle(lambda: compare(first, second), repeats).seconds, "s")
