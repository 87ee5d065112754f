"""The parts of a generation's tables that figures need: few columns, no token ids, a first column `generation`.

`grades` are those of the generation's own valid tasks. `completions` joins proposals (role teacher) and rollouts (role
student). Its `surprise` is the mean of -log p over the sampled tokens of a completion, in nats. At temperature 1 the sum is an
unbiased estimate of the sum of the policy's entropies; the mean is not one of their mean, since the length depends on what was
drawn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.judging.shapes import COUNTS, STRIPPED
from stages.core.method.leak import NO_VALUE
from stages.core.method.top_up import fresh

TASKS = ["task_id", "match_id", "teacher_id", "kind", "status", "gate", "duplicate", "program", "program_key"]
TASKS += [*COUNTS, *STRIPPED, "syntax", "value_types", "executed_lines"]
CLUSTER = ["proposal_id", "group_id", "adapter_id"]
GRADES = ["task_id", "match_id", "student_id", "kind", "status", "correct"]
SAMPLES = ["member_id", "role", "kind", "group_id", "reward", "centred"]

COMPLETION = ["kind", "completion_ids", "logprobs", "truncated"]

Tables = dict[str, pa.Table]

_WHOLE = {name: {name: list(tables.GENERATION_TABLES[name].names)} for name in ("matches", "ratings", "offspring", "metrics")}
MADE_FROM: Mapping[str, Mapping[str, Sequence[str]]] = _WHOLE | {
    "tasks": {"tasks": TASKS, "proposals": CLUSTER},
    "grades": {"grades": GRADES, "tasks": ["task_id", "status"]},
    "samples": {"samples": [*SAMPLES, "sample_id"], "proposals": CLUSTER},
    "completions": {
        "proposals": ["teacher_id", "group_id", *COMPLETION],
        "rollouts": ["student_id", "task_id", *COMPLETION],
    },
}
"""Each condensed table: the tables of a generation that it is made from, and which of their columns."""
_EMPTY = {name: schema.empty_table() for name, schema in tables.GENERATION_TABLES.items()}


def sources(names: Iterable[str]) -> dict[str, set[str]]:
    """Return the tables from which these condensed ones are made, and the columns that are needed of each."""
    found: dict[str, set[str]] = {}
    for name in names:
        for source, columns in MADE_FROM[name].items():
            found.setdefault(source, set()).update(columns)
    return found


def condense(generation: int, found: Mapping[str, pa.Table], names: Iterable[str] = tuple(MADE_FROM)) -> Tables:
    """Return condensed tables of one generation, from its readable tables (the others give no rows)."""
    full = {**_EMPTY, **found}
    make: Mapping[str, Callable[[], pa.Table]] = {
        "tasks": lambda: _tasks(full["tasks"], full["proposals"]),
        "grades": lambda: _grades(full["grades"], full["tasks"] if "tasks" in found else None),
        "samples": lambda: with_clusters(full["samples"], full["proposals"]).select([*SAMPLES, "cluster"]),
        "completions": lambda: completions(full["proposals"], full["rollouts"]),
    }
    return {name: numbered(make[name]() if name in make else full[name], generation) for name in names}


def _grades(grades: pa.Table, tasks: pa.Table | None) -> pa.Table:
    """Return grades of the generation's own tasks, without any of answers to invalid tasks that a leak let through.

    If the tasks cannot be read, the unreadable ones of those answers remain.
    """
    if tasks is None:
        return grades.filter(pc.not_equal(grades["status"], NO_VALUE)).select(GRADES)
    return fresh(grades, tasks.filter(pc.equal(tasks["status"], "valid"))).select(GRADES)


def numbered(table: pa.Table, generation: int) -> pa.Table:
    """The table with a first column `generation`."""
    column = pa.array(np.full(table.num_rows, generation, np.int64))
    return table.replace_schema_metadata(None).add_column(0, pa.field("generation", pa.int64()), column)


def joined(parts: Sequence[Tables], names: Iterable[str] = tuple(MADE_FROM)) -> Tables:
    """Concatenate condensed tables of several generations; without any generation the tables are empty."""
    parts = [condense(0, {}, names := tuple(names)), *parts]
    return {name: pa.concat_tables([part[name] for part in parts]).combine_chunks() for name in names}


def _tasks(tasks: pa.Table, proposals: pa.Table) -> pa.Table:
    """TASKS with the cluster of their proposals as `group_id`."""
    groups = clusters(proposals.select(CLUSTER).to_pylist())
    found = pa.array([groups.get(task, task) for task in tasks["task_id"].to_pylist()], pa.string())
    return tasks.select(TASKS).append_column("group_id", found)


def with_clusters(samples: pa.Table, proposals: pa.Table) -> pa.Table:
    """Return SAMPLES with a last column `cluster`: of a student's row its task, of a teacher's its prompt.

    A teacher's `group_id` is its prompt only if that is its baseline.
    """
    prompts = clusters(proposals.select(CLUSTER).to_pylist())
    rows = zip(*(samples[name].to_pylist() for name in ("role", "sample_id", "group_id")), strict=True)
    found = [prompts.get(sample, group) if role == "teacher" else group for role, sample, group in rows]
    return samples.append_column("cluster", pa.array(found, pa.string()))


def clusters(proposals: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the cluster of each proposal, from rows with the columns CLUSTER: its prompt, or itself if no adapter wrote it.

    Proposals from one prompt are alike. The generator draws each of its tasks independently, and a group of them is a kind and a
    depth: were it a cluster, a mean would weigh depths instead of tasks.
    """
    return {row["proposal_id"]: row["group_id"] if row["adapter_id"] else row["proposal_id"] for row in proposals}


def completions(proposals: pa.Table, rollouts: pa.Table) -> pa.Table:
    """Length, surprise and truncation of every completion of a generation. What the generator drew has no tokens and is none."""
    written = proposals.filter(pc.greater(pc.list_value_length(proposals["completion_ids"]), 0))
    teachers = _completions(written, "teacher", "teacher_id", "group_id")
    return pa.concat_tables([teachers, _completions(rollouts, "student", "student_id", "task_id")])


def _completions(table: pa.Table, role: str, member: str, group: str) -> pa.Table:
    lengths = pc.list_value_length(table["completion_ids"]).to_numpy(zero_copy_only=False).astype(np.float64)
    return pa.table(
        {
            "role": pa.array([role] * table.num_rows, pa.string()),
            "member_id": table[member],
            "kind": table["kind"],
            "group_id": table[group],
            "tokens": pa.array(lengths, pa.float64()),
            "surprise": pa.array(_surprise(table["logprobs"]), pa.float64()),
            "truncated": table["truncated"],
        }
    )


def _surprise(logprobs: pa.ChunkedArray) -> np.ndarray:
    """Mean of -log p of each row; NaN for a row without tokens."""
    lengths = pc.list_value_length(logprobs).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.list_flatten(logprobs).to_numpy(zero_copy_only=False).astype(np.float64)
    sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), weights=-flat, minlength=len(lengths))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums / lengths)
