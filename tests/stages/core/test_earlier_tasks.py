"""Segments of earlier tasks: in whatever pieces a process reads the past, it knows the same."""

import random

import pyarrow as pa
import pytest

from stages.core import tables
from stages.core.earlier_tasks import SeenTasks, StoredTasks, joined_keys, joined_rows, keys_of, rows_of
from stages.core.judging.shapes import cell
from stages.core.method.buffer import task_digest, task_key
from stages.core.prompts.styles import Kind
from stages.core.statistics import novelty

SEED = {"outputs": ["1"], "values": ["i1"], "message": "", "program": "def f(x):\n    return x", "inputs": ["1"]}
SEEDS = tables.table([SEED | {"task_id": f"seed-{kind}", "kind": kind, "program_key": kind} for kind in Kind], tables.SEEDS)


def generation(number: int, count: int) -> pa.Table:
    """TASKS, most of them valid, some gated or known, of different lengths."""
    rng = random.Random(number)
    rows = []
    for place in range(count):
        valid = rng.random() < 0.7
        rows.append(
            SEED
            | {
                "task_id": f"g{number:04d}-m00-p{place:03d}",
                "match_id": f"g{number:04d}-m00",
                "teacher_id": f"t{place % 2}",
                "kind": rng.choice(list(Kind)).value,
                "program": f"def f(x):\n    return {'x + ' * rng.randrange(9)}{rng.randrange(4)}",
                "program_key": f"{rng.randrange(20):032x}" if valid else None,
                "status": "valid" if valid else "error",
                "detail": "",
                "duplicate": rng.random() < 0.2,
                "probe_overlap": False,
                "gate": "identity" if rng.random() < 0.2 else None,
                "syntax": f"{rng.randrange(5)}" if valid and rng.random() < 0.8 else None,
                "value_types": "int",
            }
        )
    return tables.table(rows, tables.TASKS)


PAST = [generation(number, (number * 7) % 12) for number in range(9)]


@pytest.mark.parametrize("history", [1 << 17, 200, 30, 1])
def test_joined_segments_are_the_segment_of_all_their_tasks(history: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.core.earlier_tasks.HISTORY", history)
    whole = keys_of(pa.concat_tables(PAST)), rows_of(pa.concat_tables(PAST))
    for cut in range(len(PAST)):
        first, second = pa.concat_tables([PAST[0].slice(0, 0), *PAST[:cut]]), pa.concat_tables(PAST[cut:])
        assert joined_keys([keys_of(first), keys_of(second)]).equals(whole[0])
        assert joined_rows([rows_of(first), rows_of(second)]).equals(whole[1])
    assert joined_keys([joined_keys([keys_of(one) for one in PAST[:4]]), *map(keys_of, PAST[4:])]).equals(whole[0])


@pytest.mark.parametrize("history", [1 << 17, 200, 1])
def test_what_is_seen_is_what_the_tables_say(history: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.core.earlier_tasks.HISTORY", history)
    rows = [row for table in PAST for row in table.to_pylist() if row["status"] == "valid"]
    expected = {task_key(row["kind"], row["program_key"], row["inputs"]) for row in [*rows, *SEEDS.to_pylist()]}
    pieces = [joined_keys([keys_of(one) for one in PAST[:5]]), *map(keys_of, PAST[5:])]
    joined = SeenTasks(SEEDS)
    for piece in pieces:
        joined.add(piece)
    for seen in (SeenTasks(SEEDS, PAST), joined):
        assert seen.keys == {task_digest(kind, key, inputs) for kind, key, inputs in expected} and len(seen.keys) == len(expected)
        assert seen.valid == len(rows) and seen.programs == {row["program_key"] for row in rows}
        assert seen.cells == {place for row in rows if (place := cell(row)) is not None}
        assert seen.texts == "\n".join(row["program"] for row in rows)[-history:]
    assert novelty.HISTORY == 1 << 17


def test_the_buffer_is_a_sequence_of_plain_rows() -> None:
    stored = StoredTasks(SEEDS, PAST)
    kept = [row for table in PAST for row in table.to_pylist()]
    kept = [row for row in kept if row["status"] == "valid" and not row["duplicate"] and row["gate"] is None]
    for teacher in (None, "t1"):
        for kind, rows in stored.snapshot(7, teacher).items():
            own = [row for row in kept if row["kind"] == kind and (teacher is None or row["teacher_id"] == teacher)]
            expected = [f"seed-{kind}", *(row["task_id"] for row in own)][-7:]
            assert [row["task_id"] for row in rows] == expected == [rows[place]["task_id"] for place in range(len(rows))]
            assert all(set(row) == set(tables.SEEDS.names) for row in rows) and list(rows[1:3]) == list(rows)[1:3]
    wanted = [kept[3]["task_id"], "seed-induction"]
    assert [row["task_id"] for row in stored.rows(wanted)] == wanted[::-1]


def test_a_key_tells_inputs_apart_however_they_are_cut() -> None:
    assert task_digest("deduction", "k", ["1, 2"]) != task_digest("deduction", "k", ["1", " 2"])
    assert task_digest("deduction", "k", [" 1"]) == task_digest("deduction", "k", ["1 "])
    assert task_digest("deduction", "k", ["[1,2], 'a'"]) == task_digest("deduction", "k", ['[1, 2],"a"'])
    assert task_digest("deduction", "k", ["1"]) != task_digest("deduction", "k", ["1.0"])
    assert task_digest("deduction", "k", ["x"]) != task_digest("deduction", "k", ["y"])
