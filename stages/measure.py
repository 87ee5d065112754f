"""Measure: the numbers of a generation, computed from its tables."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from stages.core import tables


def measure(proposals: pa.Table, tasks: pa.Table, rollouts: pa.Table, grades: pa.Table, samples: pa.Table) -> pa.Table:
    """METRICS of proposing and solving: for all members together, each member, and each kind."""
    rows = _proposal_rows(proposals, tasks) + _answer_rows(rollouts, grades) + _sample_rows(samples)
    return tables.table(rows, tables.METRICS)


def _metric(name: str, value: float, member_id: str | None = None, role: str | None = None, kind: str | None = None) -> dict:
    return {"name": name, "value": float(value), "member_id": member_id, "role": role, "kind": kind}


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else float("nan")


def _proposal_rows(proposals: pa.Table, tasks: pa.Table) -> list[dict]:
    listed = tasks.select(["teacher_id", "kind", "status", "duplicate", "probe_overlap", "gate", "program"]).to_pylist()
    rows = []
    for member, kind, chosen in _slices(listed, "teacher_id"):
        valid = [row for row in chosen if row["status"] == "valid"]
        label = (member, "teacher" if member else None, kind)
        rows.append(_metric("propose.valid_share", _mean(row["status"] == "valid" for row in chosen), *label))
        rows.append(_metric("propose.duplicate_share", _mean(row["duplicate"] for row in valid), *label))
    reasons = Counter(row["status"] for row in listed)
    rows += [_metric(f"propose.status.{status}", count) for status, count in sorted(reasons.items())]
    gates = Counter(row["gate"] for row in listed if row["gate"])
    rows += [_metric(f"propose.gate.{gate}", count) for gate, count in sorted(gates.items())]
    rows.append(_metric("propose.probe_overlap", sum(row["probe_overlap"] for row in listed)))
    rows.append(
        _metric("propose.program_lines", _mean(row["program"].count("\n") + 1 for row in listed if row["status"] == "valid"))
    )
    rows.append(_metric("propose.completion_tokens", _mean(map(len, proposals["completion_ids"].to_pylist()))))
    rows.append(_metric("propose.truncated_share", _mean(proposals["truncated"].to_pylist())))
    return rows


def _answer_rows(rollouts: pa.Table, grades: pa.Table) -> list[dict]:
    listed = grades.select(["student_id", "kind", "status", "correct"]).to_pylist()
    rows = []
    for member, kind, chosen in _slices(listed, "student_id"):
        label = (member, "student" if member else None, kind)
        rows.append(_metric("solve.rate", _mean(row["correct"] for row in chosen), *label))
        rows.append(_metric("solve.format_share", _mean(row["status"] != "format" for row in chosen), *label))
    rows.append(_metric("solve.completion_tokens", _mean(map(len, rollouts["completion_ids"].to_pylist()))))
    rows.append(_metric("solve.truncated_share", _mean(rollouts["truncated"].to_pylist())))
    return rows


def _sample_rows(samples: pa.Table) -> list[dict]:
    listed = samples.select(["member_id", "role", "group_id", "reward", "centred"]).to_pylist()
    rows = []
    for member, role in sorted({(row["member_id"], row["role"]) for row in listed}):
        own = [row for row in listed if (row["member_id"], row["role"]) == (member, role)]
        groups = {row["group_id"] for row in own}
        moving = {row["group_id"] for row in own if abs(row["centred"]) > 1e-12}
        rows.append(_metric("reward.mean", _mean(row["reward"] for row in own), member, role))
        rows.append(_metric("reward.zero_variance_share", 1 - len(moving) / len(groups), member, role))
    for role in sorted({row["role"] for row in listed}):
        rows.append(_metric("reward.mean", _mean(row["reward"] for row in listed if row["role"] == role), None, role))
    return rows


def _slices(rows: list[dict], member: str) -> list[tuple[str | None, str | None, list[dict]]]:
    """(member, kind, rows) for all rows, each kind, each member."""
    slices: list[tuple[str | None, str | None, list[dict]]] = [(None, None, rows)]
    slices += [(None, kind, [row for row in rows if row["kind"] == kind]) for kind in sorted({row["kind"] for row in rows})]
    slices += [(name, None, [row for row in rows if row[member] == name]) for name in sorted({row[member] for row in rows})]
    return slices
