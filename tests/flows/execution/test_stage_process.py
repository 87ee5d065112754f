"""The early worker: taken by the first step that needs one, ended where none does."""

import os
from pathlib import Path

import pytest

from flows.config import ConfigError, load
from flows.execution.orphan_guard import _children
from flows.execution.run_stage import Spec
from flows.execution.stage_process import StageFailed, Workers, early_worker


def _alive() -> set[int]:
    return _children(os.getpid())


STEP = ("none", "match", 0, None, 0, 1)


def test_the_first_step_takes_the_early_worker(tmp_path: Path) -> None:
    before = _alive()
    with early_worker(load("chaos", []), prepare=True) as check:
        check()
        (early,) = _alive() - before
        with Workers(1) as workers:
            with pytest.raises(StageFailed, match=r"run none has no run\.json"):
                workers.run(Spec(tmp_path.as_uri(), *STEP))
            assert _alive() - before == {early}
        assert _alive() == before


def test_an_early_worker_that_nobody_takes_ends(tmp_path: Path) -> None:
    before = _alive()
    with early_worker(load("chaos", ["threads=2"]), prepare=False):
        with Workers(1) as workers, pytest.raises(StageFailed):  # a worker of other threads is another one
            workers.run(Spec(tmp_path.as_uri(), *STEP))
        assert len(_alive() - before) == 1
    assert _alive() == before


def test_the_early_worker_says_what_hinders_the_run() -> None:
    config = load("chaos", ["model.name=no-such-folder"])
    with early_worker(config, prepare=True) as check, pytest.raises(ConfigError, match=r"model\.name: there is no folder"):
        check()
