"""A fork shares the past of its parent and has a future of its own; what makes no sense is refused."""

from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import ConfigError, dump, identity
from flows.execution.recorded import versions
from flows.run.fork import fork
from flows.run.inspection import inspect
from flows.run.lease import hold
from flows.run.resume import first_generation
from flows.run.retention import RetentionPolicy, forkable, retire
from flows.run.run import Run
from flows.storage import StoreRefused
from tests.support import example_run

POLICY = RetentionPolicy(newest=1, optimizer_every=4, adapter_every=2)
CLOCK = {"host": "here"}
CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})


def test_a_fork_shares_the_past_and_has_its_own_future(run: Run) -> None:
    made = fork(run, "other", 1, ["learning.learning_rate=0.5", "seed=9"], lambda config: {"code": "x"}, CLOCK)
    fresh = Run(run.store, "other")
    description = fresh.history.description()
    assert description is not None
    learning = dump(CONFIG)["learning"] | {"learning_rate": 0.5}
    assert description["config"] == identity(dump(CONFIG)) | {"seed": 9, "learning": learning}
    forked = description["versions"]["forked_from"]
    assert (forked["run"], forked["generation"]) == ("smoke", 1)
    assert not [uri for uri in run.store.list("other/") if not uri.endswith(".json")], "only manifests are copied"
    manifest = fresh.manifest("solve", 1)
    assert manifest is not None and manifest.to_json()["outputs"][0]["from"] == "smoke"
    assert fsck(fresh) == []
    assert first_generation(made) == 2
    assert fresh.read_table(1, "rollouts") == run.read_table(1, "rollouts")
    with hold(run.store, "other") as epoch:
        going_on = Run(run.store, "other", epoch)
        population = example_run.population_of(going_on, 1)
        example_run.one_generation(going_on, population, 2, last=True)
    assert fsck(Run(run.store, "other")) == []
    assert fsck(Run(run.store, "smoke")) == []
    assert "s0-g0001" in inspect(Run(run.store, "other"), adapter="s0-g0002")


def test_a_fork_of_a_fork_and_one_of_the_start(run: Run) -> None:
    fork(run, "other", 1, [], versions, CLOCK)
    made = fork(Run(run.store, "other"), "third", 0, [], versions, CLOCK)
    manifest = Run(run.store, "third").manifest("solve", 0)
    assert manifest is not None and {ref.origin for ref in manifest.outputs} == {"smoke"}
    assert fsck(made) == [] and first_generation(made) == 1
    assert first_generation(fork(run, "fourth", -1, [], versions, CLOCK)) == 0


def test_a_fork_records_its_own_choices_not_its_parent_s(run: Run, tmp_path: Path) -> None:
    rule = tmp_path / "rule.py"
    rule.write_text("def f(*rates):\n    return 0.0\n")
    fork(run, "other", 1, [f"reward.rule={rule}:f"], versions, CLOCK)
    description = Run(run.store, "other").history.description()
    assert description is not None and list(description["versions"]["choices"]) == [f"{rule}:f"]


def test_a_retired_point_names_the_nearest_usable_one(run: Run) -> None:
    retire(run, POLICY, CLOCK)
    said = r"cannot be forked from generation 2: adapters/t0-g0002/.* was retired; the nearest usable generation is 3"
    with pytest.raises(StoreRefused, match=said):
        fork(run, "other", 2, [], versions, CLOCK)
    with pytest.raises(StoreRefused, match="the nearest usable generation is -1"):
        fork(run, "other", 0, [], versions, CLOCK)
    assert run.store.list("other/", hidden=True) == []


@pytest.mark.parametrize("policy", [POLICY, RetentionPolicy(newest=2, optimizer_every=2), None])
def test_what_is_named_as_forkable_is_what_can_be_forked(policy: RetentionPolicy | None, run: Run) -> None:
    if policy:
        retire(run, policy, CLOCK)
    for generation in range(-1, 3):  # after the last one, generation 3, nothing is left to do
        if generation in forkable(policy, 4):
            fork(run, f"from{generation + 1}", generation, [], versions, CLOCK)
        else:
            with pytest.raises(StoreRefused, match="was retired"):
                fork(run, "never", generation, [], versions, CLOCK)


def test_a_fork_killed_half_way_is_finished_by_the_same_command(run: Run) -> None:
    fork(run, "other", 1, [], versions, CLOCK)
    for stage in ("evolve", "rate", "update"):
        run.store.delete(f"other/generation=0001/{stage}.json")
    with hold(run.store, "other") as epoch, pytest.raises(StoreRefused, match="is an unfinished fork"):
        first_generation(Run(run.store, "other", epoch))
    made = fork(run, "other", 1, [], versions, CLOCK)
    assert fsck(made) == [] and first_generation(made) == 2


def test_forks_that_make_no_sense_are_refused(run: Run) -> None:
    for settings, error in (
        (["model.rank=4"], r"model.rank: a fork shares artifacts .* start a new run instead \(docs/sharing.md#continue-from"),
        (["mode=single"], "mode: a fork shares artifacts .*#continue-from-a-runs-adapters"),
        (["seeding.max_rounds=9"], "seeding.max_rounds: a fork shares artifacts .* start a new run instead$"),
        (["model.rnk=4"], "did you mean model.rank"),
        (["seeding.nosuch=1"], "seeding.nosuch"),
        (["population.students=3"], "population.students: a fork shares"),
        (["generations=2"], "generations: 2 leaves nothing to do after generation 1$"),
        (["nonsense=1"], "nonsense"),
    ):
        with pytest.raises(ConfigError, match=error):
            fork(run, "other", 1, settings, versions, CLOCK)
    last = CONFIG.generations - 1
    with pytest.raises(ConfigError, match=rf"^generations: {last + 1} leaves nothing to do .* {last}; add --set generations=N$"):
        fork(run, "other", last, [], versions, CLOCK)
    for run_id, generation, error in (
        ("smoke", 1, "needs a different id"),
        ("other", 7, "has not finished generation 7"),
        ("other", -2, "has not finished generation -2"),
        ("../x", 1, "lower-case letters"),
    ):
        with pytest.raises(StoreRefused, match=error):
            fork(run, run_id, generation, [], versions, CLOCK)
    fork(run, "other", 1, [], versions, CLOCK)
    with pytest.raises(StoreRefused, match="run other already exists"):
        fork(run, "other", 0, [], versions, CLOCK)
    with pytest.raises(StoreRefused, match="there is no run nobody"):
        fork(Run(run.store, "nobody"), "new", 0, [], versions, CLOCK)


def test_damage_in_the_parent_is_found_in_the_fork_and_mended_in_the_parent(run: Run, tmp_path: Path) -> None:
    made = fork(run, "other", 1, [], versions, CLOCK)
    (tmp_path / "smoke/generation=0001/grades.parquet").write_bytes(b"?")
    (finding,) = fsck(made)
    assert finding.command == f"populora fsck smoke --store {run.store.url}"
