"""Which stored tasks prompts may show."""

import pyarrow as pa

from stages.core import tables
from stages.core.earlier_tasks import StoredTasks
from stages.core.method.proposing import shown_from
from stages.core.method.references import mixed_references
from stages.core.prompts.styles import Kind
from tests.stages.test_loop_stages import seeds


def test_a_kind_with_too_few_mixed_tasks_shows_the_buffer() -> None:
    buffer = {kind: [{"task_id": f"{kind}-{number}"} for number in range(5)] for kind in Kind}
    mixed = {Kind.DEDUCTION: buffer[Kind.DEDUCTION][3:], Kind.ABDUCTION: buffer[Kind.ABDUCTION][4:], Kind.INDUCTION: []}
    found = mixed_references(buffer, mixed, 2)
    assert found[Kind.DEDUCTION] == mixed[Kind.DEDUCTION]
    assert (found[Kind.ABDUCTION], found[Kind.INDUCTION]) == (buffer[Kind.ABDUCTION], buffer[Kind.INDUCTION])
    none = mixed_references(buffer, {kind: [] for kind in Kind}, 0)
    assert sum(map(len, shown_from(Kind.INDUCTION, none))) == 10, "an induction prompt shows a program, without references too"


def test_a_snapshot_can_be_limited_to_some_tasks() -> None:
    stored = StoredTasks(seeds())
    names = [row["task_id"] for row in stored.snapshot(100)[Kind.DEDUCTION]]
    limited = stored.snapshots(100, ["t0", "t1"], False, names[:1])
    assert [row["task_id"] for row in limited["t1"][Kind.DEDUCTION]] == names[:1]
    assert list(stored.snapshot(100, among=[])[Kind.DEDUCTION]) == []


def test_teachers_with_buffers_of_their_own_are_shown_their_own_mixed_tasks() -> None:
    stored = StoredTasks(seeds())
    own = [row | {"task_id": f"{teacher}-{number}", "teacher_id": teacher} for teacher in ("t0", "t1") for number in (0, 1)
           for row in seeds().to_pylist()[:1]]  # fmt: skip
    stored.add(pa.Table.from_pylist(own, schema=tables.EARLIER_ROWS))
    kind = Kind(own[0]["kind"])
    found = stored.mixed_snapshots(100, ["t0", "t1"], True, ["t0-0", "t0-1", "t1-1"], 2)
    assert found["t0"][kind].task_ids() == ["t0-0", "t0-1"]
    assert found["t1"][kind].task_ids()[-2:] == ["t1-0", "t1-1"], "one mixed task is too few: its buffer"
    assert "t0-0" not in found["t1"][kind].task_ids()
