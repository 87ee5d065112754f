"""A fork that begins inside a generation shares the stages before one, and nothing else of that generation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.audit.fsck import fsck
from flows.config import ConfigError, dump, parse
from flows.run.fork import _check_shared, _up_to, fork, point
from flows.run.lease import hold
from flows.run.manifest import place_of
from flows.run.resume import first_generation
from flows.run.retention import RetentionPolicy, pins_of, retire
from flows.run.run import Run
from flows.stages import REQUIRED, STAGE_NAMES
from flows.storage import StoreRefused, open_store
from stages.core import tables
from tests.support import example_run

CONFIG = example_run.CONFIG.model_copy(update={"generations": 9})
CLOCK = {"host": "here"}


def versions(_config: object) -> dict[str, str]:
    return {"code": "x"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with hold(open_store(str(folder)), "smoke") as epoch:
        example_run.build(Run(open_store(str(folder)), "smoke", epoch), 3, CONFIG)
    return folder


@pytest.mark.parametrize("stage", STAGE_NAMES[1:])
def test_the_stages_before_it_are_shared(run: Run, stage: str) -> None:
    before = {uri: run.store.read(uri) for uri in run.store.list("smoke/")}
    made = fork(run, "again", 1, [], versions, CLOCK, stage)
    shared = [one.stage for one in made.history.of_generation(1)]
    assert shared == [one for one in REQUIRED if STAGE_NAMES.index(one) < STAGE_NAMES.index(stage)]
    assert made.history.of_generation(2) == [] and len(made.history.of_generation(0)) == len(run.history.of_generation(0))
    assert [uri for uri in run.store.list("again/") if not uri.endswith(".json")] == [], "only manifests are copied"
    assert first_generation(made) == 1
    assert fsck(Run(run.store, "again")) == []
    assert {uri: run.store.read(uri) for uri in run.store.list("smoke/")} == before, "nothing of the parent changes"
    description = made.history.description()
    assert description is not None and description["versions"]["forked_from"]["stage"] == stage


def test_the_rest_of_the_generation_is_the_forks_own_and_its_settings_hold_for_it(run: Run) -> None:
    made = fork(run, "again", 1, ["rating.draw_margin=0.3"], versions, CLOCK, "match")
    assert made.history.of_generation(1) == [], "before the first stage is after the generation before"
    description = made.history.description()
    assert description is not None and description["versions"]["forked_from"] | {"head": ""} == {
        "run": "smoke",
        "generation": 0,
        "head": "",
    }
    shared = fork(run, "later", 1, ["solve.trained_attempts=1"], versions, CLOCK, "reward")
    assert fsck(Run(run.store, "later")) == [], "shared tables are checked by their maker's settings"
    assert shared.read_table(1, "grades") == run.read_table(1, "grades")


@pytest.mark.parametrize(
    ("stage", "setting", "earlier"),
    [
        ("update", "strategy.population=2", "propose"),
        ("verify", "strategy.population=2", "propose"),
        ("reward", "engine.temperature=0.8", "propose"),
        ("update", "learning.frozen=teachers", "reward"),
        ("solve", "engine.window=100", "verify"),
        ("solve", "solve.max_new_tokens=8", "verify"),
    ],
)
def test_settings_that_made_what_its_first_generation_shares_cannot_change(
    run: Run, stage: str, setting: str, earlier: str
) -> None:
    """A strategy's step needs the noise that wrote the rollouts, and parts of an update name the adapters of their samples."""
    with pytest.raises(ConfigError, match=f"made with the old value; fork with --stage {earlier}"):
        fork(run, "again", 1, [setting], versions, CLOCK, stage)
    assert run.store.list("again/", hidden=True) == []
    fork(run, "again", 1, [setting], versions, CLOCK, earlier)


def test_the_seed_of_a_strategy_cannot_change_behind_its_rollouts() -> None:
    before = dump(parse({"strategy": {"population": 4}}))
    with pytest.raises(ConfigError, match=r"seed: .* fork with --stage propose"):
        _check_shared(before, before | {"seed": 7}, point(1, "solve"))
    for at in (point(1), point(1, "propose"), point(1, "rate")):
        _check_shared(before, before | {"seed": 7}, at)
    gradient = dump(parse({}))
    _check_shared(gradient, gradient | {"seed": 7}, point(1, "solve"))


def test_off_policy_the_temperature_of_shared_samples_cannot_change() -> None:
    before = dump(parse(dump(CONFIG) | {"learning": {"off_policy_steps": 1, "importance_cap": 2.0}}))
    after = before | {"engine": before["engine"] | {"temperature": 0.7}}
    with pytest.raises(ConfigError, match=r"engine\.temperature: off-policy, a fork's first update trains on shared samples"):
        _check_shared(before, after, point(0, ""))
    _check_shared(before, after, point(-1, ""))
    on_policy = before | {"learning": before["learning"] | {"off_policy_steps": 0}}
    _check_shared(on_policy, on_policy | {"engine": after["engine"]}, point(0, ""))


def test_a_stage_is_copied_after_its_parts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = run.history.of_generation(1)
    parts = [replace(one, stage=f"{one.stage}.parts/{part}") for one in stages if one.stage == "solve" for part in ("00", "01")]
    monkeypatch.setattr(run.history, "of_generation", lambda number, **_: [*stages, *parts] if number == 1 else [])
    copied = [one.stage for one in _up_to(run, point(1))]
    assert copied == [name for one in stages for name in ([] if one.stage != "solve" else [p.stage for p in parts]) + [one.stage]]


