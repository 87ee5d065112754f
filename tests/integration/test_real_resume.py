"""A generation of a pretrained model whose worker is killed in three stages: the artifacts are those of one never killed."""

from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import load
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import open_store
from tests.flows.run.test_manifest import tree
from tests.integration.test_faults_worker import HOOK, build
from tests.support import kill_hooks

KILLED = ("propose", "solve", "update")
PHASES = ("read", "half-written")
SMALL = (
    *("generations=1", "seeding.rows=8", "seeding.max_rounds=1", "propose.group_size=2", "propose.max_new_tokens=96"),
    *("solve.attempts=4", "learning.pass_at=2", "solve.max_new_tokens=32", "benchmark.limit=6", "benchmark.max_new_tokens=32"),
)


@pytest.mark.real
@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_generation_of_laptop_killed_in_three_stages_has_the_same_bytes(
    real_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("laptop", [f"model.name={real_model}", *SMALL])
    whole, store = open_store(str(tmp_path / "whole")), open_store(str(tmp_path / "store"))
    assert build(whole, STAGE_NAMES, config) == 0
    kill_hooks.install(tmp_path / "hook", HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"))
    monkeypatch.setenv("KILL_STAGES", ",".join(KILLED))
    monkeypatch.setenv("KILL_PHASES", ",".join(PHASES))
    lost = build(store, STAGE_NAMES, config)
    killed = set(kill_hooks.marks(tmp_path / "hook"))
    print(f"{lost} workers were killed: {', '.join(sorted(killed))}")
    assert lost == len(killed) and killed == {f"{stage}-{phase}" for stage in KILLED for phase in PHASES}
    assert tree(store) == tree(whole) and len(tree(whole)) > 20
    assert fsck(Run(store, "smoke")) == []
