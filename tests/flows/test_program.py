"""This program's name in suggested commands: as its user called it."""

import os
from pathlib import Path

import pytest

from flows.program import CALLED, program


@pytest.mark.parametrize(
    ("called", "handed", "shown"),
    [
        (".venv/bin/populora", "", ".venv/bin/populora"),
        ("flows/cli.py", "", "populora"),
        ("flows/cli.py", ".venv/bin/populora", ".venv/bin/populora"),
    ],
)
def test_it_is_named_as_it_was_called(monkeypatch: pytest.MonkeyPatch, called: str, handed: str, shown: str) -> None:
    monkeypatch.setattr("sys.argv", [called])
    monkeypatch.setenv(CALLED, handed)
    assert program("run", "--resume", "a b") == f"{shown} run --resume 'a b'"


def test_on_the_path_its_name_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "populora"
    own.touch(mode=0o755)
    monkeypatch.delenv(CALLED, raising=False)
    monkeypatch.setattr("sys.argv", [str(own)])
    assert program("run") == f"{own} run"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert program("run") == "populora run"
