"""The gate experiment on a comparison page: arms that differ in `experiment.leak` only, as curves of skill and validity."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.config import dump
from flows.experiments.comparison import ComparedRun
from flows.experiments.spec import Experiment, Planned
from flows.report.report_page import Html, escape, table
from stages.core.statistics.paired import SeedEstimate, over_seeds

QUANTITIES = ("skill", "propose.valid_share", "solve.rate", "leak.posed")
"""`skill` is the primary measure at the end of a run; the others are metrics of true verdicts over the last third of it."""
HEADS = ("score at the end", "valid proposals", "solve rate", "invalid among posed tasks")


@dataclass(frozen=True)
class Curve:
    """Arms that are equal but for their leak: their common name and, by leak, the seeds' values of each quantity."""

    name: str
    values: Mapping[float, Mapping[str, Sequence[float]]]


def leak_curves(described: Experiment, found: Sequence[ComparedRun]) -> list[Curve]:
    """Return a curve for each set of arms that differ in their leak only; none in an experiment without a leak."""
    alike: dict[str, list[ComparedRun]] = {}
    for one in found:
        alike.setdefault(_without_leak(one.planned), []).append(one)
    curves = []
    for runs, model in ((of, model) for family in alike.values() for model, of in _by_model(family).items()):
        names = list(dict.fromkeys(one.planned.arm for one in runs))
        if len({_leak(one) for one in runs}) > 1:
            values: dict[float, dict[str, list[float]]] = {}
            for one in (one for one in runs if one.usable):
                at = values.setdefault(_leak(one), {quantity: [] for quantity in QUANTITIES})
                for quantity, value in _ends(described, one).items():
                    at[quantity].append(value)
            stems = {name.rpartition("-")[0] for name in names}
            name = stems.pop() if len(stems) == 1 else ""
            curves.append(Curve(f"{name or names[0]}{model}", dict(sorted(values.items()))))
    return curves


def _by_model(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Return the runs by what their base model adds to a curve's name: nothing if there is one. Those not started are in all."""
    models = list(dict.fromkeys(one.model for one in runs if one.model))
    if len(models) < 2:
        return {"": list(runs)}
    return {f" on {model[:8]}": [one for one in runs if one.model in ("", model)] for model in models}


def leak_table(curves: Sequence[Curve], alpha: float) -> Html:
    """Return the values of the curves: means over seeds in percent, with their standard errors.

    A run that posed no task in its last third has no solve rate. A mean over fewer seeds than have a score says over how many.
    """
    rows = [
        [escape(curve.name), escape(f"{leak:g}"), escape(len(values["skill"]))]
        + [escape(_percent(over_seeds(values[quantity], alpha), len(values["skill"]))) for quantity in QUANTITIES]
        for curve in curves
        for leak, values in curve.values.items()
    ]
    if not rows:
        return Html('<p class="none">No run is finished yet.</p>')
    return table(("arms", "leak", "seeds", *(f"{head} (%)" for head in HEADS)), rows)


def _ends(described: Experiment, one: ComparedRun) -> dict[str, float]:
    rule = described.primary
    wanted = ("score", rule.measure, rule.group, rule.over)
    scored = [point for point in one.points if (point["what"], point["measure"], point["group"], point["over"]) == wanted]
    ends: dict[str, Any] = {point["measure"]: point["score"] for point in one.points if point["what"] == "metric"}
    last = max((point for point in scored if point["trained"]), key=lambda point: point["trained"], default=None)
    found = {quantity: ends[quantity] for quantity in QUANTITIES if quantity in ends}
    return found | ({"skill": last["score"]} if last else {})


def _without_leak(planned: Planned) -> str:
    config = dump(planned.config) | {"seed": 0, "experiment": {}}
    return json.dumps(config, sort_keys=True)


def _leak(one: ComparedRun) -> float:
    return one.planned.config.experiment.leak


def _percent(found: SeedEstimate, seeds: int) -> str:
    if not found.n:
        return "–"
    error = f" ± {100 * found.stderr:.2f}" if found.stderr is not None else ""
    return f"{100 * found.mean:.2f}{error}" + (f" ({found.n} of {seeds} seeds)" if found.n != seeds else "")
