"""Tables of answers from folders of known content: members as trained, without children that were scored beside them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.config import PROJECT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("analysis", PROJECT / "infra/experiments/analysis.py")
    assert found is not None and found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def test_children_scored_beside_the_members_do_not_count(script: ModuleType, tmp_path: Path) -> None:
    folders = {
        "asked/s0-start-n2-k0": 0,
        "generation=0009": 1,
        "generation=0009/births": 2,
        "generation=0009/children": 2,
        "asked/generation=0009-students-n2-k0": 2,
    }
    for folder, right in folders.items():
        place = tmp_path / "benchmarks/probe-test" / folder
        place.mkdir(parents=True)
        rows = [{"greedy": greedy, "status": "ok", "correct": number < right} for greedy in (True, False) for number in range(2)]
        pq.write_table(pa.Table.from_pylist(rows), place / "answers.parquet")
    assert list(script.answers([tmp_path])) == [
        f"after {trained:2d}  {how}  formed 100.0%  right of those {right:6.1%}  product {right:6.1%}  runs 1"
        for trained, right in ((0, 0.0), (10, 0.5))
        for how in ("sampled", "greedy ")
    ]
