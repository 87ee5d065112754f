"""The early worker: taken by the first step that needs one, ended where none does."""

import os
from pathlib import Path

import pytest

from flows.execute import Spec
from flows.guard import _children
from flows.workers import StageFailed, Workers, early_worker


def _alive() -> set[int]:
    return _children(os.getpid())


def test_the_first_step_takes_the_early_worker(tmp_path: Path) -> None:
    before = _alive()
    with early_worker(1):
        (early,) = _alive() - before
        with Workers(1) as workers:
            with pytest.raises(StageFailed, match=r"run none has no run\.json"):
                workers.run(Spec(tmp_path.as_uri(), "none", "match", 0, None, 0, 1))
            assert _alive() - before == {early}
        assert _alive() == before


def test_an_early_worker_that_nobody_takes_ends(tmp_path: Path) -> None:
    before = _alive()
    with early_worker(2):
        with Workers(1) as workers, pytest.raises(StageFailed):  # a worker of other threads is another one
            workers.run(Spec(tmp_path.as_uri(), "none", "match", 0, None, 0, 1))
        assert len(_alive() - before) == 1
    assert _alive() == before
