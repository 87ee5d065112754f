"""What runs cost: tokens, optimizer steps, and the seconds of every stage by the clocks of their manifests.

Finished generations are counted, and the start on its own line. Benchmarks scored outside the run are not. A fork's costs
include the generations that it shares with its parent.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flows.monitoring.run_tables import RunTables, seconds_of
from flows.stages import STAGE_NAMES

START, BENCHMARK = "start", "benchmark"
GENERATED = "cost.generated_tokens"
BUDGETS = {
    GENERATED: "tokens generated",
    "cost.trained_tokens": "tokens trained on",
    "cost.optimizer_steps": "optimizer steps",
}


@dataclass(frozen=True)
class RunCost:
    """The costs of one run: finished generations, amounts by name (as in BUDGETS), and seconds by stage."""

    generations: int
    amounts: dict[str, float]
    seconds: dict[str, float]


@dataclass(frozen=True)
class CostRow:
    """One quantity of every run, in the order of the runs; None where it is unknown. `unit` is empty for a plain count."""

    name: str
    unit: str
    values: tuple[float | None, ...]


def cost_of(watch: RunTables) -> RunCost:
    """Return the costs of a run so far."""
    whole = [number for number in watch.generations if any(one.stage == STAGE_NAMES[-1] for one in watch.manifests(number))]
    amounts: Counter[str] = Counter()
    seconds: Counter[str] = Counter(seconds_of(watch.run.history.of_generation(None)))
    counted, clock = _counted(watch), watch.clock()
    for number in whole:
        amounts.update(counted.get(number, {}))
        seconds.update(clock[number])
    return RunCost(len(whole), dict(amounts), dict(seconds))


def spent(watch: RunTables) -> dict[int, dict[str, float | None]]:
    """Return what a run had spent after each generation: generated tokens, and seconds of all stages but benchmarks.

    As in the budgets of an experiment, the start is not counted. Tokens are None from a generation on that did not count them.
    """
    tokens: float | None = 0.0
    seconds, found = 0.0, {}
    counted, clock = _counted(watch), watch.clock()
    for number in watch.generations:
        made = counted.get(number, {}).get(GENERATED)
        tokens = None if tokens is None or made is None else tokens + made
        seconds += sum(value for stage, value in clock[number].items() if stage != BENCHMARK)
        found[number] = {"generated_tokens": tokens, "seconds": seconds}
    return found


def _counted(watch: RunTables) -> dict[int, dict[str, float]]:
    """Return the amounts of each generation that has any, by name as in BUDGETS."""
    metrics = watch.table("metrics")
    found: dict[int, dict[str, float]] = {}
    for row in metrics.filter(pc.is_in(metrics["name"], value_set=pa.array(list(BUDGETS)))).to_pylist():
        if (row["member_id"], row["role"], row["kind"]) == (None, None, None) and math.isfinite(row["value"]):
            found.setdefault(row["generation"], {})[row["name"]] = row["value"]
    return found


def cost_rows(runs: Sequence[RunCost]) -> list[CostRow]:
    """Return the costs as rows, one per quantity. Energy and money are further rows of this list."""
    rows = [CostRow("generations counted", "", tuple(float(run.generations) for run in runs))]
    rows += [CostRow(text, "", tuple(run.amounts.get(name) for run in runs)) for name, text in BUDGETS.items()]
    rows += [
        CostRow(f"{stage} stage", "s", tuple(run.seconds.get(stage) for run in runs))
        for stage in (START, *STAGE_NAMES)
        if any(stage in run.seconds for run in runs)
    ]
    rows.append(CostRow("all stages", "s", tuple(sum(run.seconds.values()) for run in runs)))
    rows.append(CostRow("per generation", "s", tuple(_per_generation(run) for run in runs)))
    made = ("tokens generated per second of propose and solve", "cost.generated_tokens", ("propose", "solve"))
    trained = ("tokens trained on per second of update", "cost.trained_tokens", ("update",))
    for name, amount, stages in (made, trained):
        rows.append(CostRow(name, "", tuple(_rate(run, amount, stages) for run in runs)))
    return rows


def _per_generation(run: RunCost) -> float | None:
    spent = sum(seconds for stage, seconds in run.seconds.items() if stage != START)
    return spent / run.generations if run.generations else None


def _rate(run: RunCost, amount: str, stages: Sequence[str]) -> float | None:
    spent = sum(run.seconds.get(stage, 0.0) for stage in stages)
    return run.amounts[amount] / spent if amount in run.amounts and spent else None
