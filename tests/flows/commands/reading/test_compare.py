"""`populora compare` as a user calls it."""

import json
import re
from pathlib import Path

import pytest

from flows.cli import main
from flows.program import CALLED
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
    assert main(["compare", "second", "first", "--store", str(store)]) == 0
    assert "−25.00 ± " in capsys.readouterr().out
    assert main(["compare", "second", "first", "--store", str(store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"][0]["changes"][0]["found"]["difference"] == -0.25


def test_suggested_commands_name_the_program_as_it_was_called_and_the_store(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CALLED, ".venv/bin/populora")
    assert main(["compare", "first", "second", "--store", str(store)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"To score it: .venv/bin/populora benchmark --store {store} first --suite probe-dev --generation -1" in text
    assert not re.search(r"(?<![/\w])populora", text)
    monkeypatch.setenv("POPULORA_STORE", str(store))
    assert main(["compare", "first", "second"]) == 0
    assert "To score it: .venv/bin/populora benchmark first --suite" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", "first", "second", "--json"]) == 0
    assert "To score it: populora benchmark first --suite" in json.loads(capsys.readouterr().out)["notes"][2]
    monkeypatch.delenv("POPULORA_STORE")
    assert main(["compare", "first", "second", "--store", str(store), "--json"]) == 0
    found, command = json.loads(capsys.readouterr().out), f"populora benchmark --store {store} first --suite"
    assert command in found["notes"][2] and command in found["runs"][0]["start_hint"]


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
