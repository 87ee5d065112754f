"""What runs cost, for a comparison: the figures of `populora cost`, by its rules.

Every finished stage counts that the run itself computed: the start, the benchmarks inside the run, and the stages of a
generation that is not finished. What a fork took over is its parent's cost and has rows of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flows.monitoring.cost import GenerationCost, generation_costs, own_stages
from flows.monitoring.run_tables import RunTables
from flows.monitoring.spending import NOTHING, Spent, total
from flows.stages import STAGE_NAMES, START

BENCHMARK = "benchmark"
GENERATED, STEPS = "cost.generated_tokens", "cost.optimizer_steps"


@dataclass(frozen=True)
class SideCost:
    """The costs of one run.

    `stages` is what it spent itself, by stage; `inherited` what the stages cost that it took over (None: none). `generations` is
    how many it finished itself, `finished` what these cost without benchmarks, `steps` the optimizer steps of its updates (None:
    unknown). With `off_policy`, updates ran beside the rollouts, and their machine time is what they added.
    """

    generations: int
    stages: Mapping[str, Spent]
    inherited: Spent | None
    finished: Spent
    steps: float | None
    off_policy: bool


@dataclass(frozen=True)
class CostRow:
    """One quantity of every run, in the order of the runs; None where it is unknown. `unit` is empty for a plain count."""

    name: str
    unit: str
    values: tuple[float | None, ...]


def cost_of(watch: RunTables) -> SideCost:
    """Return the costs of a run so far."""
    found = generation_costs(watch)
    whole = [one for one in found if one.generation is not None and one.done and one.own]
    finished = total(used for one in whole for stage, used in one.own.items() if stage != BENCHMARK)
    taken = [used for one in found for used in one.inherited.values()]
    off_policy = bool(watch.run.history.off_policy_steps())
    return SideCost(len(whole), own_stages(found), total(taken) if taken else None, finished, _steps(watch, found), off_policy)


def _steps(watch: RunTables, found: Sequence[GenerationCost]) -> float | None:
    """Return the optimizer steps of the updates that the run itself computed; None if no generation counts them."""
    counted, own = _metric(watch, STEPS), [one.generation for one in found if "update" in one.own]
    known = [counted[number] for number in own if number in counted]
    return math.fsum(known) if known else None


def spent(watch: RunTables) -> dict[int, dict[str, float | None]]:
    """Return what a run had spent after each generation: generated tokens, and seconds of all steps but benchmarks, parts added.

    As in the budgets of an experiment, the start is not counted, and what a fork took over is: curves begin with it. Tokens are
    None from a generation on that did not count them.
    """
    tokens: float | None = 0.0
    seconds, found = 0.0, {}
    counted = _metric(watch, GENERATED)
    for number in watch.generations:
        made = counted.get(number)
        tokens = None if tokens is None or made is None else tokens + made
        steps = (one for one in watch.steps(number) if one.whole_stage != BENCHMARK)
        seconds += sum(float(one.clock.get("seconds", 0.0)) for one in steps)
        found[number] = {"generated_tokens": tokens, "seconds": seconds}
    return found


def _metric(watch: RunTables, name: str) -> dict[int, float]:
    """Return a metric of all members by generation, where it is finite."""
    metrics = watch.table("metrics")
    rows = metrics.filter(pc.is_in(metrics["name"], value_set=pa.array([name]))).to_pylist()
    whole = [row for row in rows if (row["member_id"], row["role"], row["kind"]) == (None, None, None)]
    return {row["generation"]: row["value"] for row in whole if math.isfinite(row["value"])}


def cost_rows(runs: Sequence[SideCost]) -> list[CostRow]:
    """Return the costs as rows, one per quantity. Seconds are machine time, as in `populora cost`."""
    sums = [total(run.stages.values()) for run in runs]
    rows = [
        CostRow("generations computed", "", tuple(float(run.generations) for run in runs)),
        CostRow("prompt tokens", "", tuple(one.prompt_tokens for one in sums)),
        CostRow("tokens generated", "", tuple(one.generated_tokens for one in sums)),
        CostRow("tokens trained on", "", tuple(one.trained_tokens for one in sums)),
        CostRow("optimizer steps", "", tuple(run.steps for run in runs)),
    ]
    rows += [
        CostRow(f"{stage} stage", "s", tuple(_seconds(run, stage) for run in runs))
        for stage in (START.name, *STAGE_NAMES)
        if any(stage in run.stages for run in runs)
    ]
    rows.append(CostRow("all stages", "s", tuple(one.machine_seconds for one in sums)))
    rows.append(CostRow("a generation, without benchmark", "s", tuple(_per_generation(run) for run in runs)))
    sampled = [total(run.stages[stage] for stage in ("propose", "solve") if stage in run.stages) for run in runs]
    trained = [NOTHING if run.off_policy else run.stages.get("update", NOTHING) for run in runs]
    made = tuple(_rate(used.generated_tokens, used) for used in sampled)
    rows.append(CostRow("tokens generated per second of propose and solve", "", made))
    rows.append(
        CostRow("tokens trained on per second of update", "", tuple(_rate(used.trained_tokens, used) for used in trained))
    )
    taken = [run.inherited for run in runs]
    if any(one is not None for one in taken):
        rows.append(
            CostRow("taken over, not counted above", "s", tuple(None if one is None else one.machine_seconds for one in taken))
        )
        rows.append(CostRow("tokens generated for it", "", tuple(None if one is None else one.generated_tokens for one in taken)))
    return rows


def _seconds(run: SideCost, stage: str) -> float | None:
    return run.stages[stage].machine_seconds if stage in run.stages else None


def _per_generation(run: SideCost) -> float | None:
    return run.finished.machine_seconds / run.generations if run.generations else None


def _rate(count: int | None, used: Spent) -> float | None:
    return count / used.machine_seconds if count is not None and used.machine_seconds else None
