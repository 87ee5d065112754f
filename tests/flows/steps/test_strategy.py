"""A whole run by an evolution strategy: fsck finds nothing, and a killed run resumes to the same bytes."""

from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import open_store
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import adapter_bytes
from stages.core.lora.strategy import NoiseKey, Strategy, fitness, stepped
from tests.flows.test_train import killed_once_made, run_to_its_end, tree

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
MORE = ("--set", "strategy.population=2", "--set", "evolution.every=0", "--set", "benchmark.limit=1", "--set", "seeding.rows=4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("finished")
    run_to_its_end(store, *MORE)
    return store


def test_every_step_is_that_of_the_stored_rewards_and_fsck_finds_nothing(finished: Path) -> None:
    run = Run(open_store(str(finished)), "r")
    assert list(fsck(run)) == []
    checked = 0
    for generation in range(2):
        samples = run.read_table(generation, "samples").to_pylist()
        for row in run.read_table(generation, "ratings").to_pylist():
            rewards = [one["reward"] for one in samples if one["adapter_id"] == row["adapter_id"]]
            scores = fitness({row["role"]: rewards}, 2)
            assert any(scores) == (row["adapter_id"] != row["next_adapter_id"])
            if any(scores):
                strategy, key = Strategy(2, 0.02, 2e-4), NoiseKey(0, generation, row["adapter_id"])
                expected = stepped(read_adapter(run, row["adapter_id"]), scores, strategy, key)
                assert adapter_bytes(expected, "m", 4.0) == adapter_bytes(read_adapter(run, row["next_adapter_id"]), "m", 4.0)
                checked += 1
    assert checked, "no adapter took a step"


def read_adapter(run: Run, adapter_id: str) -> Adapter:
    return StageIO(run, "update", 0, None, "m", 4.0).adapters([adapter_id], moments=True)[adapter_id]


def test_a_killed_run_resumes_to_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    killed_once_made(tmp_path, "generation=0000/update.parts/00.json", *MORE)
    run_to_its_end(tmp_path, *MORE)
    assert tree(tmp_path) == tree(finished)
