"""Steps on runs of an older version."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flows import steps
from flows.backend import Backend
from flows.benchmarks.own_suites import PROBE
from flows.config import ConfigError, dump, load
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import open_store
from stages.core import tables
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


@pytest.mark.parametrize(("recorded", "overlap"), [({}, False), ({"kept_out": list(PROBE)}, True)])
def test_only_a_run_that_records_the_staircase_keeps_its_programs_out(
    tmp_path: Path, recorded: dict[str, Any], overlap: bool
) -> None:
    config, store = load("chaos", ["sandbox.kind=local", "sandbox.containers=1"]), open_store(str(tmp_path))
    backend = Backend(config)
    with hold(store, "other") as epoch:
        [row] = example_run.build(Run(store, "other", epoch), 1).read_table(0, "proposals").slice(0, 1).to_pylist()
    row |= {name: backend.suites.problems("staircase-dev")[name][0].as_py() for name in ("kind", "program", "inputs")}
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        run.describe(dump(config), recorded, {})
        example_run.start(run)
        posing, judging = (StageIO(run, stage, 0, None, "seed", 2.0) for stage in ("propose", "verify"))
        posing.write_table("proposals", tables.table([row], tables.PROPOSALS))
        posing.commit({})
        try:
            steps.verify(judging, config, backend)
        finally:
            backend.close()
        judging.commit({})
        [task] = run.read_table(0, "tasks").to_pylist()
    assert task["program_key"] and (task["probe_overlap"], task["gate"]) == (overlap, "held_out" if overlap else None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("propose.max_new_tokens=1020",), "no induction prompt of 40 drawn fits the model's window of 1024 tokens"),
        (("solve.max_new_tokens=1020",), "no induction task leaves room for an answer in a window of 1024 tokens"),
    ],
)
def test_limits_that_leave_no_room_for_any_prompt_are_named(settings: tuple[str, ...], said: str) -> None:
    config = load("chaos", ["sandbox.kind=local", "sandbox.containers=1", "seeding.rows=4", "seeding.max_rounds=2", *settings])
    with closing(Backend(config)) as backend, pytest.raises(ConfigError) as refused:
        steps._seeds(config, backend, frozenset())
    limits = f"propose.max_new_tokens={config.propose.max_new_tokens}, solve.max_new_tokens={config.solve.max_new_tokens}"
    assert str(refused.value) == f"{limits}: {said}; set fewer, in a fork if the run has begun"
