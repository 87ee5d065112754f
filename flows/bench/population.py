"""`populora bench population`: the cost of a generation of 4T+4S against a single adapter with the same total tokens.

    populora bench population [--config evidence] [--generations 4] [--rounds 2] [--set KEY=VALUE]

Both are real runs with all real components. The single agent gets as many prompts as the four pairs together (`propose.groups`
times four), so that both generate and train on about as many tokens. The bench compares seconds per thousand generated tokens,
from the first stage's start to the end of the ratings, including the time between stages. The first generation is a warm-up and
is not counted. Runs alternate, so that load affects both equally.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from flows.commands.arguments import OneLineParser
from flows.config import ConfigError, load
from flows.run.run import Run
from flows.storage import open_store

PAIRS = 4
POPULATION = [f"population.teachers={PAIRS}", f"population.students={PAIRS}"]
_LITTLE = ["evolution.every=0", "benchmark.every=0", "benchmark.limit=6", "benchmark.attempts=0"]
SINGLE = ["mode=single", "population.teachers=1", "population.students=1"]


def main(options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per figure; `ratio` over 1 means that the population's tokens cost more."""
    parser = OneLineParser(prog="populora bench population")
    parser.add_argument("--config", default="evidence", help="configuration that both sides start from")
    parser.add_argument("--generations", type=int, default=4, help="measured generations of each run")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each side, in turn")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="setting for both runs")
    chosen = parser.parse_args(options)
    common = [f"generations={chosen.generations + 1}", *_LITTLE, *chosen.settings]
    groups = load(chosen.config, common).propose.groups
    arms = {
        "population": [*common, *POPULATION],
        "single": [*common, *SINGLE, f"propose.groups={PAIRS * groups}"],
    }
    for settings in arms.values():
        load(chosen.config, settings)  # reject invalid settings before any run starts
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory(prefix="populora-bench-") as folder:
        for turn in range(chosen.rounds):
            for name, settings in arms.items():
                run = _played(chosen.config, settings, folder, f"{name}-{turn}")
                measured[name] += [_cost(run, generation) for generation in range(1, chosen.generations + 1)]
    yield from _lines(measured)


def _lines(measured: dict[str, list[dict[str, float]]]) -> Iterator[dict[str, Any]]:
    medians = {
        name: {figure: statistics.median(one[figure] for one in costs) for figure in costs[0]} for name, costs in measured.items()
    }
    for name, found in medians.items():
        n = {"n": len(measured[name])}
        yield {"name": f"{name}.generation", "value": round(found["seconds"], 2), "unit": "s"} | n
        yield {"name": f"{name}.generated", "value": found["generated"], "unit": "tokens"} | n
        yield {"name": f"{name}.trained", "value": found["trained"], "unit": "tokens"} | n
    a_token, rival = (medians[name]["a_thousand"] for name in ("population", "single"))
    line = {"name": "population.a_thousand_tokens", "value": round(a_token, 4), "unit": "s", "against": "single"}
    yield line | {"rival": round(rival, 4), "ratio": round(a_token / rival, 3)}


def _played(config: str, settings: Sequence[str], store: str, run_id: str) -> Run:
    """Run in a separate process, as a user would start it."""
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "flows.cli", "run", "-c", config, "--run-id", run_id, "--store", store, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"the run {run_id} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return Run(open_store(Path(store).as_uri()), run_id)


def _cost(run: Run, generation: int) -> dict[str, float]:
    """Return the seconds of one generation up to its ratings, and its tokens: all generated, and those trained on."""
    manifests = run.history.of_generation(generation, parts=True)
    clocks = [manifest.clock for manifest in manifests if manifest.whole_stage not in ("benchmark", "evolve")]
    seconds = max(one["started"] + one["seconds"] for one in clocks) - min(one["started"] for one in clocks)
    generated = 0
    for name in ("proposals", "rollouts"):
        table = run.read_table(generation, name)
        generated += pc.sum(pc.list_value_length(table["completion_ids"])).as_py() or 0
    trained = pc.sum(pc.list_value_length(run.read_table(generation, "samples")["completion_ids"])).as_py() or 0
    return {"seconds": seconds, "generated": generated, "trained": trained, "a_thousand": 1000 * seconds / generated}
