"""Exported tasks: valid, new, described; an export that fails leaves nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.export.tasks import SCHEMA, export_tasks
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import Damaged, StoreRefused, open_store
from tests.support import example_run

CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four whole generations; s1, s2 and s3 die in turn. Tests work on copies."""
    folder = tmp_path_factory.mktemp("whole")
    with hold(open_store(str(folder)), "smoke") as epoch:
        example_run.build(Run(open_store(str(folder)), "smoke", epoch), 4, CONFIG)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Iterator[Run]:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        yield Run(store, "smoke", epoch)


def test_exported_tasks_are_valid_new_and_described(run: Run, tmp_path: Path) -> None:
    line = export_tasks(run, tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "tasks.parquet")
    assert table.schema.names == SCHEMA.names and table.schema.metadata[b"schema"] == b"1"
    rows = table.to_pylist()
    keys = {(row["kind"], row["program"], tuple(row["inputs"])) for row in rows}
    assert len(keys) == len(rows) == 5 and line.startswith("5 tasks in ")
    assert {row["task_id"] for row in rows} == {f"g0000-m0{m}-p00{n}" for m, n in ((0, 0), (0, 1), (0, 3), (0, 4), (1, 2))}
    assert rows[0]["solve_rate"] == 0.5
    card = (tmp_path / "out" / "README.md").read_text()
    assert run.history.head() in card and "| proposals behind them | 48, of which 40 were valid and 5 are new |" in card
    assert all(f"- `{name}`: " in card for name in SCHEMA.names)
    (tmp_path / "file").write_text("")
    for taken in ("out", "file"):
        with pytest.raises(StoreRefused, match=f"{taken} already exists; choose another folder"):
            export_tasks(run, tmp_path / taken)


def test_an_export_of_tasks_that_fails_leaves_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "smoke/generation=0001/tasks.parquet").write_bytes(b"?")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Damaged):
        export_tasks(run, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
