"""Schemas of all tables of a run, and the one way to make and check a table.

Arrow drops unknown keys and fills missing ones with null even in non-nullable fields, so `table` compares the key sets itself
and `conform` casts on every read and write. A nullable column may be absent, from a row or from an older file, and is then null.
Tables contain nothing that may differ between two equal runs (design: artifacts).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

_STR, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_IDS, _LOGPROBS = pa.list_(pa.field("item", pa.int32(), nullable=False)), pa.list_(pa.field("item", pa.float32(), nullable=False))
_STRS = pa.list_(pa.field("item", pa.string(), nullable=False))


def _schema(name: str, required: Mapping[str, pa.DataType], optional: Mapping[str, pa.DataType] | None = None) -> pa.Schema:
    fields = [pa.field(key, kind, nullable=False) for key, kind in required.items()]
    fields += [pa.field(key, kind, nullable=True) for key, kind in (optional or {}).items()]
    return pa.schema(fields, metadata={"table": name, "schema": "1"})


_COMPLETION = {
    "adapter_id": _STR,  # empty, like the digest and all token lists, where the generator drew the task
    "adapter_sha256": _STR,
    "seed": _INT,
    "prompt_ids": _IDS,
    "completion_ids": _IDS,
    "logprobs": _LOGPROBS,
    "text": _STR,
    "truncated": _BOOL,
}

MATCHES = _schema(
    "matches",
    {
        "match_id": _STR,
        "teacher_id": _STR,  # `generator` in a run without teachers
        "student_id": _STR,
        "teacher_adapter_id": _STR,  # empty: the generator has none
        "student_adapter_id": _STR,
        "teacher_mu": _FLOAT,
        "teacher_sigma": _FLOAT,
        "student_mu": _FLOAT,
        "student_sigma": _FLOAT,
        "expected": _FLOAT,  # the student's chance to win, by rating
    },
)

PROPOSALS = _schema(
    "proposals",
    {
        "proposal_id": _STR,
        "match_id": _STR,
        "teacher_id": _STR,
        "kind": _STR,
        "group_id": _STR,  # proposals of one group answer one prompt, or have one kind and depth
        "reference_ids": _STRS,  # task ids shown in the prompt, from the generation's buffer snapshot
        "program": _STR,
        "inputs": _STRS,
        "message": _STR,
        "status": _STR,  # `parsed`, or why the text could not be read
        "detail": _STR,
    }
    | _COMPLETION,
)

TASKS = _schema(
    "tasks",
    {
        "task_id": _STR,  # equals the proposal's id
        "match_id": _STR,
        "teacher_id": _STR,
        "kind": _STR,
        "program": _STR,
        "inputs": _STRS,
        "outputs": _STRS,  # literal text for messages and prompts; empty unless valid, or claimed (stages.core.method.leak)
        "values": _STRS,  # canonical typed text that answers are compared with
        "message": _STR,
        "status": _STR,  # a sandbox status, `too_long` or `control_token`
        "detail": _STR,
        "duplicate": _BOOL,  # same program key and inputs as an earlier task or seed: solved, but kept out of the buffer
        "probe_overlap": _BOOL,  # valid, and the program is one of a suite that the run keeps out: gate `held_out`
    },
    {
        "program_key": _STR,
        "gate": _STR,
        # for valid tasks whose program could be measured (stages.core.judging.shapes); `stripped`: without comments and dead code
        "lines": _INT,
        "depth": _INT,
        "cyclomatic": _INT,
        "variables": _INT,
        "stripped_lines": _INT,
        "stripped_depth": _INT,
        "stripped_cyclomatic": _INT,
        "stripped_variables": _INT,
        "syntax": _STR,  # digest of the node types
        "value_types": _STR,  # of the first input and its output
        "executed_lines": _INT,  # by the first input's run; null: no stage traces it yet
    },
)

SEEDS = _schema(
    "seeds",
    {
        "task_id": _STR,
        "kind": _STR,
        "program": _STR,
        "inputs": _STRS,
        "outputs": _STRS,
        "values": _STRS,
        "message": _STR,
        "program_key": _STR,
    },
)

ROLLOUTS = _schema(
    "rollouts",
    {
        "rollout_id": _STR,  # the task's id and the attempt; for a replayed task prefixed with the match's id (method.top_up)
        "task_id": _STR,  # from this generation; with replays also from the seeds or an earlier generation
        "match_id": _STR,  # of this generation
        "student_id": _STR,
        "kind": _STR,
        "attempt": _INT,
    }
    | _COMPLETION,
    {
        "answer": _STR,  # null: a format error
        "answer_tokens": _INT,  # up to the first one behind the answer, where the model wrote more there: what is trained
    },
)

GRADES = _schema(
    "grades",
    {
        "rollout_id": _STR,
        "task_id": _STR,
        "match_id": _STR,
        "student_id": _STR,
        "kind": _STR,
        "status": _STR,  # correct, wrong, format, the sandbox status of the run, or no_value (stages.core.method.leak)
        "correct": _BOOL,
        "detail": _STR,
    },
)

# What the programs of deductions assign that some answer got wrong; only in runs that reward traces (method.trace_reward).
TRACES = _schema(
    "traces",
    {
        "task_id": _STR,
        "steps": _INT,  # assignments of the run; 0: it cannot be recorded
        "lines": _STRS,  # `name=value` of the first of them, in order; empty: too long to keep
    },
)

SAMPLES = _schema(
    "samples",
    {
        "sample_id": _STR,  # the proposal's or rollout's id
        "member_id": _STR,
        "role": _STR,
        "kind": _STR,
        "group_id": _STR,  # a teacher's prompt, a student's task; samples of one group share a baseline
        "adapter_id": _STR,
        "adapter_sha256": _STR,
        "prompt_ids": _IDS,
        "completion_ids": _IDS,
        "logprobs": _LOGPROBS,
        "reward": _FLOAT,
        "baseline": _FLOAT,
        "centred": _FLOAT,
        "advantage": _FLOAT,
    },
)

RATINGS = _schema(
    "ratings",
    {
        "member_id": _STR,
        "role": _STR,
        "born": _INT,
        "adapter_id": _STR,  # the weights that played
        "adapter_sha256": _STR,
        "result": _STR,  # win, draw, loss, or idle
        "mu_before": _FLOAT,
        "sigma_before": _FLOAT,
        "mu": _FLOAT,
        "sigma": _FLOAT,
        "fitness": _FLOAT,
        "next_adapter_id": _STR,  # after this generation's update; equal to adapter_id if no step was taken
        "next_adapter_sha256": _STR,
    },
    {"match_id": _STR, "opponent_id": _STR, "expected": _FLOAT, "observed": _FLOAT},
)

OFFSPRING = _schema(
    "offspring",
    {
        "member_id": _STR,
        "role": _STR,
        "replaces": _STR,
        "parents": _STRS,  # member ids
        "parent_adapter_ids": _STRS,
        "operator": _STR,
        "operator_kind": _STR,  # mutation or crossover
        "seed": _STR,
        "parameters": _STR,  # JSON
        "adapter_id": _STR,
        "adapter_sha256": _STR,
        "mu": _FLOAT,
        "sigma": _FLOAT,
        "relative_change": _FLOAT,  # |delta child - delta parent 1| / |delta parent 1|
        "cosine": _FLOAT,  # between the child's and the first parent's delta W
        "note": _STR,
    },
)

METRICS = _schema(
    "metrics",
    {"name": _STR, "value": _FLOAT},
    # which member (all null: all members), which pair, number of observations, and standard error
    {"member_id": _STR, "role": _STR, "kind": _STR, "opponent_id": _STR, "n": _INT, "stderr": _FLOAT},
)

SCORES = _schema(
    "scores",
    {
        "suite": _STR,
        "member_id": _STR,
        "role": _STR,
        "adapter_id": _STR,
        "adapter_sha256": _STR,
        "group": _STR,  # all, a kind, kind and band; `base` and `… strict`: the same problems under another rule
        "measure": _STR,  # pass@1 greedy, pass@8, ...
        "score": _FLOAT,
        "problems": _INT,
        "attempts": _INT,
    },
    {"stderr": _FLOAT},
)

ANSWERS = _schema(
    "answers",
    {
        "suite": _STR,
        "problem_id": _STR,
        "member_id": _STR,
        "kind": _STR,
        "band": _INT,
        "attempt": _INT,
        "greedy": _BOOL,
        "adapter_id": _STR,
        "adapter_sha256": _STR,
        "text": _STR,
        "status": _STR,
        "correct": _BOOL,
    },
    {"answer": _STR},
)

# One row per part of the update and adapter that trains in it. Cut by adapters, an adapter is in one part, with all its samples;
# cut by rows, in every part that has some of its samples.
GROUPS = _schema(
    "groups",
    {
        "part": _STR,  # of the update: 00, 01, ... by adapters; 00of02, 01of02, ... by rows
        "adapter_id": _STR,
        "member_id": _STR,
        "role": _STR,
        "tokens": _INT,  # of its samples in this part, prompts included; by rows, a shared prompt counts once
    },
)

# What a part of an update that is cut by rows measures: one row per response token of its rows, adapter by adapter.
TOKENS = _schema(
    "tokens",
    {
        "adapter_id": _STR,
        "loss": pa.float32(),  # its share of the adapter's loss
        "entropy": pa.float32(),  # in nats
        "drift": pa.float32(),  # log-probability of the trainer minus that of the engine
    },
)

# The index of earlier tasks (stages.core.earlier_tasks): one row per valid task of the generations that a segment covers.
EARLIER_KEYS = _schema(
    "earlier_keys",
    {
        "key": _STR,  # 32 hexadecimal digits of kind, program key and inputs
        "program_key": _STR,
    },
    {
        "cell": _STR,  # null: the program has no shape
        "text": _STR,  # the program, in the newest rows only: as many as novelty looks back
    },
)

# The same, one row per stored task: a row of SEEDS and its teacher; null: a seed.
EARLIER_ROWS = _schema("earlier_rows", {field.name: field.type for field in SEEDS}, {"teacher_id": _STR})

GENERATION_TABLES: dict[str, pa.Schema] = {
    "matches": MATCHES,
    "proposals": PROPOSALS,
    "tasks": TASKS,
    "rollouts": ROLLOUTS,
    "grades": GRADES,
    "samples": SAMPLES,
    "ratings": RATINGS,
    "offspring": OFFSPRING,
    "metrics": METRICS,
}


def table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return a table of exactly `schema` from rows with its keys. Raise ValueError naming the first invalid row."""
    rows = list(rows)
    names = set(schema.names)
    needed = {field.name for field in schema if not field.nullable}
    for number, row in enumerate(rows):
        if not needed <= set(row) <= names:
            raise ValueError(f"row {number}: missing {sorted(needed - set(row))}, unknown {sorted(set(row) - names)}")
    return conform(pa.Table.from_pylist(rows, schema=schema), schema)


def conform(data: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the same rows with exactly `schema`: names, order, types, nullability, metadata. Raise ValueError if impossible."""
    absent = {field.name for field in schema if field.nullable} - set(data.schema.names)
    if data.schema.names != [name for name in schema.names if name not in absent]:
        raise ValueError(f"columns {data.schema.names} are not {schema.names}")
    for place, field in enumerate(schema):
        if field.name in absent:
            data = data.add_column(place, field, pa.nulls(data.num_rows, field.type))
    for field in schema:
        if not field.nullable and data[field.name].null_count:
            raise ValueError(f"column {field.name} holds nulls")
    same = data.schema.equals(schema, check_metadata=True)
    return data if same else data.cast(schema).replace_schema_metadata(schema.metadata)


def join(parts: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of all parts in order, as one chunk (so that equal rows give equal bytes)."""
    return conform(pa.concat_tables([schema.empty_table(), *parts]).combine_chunks(), schema)
