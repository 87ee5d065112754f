"""The command line: a user's mistake is one line and code 2, an unreachable service 3, never a traceback, nothing written."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import PROJECT


def populora(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=PROJECT, capture_output=True, text=True, env=os.environ | environment
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run", "-c", "nothing"), "nothing"),
        (("run", "--set", "population.teacherz=1"), "population.teacherz"),
        (("run", "--set", "generations=many"), "generations"),
        (("run", "--set", "model.name=nowhere/at/all"), "model.name"),
        (("run", "--set", "reward.rule=generous"), "reward.rule"),
        (("run", "--set", "evolution.mutations=['M9']"), "M9"),
        (("run", "--set", "benchmark.suite=unheard"), "benchmark.suite"),
        (("run", "--run-id", "../elsewhere"), "elsewhere"),
        (("run", "--store", "ftp://somewhere"), "ftp"),
        (("status", "no-such-run"), "no-such-run"),
        (("fly",), "fly"),
        (("bench", "everything"), "everything"),
    ],
)
def test_a_users_mistake_is_one_line_and_code_2(arguments: tuple[str, ...], word: str, tmp_path: Path) -> None:
    store = () if arguments[0] in ("fly", "bench") or "--store" in arguments else ("--store", str(tmp_path / "store"))
    done = populora(*arguments, *store)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert word in done.stderr
    assert not (tmp_path / "store" / "smoke").exists()


def test_docker_that_does_not_answer_is_code_3_and_nothing_is_written(tmp_path: Path) -> None:
    done = populora("run", "--store", str(tmp_path / "store"), DOCKER_HOST="unix:///nowhere/docker.sock")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert not (tmp_path / "store" / "smoke").exists()


def test_a_store_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = populora("run", "--store", str(tmp_path / "file" / "store"), "--set", "sandbox.kind=local")
    assert done.returncode in (2, 3), done.stderr
    assert "Traceback" not in done.stderr


def test_dry_run_prints_the_configuration_and_the_plan(tmp_path: Path) -> None:
    done = populora("run", "-c", "paper", "--dry-run", "--store", str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert '"teachers": 4' in done.stdout
    assert "fits             1 x 80 GB" in done.stdout
    assert not (tmp_path / "store").exists()
