"""The version that machines compare: it follows the sources, wherever and whenever they were copied."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import PROJECT
from flows.execution.code_version import own_version, version_of


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


def test_copies_of_the_same_sources_have_one_version(copies: tuple[Path, Path]) -> None:
    first, second = (version_of(copy) for copy in copies)
    assert first == second and re.fullmatch(r"[\d.]+\+[0-9a-f]{8} torch [\d.]+ prefect [\d.]+", first)


@pytest.mark.parametrize("change", ["edited", "added", "renamed", "other"])
def test_other_sources_have_another_version(copies: tuple[Path, Path], change: str) -> None:
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
    changed = version_of(second) != version_of(first)
    assert changed == (change != "other")


def test_a_process_keeps_the_version_that_it_began_with(tmp_path: Path) -> None:
    for package in ("flows", "stages"):
        shutil.copytree(PROJECT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    ask = "from flows.execution.code_version import own_version; first = own_version(); open('flows/new.py', 'w').close(); "
    ask += "print(first == own_version(), first)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == f"True {own_version()}\n" and version_of(tmp_path) != own_version()
