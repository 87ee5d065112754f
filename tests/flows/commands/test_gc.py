"""`populora gc` removes by the rule that somebody chose."""

from pathlib import Path

import pytest

from flows.cli import main
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three generations of a run with retention (`kept`) and of one that keeps everything (`whole`)."""
    folder = tmp_path_factory.mktemp("stored")
    store, config = open_store(str(folder)), example_run.CONFIG
    off = config.model_copy(update={"retention": config.retention.model_copy(update={"on": False})})
    for run_id, rule in (("kept", config), ("whole", off)):
        with hold(store, run_id) as epoch:
            example_run.build(Run(store, run_id, epoch), 3, rule)
    return folder


def removed(stored: Path, capsys: pytest.CaptureFixture[str], *words: str) -> int:
    """How many files the command says that it would remove."""
    assert main(["gc", *words, "--dry-run", "--store", str(stored)]) == 0
    return int(capsys.readouterr().out.splitlines()[-1].split()[0])


def test_a_run_that_keeps_everything_loses_nothing_without_a_rule(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--dry-run",)):
        assert main(["gc", "whole", *words, "--store", str(stored)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("populora: run whole keeps everything (retention.on = false); ") and said.count("\n") == 1
        assert "--set newest=2 --set optimizer_every=20 --set adapter_every=5" in said
    assert removed(stored, capsys, "whole", "--set", "newest=2") == removed(stored, capsys, "kept") > 0
    assert removed(stored, capsys, "kept", "--set", "newest=1") > removed(stored, capsys, "kept")


def test_a_rule_that_is_off_removes_nothing(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--set", "on=false"], ["--set", "newest=1", "--set", "on=false"]):
        for run in ("whole", "kept"):
            assert main(["gc", run, *words, "--store", str(stored)]) == 2
            assert capsys.readouterr().err.startswith("populora: on=false removes nothing; to remove adapter files all the same")
    assert removed(stored, capsys, "whole", "--set", "on=true", "--set", "retention.newest=2") > 0


def test_a_rule_that_is_none_is_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", "kept", "--set", "newset=1", "--store", str(stored)]) == 2
    assert "newset" in capsys.readouterr().err
