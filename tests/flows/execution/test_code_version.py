"""The version that machines compare: it follows the sources, wherever and whenever they were copied."""

import os
import shutil
from pathlib import Path

import pytest

from flows.execution import code_version


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of a project of two files, made at different times."""
    first, second = tmp_path / "first", tmp_path / "second"
    for package in ("flows", "stages"):
        (first / package / "core").mkdir(parents=True)
        (first / package / "core" / "one.py").write_text(f"name = '{package}'\n")
    shutil.copytree(first, second)
    os.utime(second / "flows" / "core" / "one.py", (1, 1))
    return first, second


def version_in(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(code_version, "PROJECT", project)
    return code_version.own_version()


def test_copies_of_the_same_sources_have_one_version(copies: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (version_in(copy, monkeypatch) for copy in copies)
    assert first == second and first.count("+") == 1 and len(first.partition("+")[2]) == 8


@pytest.mark.parametrize("change", ["edited", "added", "renamed", "other"])
def test_other_sources_have_another_version(copies: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    first, second = copies
    file = second / "stages" / "core" / "one.py"
    if change == "edited":
        file.write_text("name = 'changed'\n")
    elif change == "added":
        (second / "stages" / "two.py").write_text("")
    elif change == "renamed":
        file.rename(file.with_name("two.py"))
    else:
        (second / "stages" / "notes.txt").write_text("not code")
        (second / "stages" / ".#one.py").symlink_to("somebody@elsewhere.1234")  # what Emacs leaves while a file is edited
    changed = version_in(second, monkeypatch) != version_in(first, monkeypatch)
    assert changed == (change != "other")
