"""The rivals of `populora bench evolve`: PEFT's merges, the `populora` package of PyPI, and a dense SVD."""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flows.bench.turns import in_turns

RANK, LAYERS, HIDDEN, KEYS, INNER = 32, 28, 3584, 512, 18944
Shapes = dict[str, tuple[int, int]]
PACKAGE = {  # our factor-space operators and the registries' names of the populora package
    "M1": ("MUTATION", "svd_structured"),
    "M2": ("MUTATION", "layer_selective_gaussian"),
    "M3": ("MUTATION", "component_masking"),
    "M4": ("MUTATION", "full_gaussian"),
    "M5": ("MUTATION", "neftune_style"),
    "X1": ("CROSSOVER", "dare"),
    "X2": ("CROSSOVER", "layer_wise"),
    "X3": ("CROSSOVER", "svd_subspace"),
    "X4": ("CROSSOVER", "extrapolative"),
    "C1": ("CROSSOVER", "clone"),
    "C2": ("CROSSOVER", "average"),
}
Line = dict[str, Any]


@dataclass(frozen=True)
class Elapsed:
    """Wall-clock and CPU seconds; on a busy machine only the latter can be compared."""

    seconds: float
    cpu: float

    def times(self, factor: float) -> "Elapsed":
        """Return these times multiplied by `factor`."""
        return Elapsed(self.seconds * factor, self.cpu * factor)


def shapes_of(shrink: int = 1) -> Shapes:
    """Return outputs and inputs of a layer's projections in Qwen2.5-7B, every side divided by `shrink`."""
    hidden, keys, inner = HIDDEN // shrink, KEYS // shrink, INNER // shrink
    return {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def timed(make: Callable[[], object]) -> Elapsed:
    """Time one call."""
    start, worked = time.perf_counter(), time.process_time()
    make()
    return Elapsed(time.perf_counter() - start, time.process_time() - worked)


def median(taken: Sequence[Elapsed]) -> Elapsed:
    """Return the median of both kinds of seconds."""
    return Elapsed(statistics.median(one.seconds for one in taken), statistics.median(one.cpu for one in taken))


def middle(make: Callable[[], object], repeats: int) -> Elapsed:
    """Return the median of `repeats` calls after one warm-up call."""
    make()
    return median([timed(make) for _ in range(repeats)])


def peft_merges(ours: Mapping[str, Callable[[], object]], shapes: Shapes, layers: int, repeats: int) -> Iterator[Line]:
    """PEFT's merges of two adapters into a new one, in turns with ours."""
    note = f"rival timed on one layer, times {layers}"
    for name, kind, extra in (("paper.C2", "linear", {}), ("paper.X1", "dare_linear", {"density": 0.3})):
        yield _beside(name, ours[name], f"peft-{kind}", _peft_merge(shapes, kind, **extra), layers, repeats) | {"note": note}
    narrow = shapes["self_attn.k_proj"]
    merge = _peft_merge({"self_attn.k_proj": narrow}, "svd", svd_rank=RANK, svd_full_matrices=False)
    note = "rival timed on one k_proj, scaled by m n min(m, n)"
    yield _beside("C2", ours["C2"], "peft-svd", merge, layers * _svd_work(shapes) / _work(*narrow), repeats) | {"note": note}


def _beside(name: str, make: Callable[[], object], rival: str, merge: Callable[[], object], factor: float, repeats: int) -> Line:
    """Our operator and a rival's part of the same work, both warm, in turns."""
    make(), merge()
    turns = in_turns(repeats, {"ours": partial(timed, make), "rival": partial(timed, merge)})
    mine = median(turns["ours"])
    return line(f"offspring.{name}", mine.seconds, "s") | against(rival, median(turns["rival"]).times(factor), mine)


def _peft_merge(shapes: Shapes, kind: str, **extra: Any) -> Callable[[], None]:
    import peft
    import torch

    base = torch.nn.Module()
    for path, (outputs, inputs) in shapes.items():
        base.add_module(path.replace(".", "_"), torch.nn.utils.skip_init(torch.nn.Linear, inputs, outputs, bias=False))
    targets = [path.replace(".", "_") for path in shapes]
    config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets, init_lora_weights=False)
    model = peft.PeftModel(base, config, "one")
    model.add_adapter("two", config)

    def merge() -> None:
        model.base_model.add_weighted_adapter(["one", "two"], [0.5, 0.5], "child", combination_type=kind, **extra)
        model.base_model.delete_adapter("child")

    return merge


