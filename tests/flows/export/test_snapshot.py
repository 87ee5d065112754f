"""A snapshot answers as the store did when it was taken, and writes nothing."""

from pathlib import Path

import pytest

from flows.export.snapshot import SnapshotStore
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import NotStored, StoreRefused
from flows.store.file_store import FileStore
from tests.support import example_run


def test_a_snapshot_is_the_run_as_it_stood(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with hold(store, "run") as epoch:
        example_run.build(Run(store, "run", epoch), 2)
        store.create("other/run.json", b"{}")
        taken = SnapshotStore(store, "run")
        assert all(
            taken.list(prefix) == store.list(prefix) for prefix in ("run/", "run/generation=0001", "run/adapters/t0", "run/gc/")
        )
        before = {prefix: (store.folders(prefix), store.sizes(prefix)) for prefix in ("run/", "run/adapters/", "run/none/")}
        store.create("run/generation=0002/later.json", b"{}")
        store.create("run/generation=0000/tasks.txt", b"later")
        store.create("another/run.json", b"{}")
    assert {prefix: (taken.folders(prefix), taken.sizes(prefix)) for prefix in before} == before
    assert taken.folders("") == ["another", "other", "run"] and taken.sizes("") == taken.sizes("run/") | {
        "another/run.json": 2, "other/run.json": 2}  # fmt: skip
    assert Run(taken, "run").history.generations() == [0, 1]
    assert Run(taken, "run").history.head() == Run(store, "run").history.head()
    assert not taken.exists("run/generation=0002/later.json") and taken.exists("run/run.json") and taken.exists("other/run.json")
    for ask in (taken.read, taken.open, taken.size):
        with pytest.raises(NotStored):
            ask("run/generation=0002/later.json")
    assert taken.size("run/run.json") == len(taken.read("run/run.json"))
    for write in (lambda: taken.create("run/x", b""), lambda: taken.replace("run/.x", b""), lambda: taken.delete("run/run.json")):
        with pytest.raises(StoreRefused, match="cannot be written"):
            write()
