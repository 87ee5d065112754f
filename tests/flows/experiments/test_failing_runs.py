"""Runs of an experiment that fail or belong to another process: the others still run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.config import load
from flows.execution.stage_process import StageFailed
from flows.experiments import flow
from flows.experiments.spec import Planned
from flows.run.lease import Fenced, LeaseHeld
from flows.storage import AccessRefused, Damaged, NotStored, open_store


def run_of(name: str) -> Planned:
    return Planned("arm", 0, name, load("smoke", []))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Exception], list[str]]:
    """Run three runs, of which the second fails with this error; the third has to be reached."""

    def run(error: Exception) -> list[str]:
        reached: list[str] = []

        def one(planned: Planned, opened: object, store: str) -> None:
            reached.append(planned.run_id)
            if planned.run_id == "b":
                raise error

        monkeypatch.setattr(flow, "_run_or_resume", one)
        monkeypatch.setattr(flow, "_score_start_once", lambda *_: None)
        store = str(tmp_path)
        failed = flow._run_all([run_of(name) for name in "abc"], open_store(store), store)
        assert reached == ["a", "b", "c"]
        return failed

    return run


@pytest.mark.parametrize("error", [StageFailed("it broke\nat a line"), Damaged("adapters/s0", "it broke"), NotStored("it broke")])
def test_a_run_that_fails_is_named_and_the_others_run(error: Exception, failing: Callable[[Exception], list[str]]) -> None:
    [sentence] = failing(error)
    assert sentence.startswith("b failed (") and sentence.endswith("it broke)")


@pytest.mark.parametrize("error", [LeaseHeld("held"), Fenced("taken over")])
def test_a_run_of_another_process_is_skipped(
    error: Exception, failing: Callable[[Exception], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(error) == []
    assert "b: in use by another process" in capsys.readouterr().out


def test_a_store_that_refuses_ends_the_experiment(failing: Callable[[Exception], list[str]]) -> None:
    with pytest.raises(AccessRefused):
        failing(AccessRefused("no rights"))
