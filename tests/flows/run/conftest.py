"""A small run of four whole generations, for tests that fork it or retire its files."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run

CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four whole generations; s1, s2 and s3 die in turn. Tests work on copies."""
    folder = tmp_path_factory.mktemp("whole")
    with hold(open_store(str(folder)), "smoke") as epoch:
        example_run.build(Run(open_store(str(folder)), "smoke", epoch), 4, CONFIG)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Iterator[Run]:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        yield Run(store, "smoke", epoch)
