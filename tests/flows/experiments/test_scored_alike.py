"""Runs of an experiment are compared only on the same problems, each from its own start."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.experiments.spec import planned, read
from tests.flows.experiments.test_experiments import FILE, compared, write


def experiment_file(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(FILE)
    return path


def test_runs_of_different_versions_of_a_suite_are_not_averaged(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one, suite="a" if one.seed == 0 or one.arm == "many" else "b")
    text, folder = compared(file, store)
    assert "The runs of seed 1 were scored on different problems; such runs are not compared." in text
    assert "The runs of seed 0 were scored" not in text
    rows = pq.read_table(folder / "differences.parquet").to_pylist()
    assert {tuple(row["seeds"]) for row in rows if row["what"] == "score"} == {(0,)}


def test_a_run_that_scored_its_own_start_is_measured_from_it(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one, gain=0.05, start=0.5 if one.arm == "one" else 0.1)
    _, folder = compared(file, store)
    gains = {row["arm"]: row for row in pq.read_table(folder / "gains.parquet").to_pylist() if row["over"] == "mean"}
    assert (gains["many"]["start"], gains["one"]["start"]) == (pytest.approx(0.1), pytest.approx(0.5))