def test_half_a_fork_gets_no_start_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.run.fork._copy", killed)
    with pytest.raises(KeyboardInterrupt):
        fork(run, "again", 1, [], versions, CLOCK)
    with hold(run.store, "again") as epoch, pytest.raises(StoreRefused, match="run again is an unfinished fork"):
        first_generation(Run(run.store, "again", epoch))


def test_what_it_stands_on_is_kept(run: Run) -> None:
    fork(run, "again", 1, [], versions, CLOCK, "solve")
    assert {"t0-g0000", "t1-g0000", "s0-g0000"} <= pins_of(run).forked
    retire(run, RetentionPolicy(newest=1, optimizer_every=99, adapter_every=99), CLOCK)
    made = Run(run.store, "again")
    assert fsck(made) == []
    made.read_adapter("t0-g0000")
    with pytest.raises(StoreRefused, match=r"cannot be forked from solve of generation 2: .* was retired"):
        fork(run, "other", 2, [], versions, CLOCK, "solve")


def test_after_a_shared_update_it_stands_on_the_updated_weights(run: Run) -> None:
    fork(run, "again", 1, [], versions, CLOCK, "rate")
    assert {"t0-g0001", "t1-g0001", "s0-g0001"} <= pins_of(run).forked


def test_one_killed_half_way_is_not_resumed_but_finished_by_the_same_command(run: Run) -> None:
    fork(run, "again", 1, [], versions, CLOCK, "reward")
    for stage in ("grade", "solve"):
        run.store.delete(f"again/generation=0001/{stage}.json")
    with hold(run.store, "again") as epoch, pytest.raises(StoreRefused, match="is an unfinished fork"):
        first_generation(Run(run.store, "again", epoch))
    made = fork(run, "again", 1, [], versions, CLOCK, "reward")
    assert fsck(made) == [] and first_generation(made) == 1
    before = run.store.list("again/", hidden=True)
    with pytest.raises(StoreRefused, match="run again already exists"):
        fork(run, "again", 1, [], versions, CLOCK, "solve")
    assert run.store.list("again/", hidden=True) == before, "no lease was taken"


def test_points_that_make_no_sense_are_refused(run: Run) -> None:
    for generation, stage, error in ((1, "slove", "did you mean solve"), (-1, "solve", "has no stages")):
        with pytest.raises(ConfigError, match=error):
            fork(run, "again", generation, [], versions, CLOCK, stage)
    with pytest.raises(StoreRefused, match="has not finished generation 6"):
        fork(run, "again", 7, [], versions, CLOCK, "solve")
    run.remove("generation=0002/evolve.json")
    run.remove("generation=0002/rate.json")
    with pytest.raises(StoreRefused, match="has not finished rate of generation 2"):
        fork(run, "again", 2, [], versions, CLOCK, "evolve")
    assert run.store.list("again/", hidden=True) == []


def test_the_first_stage_that_a_fork_computes() -> None:
    assert point(3).place == place_of(4, "match") and point(3).whole == 3
    assert point(3, "solve").place == place_of(3, "solve") and point(3, "solve").whole == 2
    assert point(3, "match") == point(2)
    assert point(0, "match") == point(-1)


def test_a_fork_killed_before_its_last_copy_is_unfinished_though_that_stage_is_optional(run: Run) -> None:
    run.remove("generation=0002/evolve.json")
    scores = run.write_table(2, "scores", tables.SCORES.empty_table())
    run.commit("benchmark", 2, [], [scores])
    made = fork(run, "again", 2, [], versions, CLOCK, "evolve")
    whole = {uri: made.store.read(uri) for uri in made.store.list("again/")}
    assert first_generation(made) == 2
    made.remove("generation=0002/benchmark.json")
    with hold(run.store, "again") as epoch, pytest.raises(StoreRefused, match="run again is an unfinished fork"):
        first_generation(Run(run.store, "again", epoch))
    fork(run, "again", 2, [], versions, CLOCK, "evolve")
    assert {uri: made.store.read(uri) for uri in made.store.list("again/")} == whole


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"solve": {"max_new_tokens": 63}}, "solve.max_new_tokens"),
        ({"solve": {"max_new_tokens": 65}}, "solve.max_new_tokens"),  # the window leaves prompts one token less
        ({"engine": {"window": 199}}, "engine.window"),
        ({"engine": {"window": 200}, "solve": {"max_new_tokens": 64}}, ""),
        ({"engine": {"window": 201}, "solve": {"max_new_tokens": 65}}, ""),
        ({"engine": {"window": 0}, "solve": {"max_new_tokens": 65}}, ""),
        ({"solve": {"max_new_tokens": 63, "mixed_share": 0.0}}, ""),
    ],
)
def test_tasks_posed_again_have_the_room_that_they_were_verified_with(settings: dict[str, Any], key: str) -> None:
    before = dump(parse({"engine": {"window": 200}, "solve": {"max_new_tokens": 64, "mixed_share": 0.5}}))
    after = before | {group: before[group] | values for group, values in settings.items()}
    if key:
        with pytest.raises(ConfigError, match=f"{key}: earlier tasks were verified with more room"):
            _check_shared(before, after, point(1))
    else:
        _check_shared(before, after, point(1))
