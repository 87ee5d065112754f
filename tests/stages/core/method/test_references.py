"""Which stored tasks prompts may show."""

from stages.core.earlier_tasks import StoredTasks
from stages.core.method.references import mixed_references
from stages.core.prompts.styles import Kind
from tests.stages.test_loop_stages import seeds


def test_a_kind_with_too_few_mixed_tasks_shows_the_buffer() -> None:
    buffer = {kind: [{"task_id": f"{kind}-{number}"} for number in range(5)] for kind in Kind}
    mixed = {Kind.DEDUCTION: buffer[Kind.DEDUCTION][3:], Kind.ABDUCTION: buffer[Kind.ABDUCTION][4:], Kind.INDUCTION: []}
    found = mixed_references(buffer, mixed, 2)
    assert found[Kind.DEDUCTION] == mixed[Kind.DEDUCTION]
    assert (found[Kind.ABDUCTION], found[Kind.INDUCTION]) == (buffer[Kind.ABDUCTION], buffer[Kind.INDUCTION])
    assert mixed_references(buffer, mixed, 0)[Kind.INDUCTION] == buffer[Kind.INDUCTION], "an induction prompt shows a program"


def test_a_snapshot_can_be_limited_to_some_tasks() -> None:
    stored = StoredTasks(seeds())
    names = [row["task_id"] for row in stored.snapshot(100)[Kind.DEDUCTION]]
    limited = stored.snapshots(100, ["t0", "t1"], False, names[:1])
    assert [row["task_id"] for row in limited["t1"][Kind.DEDUCTION]] == names[:1]
    assert list(stored.snapshot(100, among=[])[Kind.DEDUCTION]) == []
