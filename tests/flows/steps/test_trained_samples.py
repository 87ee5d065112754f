"""A whole run whose updates train on the samples of the generation before: who learns from what, resumed, inspected, forked."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from flows.audit.fsck import fsck
from flows.browser.app import make_app
from flows.config import ConfigError, load
from flows.run.fork import fork
from flows.run.lineage import Lineage
from flows.run.manifest import digest
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.steps.trained_samples import trained_samples
from flows.storage import open_store
from stages.core.method.top_up import task_of
from tests.flows.test_train import killed_once_made, run_to_its_end, tree

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
OFF_POLICY = ("learning.off_policy_steps=1", "learning.importance_cap=2.0")
SETTINGS = (*OFF_POLICY, "generations=3", "evolution.every=2", "benchmark.limit=1")
MORE = tuple(word for setting in SETTINGS for word in ("--set", setting))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("finished")
    run_to_its_end(store, *MORE)
    return store


@pytest.fixture
def run(finished: Path) -> Run:
    return Run(open_store(str(finished)), "r")


def test_an_update_trains_what_members_are_now_on_what_they_wrote_before(run: Run) -> None:
    assert list(fsck(run)) == []
    replaced = {row["replaces"] for row in run.read_table(1, "offspring").to_pylist()}
    assert replaced
    for generation in range(3):
        rated = {row["member_id"]: row for row in run.read_table(generation, "ratings").to_pylist()}
        trained = trained_samples(StageIO(run, "update", generation, None, "m", 4.0), load("chaos", list(SETTINGS)))
        if generation == 0:
            assert trained.num_rows == 0
            assert all(row["adapter_id"] == row["next_adapter_id"] for row in rated.values())
            continue
        before = run.read_table(generation - 1, "samples").to_pylist()
        kept = [row for row in before if generation == 1 or row["member_id"] not in replaced]
        assert [row["sample_id"] for row in trained.to_pylist()] == [row["sample_id"] for row in kept]
        assert {(row["member_id"], row["adapter_id"]) for row in trained.to_pylist()} == {
            (row["member_id"], rated[row["member_id"]]["adapter_id"]) for row in kept
        }
        moved = {name for name, row in rated.items() if row["adapter_id"] != row["next_adapter_id"]}
        assert moved and moved <= {row["member_id"] for row in kept}


def test_the_difference_from_the_engine_is_called_lag_once_the_weights_have_moved(run: Run) -> None:
    def measured(generation: int, name: str) -> dict[str, float]:
        rows = run.read_table(generation, "metrics").to_pylist()
        return {row["member_id"]: row["value"] for row in rows if row["name"] == f"update.{name}_mean"}

    assert not measured(1, "lag") and max(measured(1, "drift").values()) < 1e-4, "nothing has moved in generation 0"
    moved = {row["member_id"] for row in run.read_table(1, "ratings").to_pylist() if row["adapter_id"] != row["next_adapter_id"]}
    assert moved and set(measured(2, "lag")) <= moved and not set(measured(2, "drift")) & moved
    assert max(measured(2, "lag").values()) > 1e-4


def test_the_parts_of_an_update_follow_match(run: Run) -> None:
    stages = [manifest for manifest in run.history.walk() if manifest.generation == 1]
    assert all(later.previous == digest(earlier) for earlier, later in pairwise(stages))
    match = run.manifest("match", 1)
    part = run.manifest("update", 1, "00")
    assert match is not None and part is not None and part.previous == digest(match)
    read = {ref.uri for ref in part.inputs}
    assert "generation=0000/samples.parquet" in read and not any(uri.startswith("generation=0001/") for uri in read)


def test_lineage_tells_on_which_generation_s_samples_weights_were_trained(run: Run) -> None:
    made = next(row for row in run.read_table(1, "ratings").to_pylist() if row["adapter_id"] != row["next_adapter_id"])
    step = Lineage(run).ancestry(made["next_adapter_id"])[0]
    assert step["generation"] == 1 and step["samples"]["count"] > 0
    assert all(task.startswith(("g0000-", "seed")) for task in step["samples"]["tasks"])
    own = next(row for row in Lineage(run).trained_on(1, made["member_id"]) if row["advantage"])
    moved = Lineage(run).task(task_of(own["sample_id"]))["forwards"]["weights_moved"]
    assert {"member_id": made["member_id"], "from": made["adapter_id"], "to": made["next_adapter_id"]} in moved
    with TestClient(make_app(run.store.url), base_url="http://127.0.0.1") as pages:
        page = pages.get(f"/runs/r/tasks/{task_of(own['sample_id'])}").text
    shown = re.sub(r"<[^>]+>", "", page.partition("What it moved")[2])
    assert f"{made['member_id']}: {made['adapter_id']} → {made['next_adapter_id']}" in shown


def test_a_fork_keeps_the_setting(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"^learning.off_policy_steps: a fork shares artifacts"):
        fork(run, "other", 1, ["learning.off_policy_steps=0"], lambda config: {}, {})


def test_a_killed_run_resumes_to_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    killed_once_made(tmp_path, "generation=0001/update.parts/00.json", *MORE)
    run_to_its_end(tmp_path, *MORE)
    assert tree(tmp_path) == tree(finished)
