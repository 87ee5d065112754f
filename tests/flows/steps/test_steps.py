"""Steps on runs of an older version, and on models that cannot be used."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flows.backend import Backend
from flows.config import PROJECT, ConfigError, dump, load
from flows.execution.run_stage import perform
from flows.execution.session import open_session
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.steps import steps
from flows.steps.trained_samples import group_of
from flows.storage import open_store
from flows.suites.own_suites import STORED
from stages.core import tables
from stages.core.unavailable import Unsuited
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


def test_a_part_that_this_machine_does_not_know_is_an_error_and_no_empty_update(tmp_path: Path) -> None:
    """As where the folder of the model is there for the run's machine alone, and each divides the update for another shape."""
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 1)
    assert group_of(update_of(run), example_run.CONFIG, "00").num_rows
    with pytest.raises(Unsuited, match=r"without 00of02: does it find the model at model\.name"):
        group_of(update_of(run), example_run.CONFIG, "00of02")


@pytest.mark.parametrize(("recorded", "overlap"), [({}, False), ({"kept_out": list(STORED)}, True)])
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


class Elsewhere:
    """Machines that take every stage: whoever begins the run looks at no model."""

    def takes(self, stage: str) -> bool:
        return True


def test_the_start_checks_a_model_that_whoever_began_the_run_could_not_look_at(tmp_path: Path) -> None:
    """A loadable model that would train as if it had full attention."""
    folder, url = tmp_path / "model", str(tmp_path / "store")
    shutil.copytree(PROJECT / "infra/models/seed", folder)
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(own | {"sliding_window": 64}))
    config = load("chaos", [f"model.name={folder}", "sandbox.kind=local"])
    with open_session(config, "r", url, Elsewhere()) as current, closing(Backend(config)) as there:  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"has sliding-window attention over 64 tokens; set engine\.window to at most 64"):
            perform(current.run, current.spec("start", None), config, there)
        assert current.run.store.list("r/") == ["r/run.json"], "refused before anything is written"
