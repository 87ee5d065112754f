"""Engine and trainer compute the same policy, or the run stops."""

import pytest

from stages.core import tables
from stages.core.engines.agreement import Disagreement, check_drift


def metrics(**drift: float):
    rows = [
        {"name": "update.drift_mean", "value": value, "member_id": member, "role": "student", "kind": None}
        for member, value in drift.items()
    ]
    rows.append({"name": "update.drift_max", "value": 9.0, "member_id": "s0", "role": "student", "kind": None})
    return tables.table(rows, tables.METRICS)


def test_small_drift_passes_and_large_drift_names_the_members():
    check_drift(metrics(s0=0.01, s1=0.2), 0.2)
    with pytest.raises(Disagreement, match=r"more than 0.2 nats a token: \{'s1': 0.31\}"):
        check_drift(metrics(s0=0.01, s1=0.31), 0.2)
    with pytest.raises(Disagreement, match="nan"):
        check_drift(metrics(s0=float("nan")), 0.2)
