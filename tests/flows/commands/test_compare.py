"""`populora compare` as a user calls it."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from flows.store.file_store import FileStore
from tests.support import compared_runs


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    compared_runs.build(FileStore(root), "first", 1, {0: lambda number: number < 2})
    compared_runs.build(FileStore(root), "second", 1, {0: lambda number: number < 4})
    return root


def test_tables_and_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "first", "second", "--store", str(store)]) == 0
    text = capsys.readouterr().out
    assert "settings that differ: 0, equal: " in text
    assert "probe-dev, paired by problem: second (1 trained) − first (1 trained)" in text and "+25.00 ± " in text
    assert main(["compare", "second", "first", "--store", str(store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"][0]["changes"][0]["found"]["difference"] == -0.25


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["first"], "compare: give 2 to 8 different runs, not 1"),
        (["first", "first"], "not 1"),
        (["first", "secnd"], "no run secnd in "),
        (["first", "../second"], "run id '../second'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(store: Path, names: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *names, "--store", str(store)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""
