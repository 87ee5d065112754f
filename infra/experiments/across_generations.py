"""How students of several generations do on tasks of several generations. Writes nothing.

    .venv/bin/python infra/experiments/across_generations.py STORE RUN TASKS ADAPTERS

TASKS are windows of generations, `0-4,100-104`, and ADAPTERS students of the run, `s0-start,s0-g0099`, or of another run on the
same model in this store, `other/s0-g0099`; their weights must still be there (`retention.adapter_every`). Every adapter attempts
the valid new tasks of each window as the run's students did: as often, at the same temperature, with the same limits and the
same judge. Each line gives the share of correct attempts, and the paired change from the first adapter; errors are over tasks.

In co-evolution, scores against the present opponent cannot tell progress from a moving target: a falling solve rate is a student
that forgets or a teacher that asks for more. Playing against opponents of other generations can (Cliff and Miller 1995).
"""

import sys
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from safetensors.numpy import load

from flows.backend import Backend
from flows.config import RunConfig, parse
from flows.run.run import Run
from flows.storage import open_store
from stages.core.engines.protocol import Engine
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import WEIGHTS_FILE, weights_sha256
from stages.core.prompts.styles import PromptStyle
from stages.core.sandbox.protocol import Sandbox
from stages.grade import grade
from stages.solve import SolvePlan, solve


def shares(
    run: Run,
    config: RunConfig,
    generation: int,
    adapter_id: str,
    digest: str,
    engine: Engine,
    style: PromptStyle,
    sandbox: Sandbox,
) -> dict[str, float]:
    """Return the share of an adapter's attempts that solve each valid new task of a generation."""
    matches, tasks = run.read_table(generation, "matches"), run.read_table(generation, "tasks")
    place = matches.schema.get_field_index("student_adapter_id")
    matches = matches.set_column(place, "student_adapter_id", pa.array([adapter_id] * matches.num_rows))
    plan = SolvePlan(config.solve.attempts, config.solve.max_new_tokens, config.engine.temperature)
    rollouts = solve(matches, {adapter_id: digest}, tasks, engine, style, plan, config.seed, generation)
    found = defaultdict[str, list[bool]](list)
    for row in grade(tasks, rollouts, sandbox).to_pylist():
        found[row["task_id"]].append(row["correct"])
    return {task_id: float(np.mean(correct)) for task_id, correct in found.items()}


def lines(window: str, shares_of: dict[str, dict[str, float]]) -> Iterator[str]:
    """Yield a line for each adapter: its mean share on a window's tasks, and the change from the first adapter."""
    first = next(iter(shares_of.values()))
    for adapter_id, own in shares_of.items():
        solved, change = (100 * np.array(values) for values in ([*own.values()], [own[task] - first[task] for task in own]))
        said = f"tasks {window:9} {adapter_id:26} solved {solved.mean():5.1f} ± {_error(solved):.1f} %"
        yield f"{said}  change {change.mean():+5.1f} ± {_error(change):.1f}  tasks {len(own)}"


def _adapter(run: Run, name: str) -> Adapter:
    """Read the weights of an adapter of this run, or of another one in its store."""
    other, slash, adapter_id = name.rpartition("/")
    owner = Run(run.store, other) if slash else run
    return Adapter(load(owner.read_adapter(adapter_id, [WEIGHTS_FILE])[WEIGHTS_FILE]), {}, 0)


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def _generations(window: str) -> range:
    first, _, last = window.partition("-")
    return range(int(first), int(last or first) + 1)


def main(store: str, run_id: str, windows: str, adapter_ids: str) -> None:
    """Print the lines of every window."""
    run = Run(open_store(store), run_id)
    config = parse((run.history.description() or {})["config"])
    adapters = {name: _adapter(run, name) for name in adapter_ids.split(",")}
    backend = Backend(config)
    try:
        engine, style, sandbox = backend.engine(adapters), backend.style(), backend.sandbox()
        for window in windows.split(","):
            found: dict[str, dict[str, float]] = {}
            for name, adapter in adapters.items():
                digest = weights_sha256(adapter.weights)
                own = [shares(run, config, one, name, digest, engine, style, sandbox) for one in _generations(window)]
                found[name] = {task_id: share for some in own for task_id, share in some.items()}
            for line in lines(window, found):
                print(line, flush=True)
    finally:
        backend.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
