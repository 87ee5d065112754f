"""Curves of a run: metrics of the population or of one role, generation by generation."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow as pa

from stages.core.statistics.metric_rows import clustered

OVER_PAIRS = ("pair.adapter_distance", "pair.program_distance", "adapter.norm", "child.gain", "child.lead")
"""Metrics of pairs and of children, whose curve is their mean."""
COUNTS = ("propose.status.", "propose.gate.")
"""Beginnings of metrics that count proposals by verdict. METRICS of a generation have no row of what did not occur in it."""


def curve_rows(metrics: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield name, value, n and stderr of METRICS of one generation, without those of a kind or of a member.

    The name of a role's metric ends with ` (teachers)` or ` (students)`. Metrics of OVER_PAIRS are averaged.
    """
    yield from curves_of(metrics.to_pylist())


def curves_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the same from the rows of METRICS of one generation."""
    apart = defaultdict(list)
    for row in rows:
        if row["kind"] is not None or not math.isfinite(row["value"]):
            continue
        role = f" ({row['role']}s)" if row["role"] in ("teacher", "student") else ""
        if row["member_id"] is None:
            yield {"name": row["name"] + role, "value": row["value"], "n": row["n"], "stderr": row["stderr"]}
        elif row["name"] in OVER_PAIRS:
            apart[row["name"] + role].append(row["value"])
    for name, values in sorted(apart.items()):
        mean, _, n = clustered(values)
        yield {"name": name, "value": mean, "n": n, "stderr": None}  # pairs share members: no valid error from one run


def absent_counts(curves: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row of value 0 for each count among `names` that a generation of a run with proposals has none of.

    `curves` are all rows of the run, with `trained`. Without these rows, a mean over generations or seeds would be one over those
    in which the verdict occurred.
    """
    there = {(row["trained"], row["name"]) for row in curves}
    proposed = {row["trained"]: row["n"] for row in curves if row["name"].startswith(COUNTS[0])}
    for trained, name in product(proposed, sorted(set(names))):
        if name.startswith(COUNTS) and (trained, name) not in there:
            yield {"trained": trained, "name": name, "value": 0.0, "n": proposed[trained], "stderr": None}