def dense_svd(shapes: Shapes, layers: int, repeats: int) -> Iterator[Line]:
    """One dense SVD of a k_proj's delta W, scaled to all matrices."""
    import torch

    outputs, inputs = shapes["self_attn.k_proj"]
    delta_OI = torch.randn(outputs, RANK) @ torch.randn(RANK, inputs)
    one = middle(lambda: torch.linalg.svd(delta_OI, full_matrices=False), repeats)
    taken = one.times(layers * _svd_work(shapes) / _work(outputs, inputs))
    note = "timed on one k_proj, scaled by m n min(m, n) to all matrices"
    yield line("rival.dense_svd", taken.seconds, "s") | {"cpu_s": round(taken.cpu), "note": note}


def _work(outputs: int, inputs: int) -> float:
    return float(outputs * inputs * min(outputs, inputs))


def _svd_work(shapes: Shapes) -> float:
    return sum(_work(*shape) for shape in shapes.values())


_RIVAL = """
import sys, time, types, torch
from populora.operators import CROSSOVER_REGISTRY, MUTATION_REGISTRY
threads, layers, rank, *shapes = map(int, sys.argv[1:])
torch.set_num_threads(threads)
down, up = {}, {}
for layer in range(layers):
    for i in range(0, len(shapes), 2):
        down[f"{layer}.{i}"] = torch.nn.Parameter(torch.randn(3, shapes[i + 1], rank) * 0.01)
        up[f"{layer}.{i}"] = torch.nn.Parameter(torch.randn(3, shapes[i], rank) * 0.01)
population = types.SimpleNamespace(device=torch.device("cpu"), weight_down=down, weight_up=up)
for line in sys.stdin:
    kind, name = line.split()
    start, worked = time.perf_counter(), time.process_time()
    with torch.no_grad():
        if kind == "MUTATION":
            MUTATION_REGISTRY[name](population, torch.tensor([2]))
        else:
            fitness = torch.tensor([2.0, 1.0, 0.0])
            CROSSOVER_REGISTRY[name](population, torch.tensor([[0, 1]]), torch.tensor([2]), fitnesses=fitness)
    print(time.perf_counter() - start, time.process_time() - worked, flush=True)
"""


def package(python: str, shapes: Shapes, threads: int, layers: int) -> Callable[[str], Elapsed]:
    """Return a function that times one operator of the populora package on the same shapes, in a process kept warm."""
    flat = [str(side) for shape in shapes.values() for side in shape]
    process = subprocess.Popen(
        [python, "-c", _RIVAL, str(threads), str(layers), str(RANK), *flat],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    warm: set[str] = set()

    def taken(name: str) -> Elapsed:
        for _ in range(1 if name in warm else 2):
            print(*PACKAGE[name], file=process.stdin, flush=True)
            answer = process.stdout.readline() if process.stdout else ""
        warm.add(name)
        seconds, cpu = answer.split()
        return Elapsed(float(seconds), float(cpu))

    return taken


def line(name: str, value: float, unit: str) -> Line:
    """Return a figure of ours."""
    return {"name": name, "value": round(value, 3), "unit": unit}


def against(rival: str, theirs: Elapsed, ours: Elapsed) -> Line:
    """Return the fields added to a figure if a rival was timed with it."""
    ratios = {"ratio": round(theirs.seconds / ours.seconds, 3), "cpu_ratio": round(theirs.cpu / ours.cpu, 3)}
    return {"against": rival, "rival": round(theirs.seconds, 3)} | ratios
