"""`populora bench evolve`: seconds and memory for one offspring by every operator, at the shapes of Qwen2.5-7B.

    populora bench evolve [--device cuda] [--threads 1] [--layers 28] [--shrink 1] [--repeats 3] [--rival-python PATH]

Two random adapters of rank 32 on the seven projections of 28 layers (80.7 M parameters, float32) in memory; an offspring is ready
when its weights are. Reading and writing files is stated apart (`io.`), as are the checks and the measurements that a row of the
offspring table needs. Every rival is timed in turns with ours, warm and as often. Ours takes one thread, and so do they unless
`--threads` gives them more:

- PEFT's `add_weighted_adapter`: `linear` and `dare_linear` on factors against our factor-space C2 and X1, on one layer and scaled
  by the number of layers; `svd`, the same mathematics as our C2, on the narrowest matrix and scaled by m n min(m, n).
- the `populora` package of PyPI (with `--rival-python`, an interpreter that has it), whose operators act on the same factors.
- a dense SVD of one matrix's delta W, scaled: what the thin one replaces.

`ratio` over 1: ours is faster (`cpu_ratio`: in processor time, for busy machines). Peak memory needs Linux (VmHWM) or CUDA.
"""

import argparse
import ctypes
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from flows.bench_evolve_rivals import (
    LAYERS,
    RANK,
    Line,
    Shapes,
    Taken,
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
from flows.bench_turns import in_turns
from stages.core.adapter_files import initial_adapter, weights_bytes, weights_sha256
from stages.core.delta import check_alike
from stages.core.trainer import Weights


def main(options: Sequence[str]) -> Iterator[Line]:
    """One JSON object a figure."""
    parser = argparse.ArgumentParser(prog="populora bench evolve")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the rivals; ours takes one")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--shrink", type=int, default=1, help="divide every side of the matrices by this, for a quick look")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rival-python", help="an interpreter that can import torch and the populora package")
    chosen = parser.parse_args(options)
    import torch

    torch.set_num_threads(chosen.threads)
    yield from bench(chosen.device, chosen.threads, chosen.layers, chosen.repeats, chosen.rival_python, chosen.shrink)


def bench(device: str, threads: int, layers: int, repeats: int, rival_python: str | None, shrink: int) -> Iterator[Line]:
    """Every operator in both spaces, then files and bookkeeping, then the rivals."""
    from stages.core.lora import OPERATORS, operators
    from stages.core.lora_paper import PAPER_OPERATORS

    shapes = shapes_of(shrink)
    parents = [random_adapter(seed, shapes, layers) for seed in (1, 2)]
    ours: dict[str, Callable[[], object]] = {}
    for prefix, known in (("", OPERATORS), ("paper.", PAPER_OPERATORS)):
        for name, operator in operators(device, known).items():
            given = parents[: 2 if name in ("X1", "X2", "X3", "X4", "C2") else 1]
            ours[prefix + name] = _maker(operator, given)
    rivals = package(rival_python, shapes, threads, layers) if rival_python else None
    medians: dict[str, Taken] = {}
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
    """A trained-looking adapter: A as PEFT starts it, B normal."""
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
    """Peak memory beyond the parents."""
    from stages.core.lora_algebra import forget_spare

    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats()
        make()
        yield line(f"memory.offspring.{name}", torch.cuda.max_memory_allocated() / 2**20, "MiB")
        return
    with suppress(OSError, AttributeError):  # elsewhere than on Linux with glibc
        forget_spare()  # memory that was freed must not hide what is taken now
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        before = _resident("VmRSS")
        make()
        yield line(f"memory.offspring.{name}", (_resident("VmHWM") - before) / 1024, "MiB")


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _files(parents: Sequence[Weights], repeats: int) -> Iterator[Line]:
    """Reading both parents, writing the child, and what its row in the offspring table takes."""
    from safetensors.numpy import load_file

    from stages.core.lora import compare

    first, second = parents
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter_model.safetensors"
        yield line("io.write_adapter", middle(lambda: path.write_bytes(weights_bytes(first)), repeats).seconds, "s")
        yield line("io.read_adapter", middle(lambda: load_file(path), repeats).seconds, "s")
    yield line("io.digest", middle(lambda: weights_sha256(first), repeats).seconds, "s")
    yield line("check.parents", middle(lambda: check_alike({"one": first, "two": second}), repeats).seconds, "s")
    yield line("measure.change", middle(lambda: compare(first, second), repeats).seconds, "s")
