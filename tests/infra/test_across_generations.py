"""The script that lets students of several generations attempt tasks of several generations: its attempts and its output."""

import importlib.util
from dataclasses import dataclass
from types import ModuleType

import pyarrow as pa
import pytest

from flows.config import PROJECT, load
from tests.stages.test_loop_stages import matches, verified
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

KNOWN = {
    ("p", "1"): "7",
    ("p", "2"): "8",
    ("q", "2"): "error",
    ("id", "4"): "4",
    ("id", "5"): "5",
    ("g", "4"): "4",
    ("g", "5"): "5",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("across", PROJECT / "infra/experiments/across_generations.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@dataclass
class Stored:
    """The tables of one generation."""

    tables: dict[str, pa.Table]

    def read_table(self, generation: int, name: str) -> pa.Table:
        assert generation == 3
        return self.tables[name]


def test_an_adapter_attempts_every_valid_task_as_the_student_did(script: ModuleType) -> None:
    _, tasks = verified("p|1", "no", "p|2", "q|2", "4|5", "no", known=KNOWN)
    stored, config = Stored({"matches": matches(), "tasks": tasks}), load("smoke", ["solve.attempts=2"])
    engine = ScriptedEngine("7", "8", "2", "1", "g", "")
    found = script.shares(stored, config, 3, "s0-g0002", "sha", engine, PlainStyle(), TableSandbox(KNOWN))
    valid = tasks.filter(pa.array([status == "valid" for status in tasks["status"].to_pylist()]))["task_id"].to_pylist()
    assert list(found) == valid and list(found.values()) == [0.5, 0.5, 0.5]
    assert engine.asked == 6, "two attempts at each of three valid tasks"


def test_changes_are_paired_by_task(script: ModuleType) -> None:
    first, second = {"a": 0.0, "b": 0.5, "c": 1.0}, {"a": 0.25, "b": 0.75, "c": 1.0}
    assert list(script.lines("0-4", {"s0-start": first, "s0-g0099": second})) == [
        "tasks 0-4       s0-start                   solved  50.0 ± 28.9 %  change  +0.0 ± 0.0  tasks 3",
        "tasks 0-4       s0-g0099                   solved  66.7 ± 22.0 %  change +16.7 ± 8.3  tasks 3",
    ]
