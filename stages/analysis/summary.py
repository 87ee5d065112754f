"""Summary: one line per generation, for people at a terminal.

    g0003  valid 71 %  solved 42 % (deduction 51, abduction 44, induction 30)  reward teachers +0.21
    students +0.13  rating teachers 25.1 students 24.9  best t1 28.0 s2 27.7  replaced t0 by t3 (mutation M2 of t1)
    propose 2.1 s solve 4.0 s update 5.2 s  total 13 s

(on one line; docs/operations.md explains it). Ratings are the mean mu of a role; the best members are chosen by fitness and shown
with their mu. Unknown values are left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.core.places import for_others

KINDS = ("deduction", "abduction", "induction")
ROLES = {"teacher": "teachers", "student": "students"}
SHOWN_STAGES = 3

Values = dict[tuple[str, str | None, str | None, str | None], float]
"""Metric values by (name, member, role, kind)."""


def generation_line(
    metrics: pa.Table, ratings: pa.Table, offspring: pa.Table | None, seconds: Mapping[str, float], generation: int | None = None
) -> str:
    """Format METRICS, RATINGS, OFFSPRING and seconds by stage of one generation as one line, headed by `generation` if given.

    `offspring` is None while the generation has not evolved yet.
    """
    values = lookup(metrics)
    parts = [
        "" if generation is None else f"g{generation:04d}",
        _share("valid", values.get(("propose.valid_share", None, None, None))),
        _solved(values),
        _replayed(values.get(("solve.replayed", None, None, None))),
        _rewards(values),
        *_ratings(ratings),
        _births(offspring),
        *_seconds(seconds),
    ]
    return "  ".join(part for part in parts if part)


def lookup(metrics: pa.Table, names: Sequence[str] | None = None) -> Values:
    """Return finite metric values by (name, member, role, kind): of all METRICS, or of those with these names."""
    if names is not None:
        metrics = metrics.filter(pc.is_in(metrics["name"], value_set=pa.array(names, pa.string())))
    columns = [metrics[name].to_pylist() for name in ("name", "member_id", "role", "kind")]
    values = metrics["value"].to_pylist()
    return {key: value for key, value in zip(zip(*columns, strict=True), values, strict=True) if math.isfinite(value)}


def _share(word: str, value: float | None) -> str:
    return "" if value is None else f"{word} {100 * value:.0f} %"


def _solved(values: Mapping[tuple[str, str | None, str | None, str | None], float]) -> str:
    rates = {kind: values.get(("solve.rate", None, None, kind)) for kind in KINDS}
    known = ", ".join(f"{kind} {100 * rate:.0f}" for kind, rate in rates.items() if rate is not None)
    overall = _share("solved", values.get(("solve.rate", None, None, None)))
    return f"{overall} ({known})" if overall and known else overall


def _replayed(count: float | None) -> str:
    """Format the number of stored tasks that filled short batches, if any."""
    return f"replayed {count:.0f}" if count else ""


def _rewards(values: Mapping[tuple[str, str | None, str | None, str | None], float]) -> str:
    means = {plural: values.get(("reward.mean", None, role, None)) for role, plural in ROLES.items()}
    known = [f"{plural} {mean:+.2f}" for plural, mean in means.items() if mean is not None]
    return f"reward {' '.join(known)}" if known else ""


def _ratings(ratings: pa.Table) -> list[str]:
    """Format the mean mu of each role and its best member. A single agent's rating is constant and is left out."""
    latest: dict[str, dict[str, Any]] = {row["member_id"]: row for row in ratings.to_pylist()}
    means, best = [], []
    for role, plural in ROLES.items():
        members = [row for row in latest.values() if row["role"] == role]
        if members:
            strongest = max(members, key=lambda row: row["fitness"])
            means.append(f"{plural} {sum(row['mu'] for row in members) / len(members):.1f}")
            best.append(f"{strongest['member_id']} {strongest['mu']:.1f}")
    return [f"rating {' '.join(means)}", f"best {' '.join(best)}"] if means else []


def _births(offspring: pa.Table | None) -> str:
    """Say which member a new one replaced, and which operator made it from which parents."""
    made = [
        f"{row['replaces']} by {row['member_id']} "
        f"({row['operator_kind']} {for_others(row['operator'])} of {' and '.join(row['parents'])})"
        for row in (offspring.to_pylist() if offspring is not None else [])
    ]
    return f"replaced {', '.join(made)}" if made else ""


def _seconds(seconds: Mapping[str, float]) -> list[str]:
    """Format the longest stages in the order given, and the total (an entry of that name, or the sum)."""
    stages = {stage: value for stage, value in seconds.items() if stage != "total"}
    longest = sorted(stages, key=lambda stage: stages[stage], reverse=True)[:SHOWN_STAGES]
    shown = " ".join(f"{stage} {_duration(value)}" for stage, value in stages.items() if stage in longest)
    total = seconds.get("total", sum(stages.values()))
    return [shown, f"total {_duration(total)}"] if seconds else []


def _duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
