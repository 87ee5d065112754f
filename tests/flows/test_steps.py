"""Steps on runs of an older version."""

from pathlib import Path

from flows import steps
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import open_store
from tests.support import example_run


def update_of(run: Run) -> StageIO:
    return StageIO(run, "update", 0, None, "seed", 2.0)


def test_a_run_that_stored_no_update_groups_gets_those_that_reward_would_store(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 1)
    assert not update_of(run).has("groups")
    found = steps.update_parts(update_of(run), example_run.CONFIG)
    samples = run.read_table(0, "samples")
    assert sorted(adapter for _, adapters in found for adapter in adapters) == sorted(set(samples["adapter_id"].to_pylist()))
    assert [part for part, _ in found] == ["00"]
