"""Every committed configuration parses; a bad one is one line that names the key."""

from pathlib import Path

import pytest

from flows.config import RUNS, ConfigError, RunConfig, check_operators, differences, dump, load, parse, setting_keys
from flows.plan.estimate import plan
from stages.core.prompts.styles import Kind


@pytest.mark.parametrize("name", sorted(path.stem for path in RUNS.glob("*.toml")))
def test_committed_configurations_parse_and_have_a_plan(name: str) -> None:
    config = load(name)
    assert "memory" in plan(config)
    assert "\ntime             " in plan(config)


def test_the_issue_of_record_is_what_the_named_runs_say() -> None:
    assert {load(name).proposals_per_teacher for name in ("smoke", "single", "one-one", "azr")} == {12}
    assert load("paper").proposals_per_teacher == 192
    assert load("paper").model.rank == 32
    smoke, single = load("smoke"), load("single")
    assert smoke.learning == single.learning
    assert (smoke.propose, smoke.solve, smoke.seeding, smoke.model) == (
        single.propose,
        single.solve,
        single.seeding,
        single.model,
    )


def test_a_run_may_be_about_some_kinds_alone() -> None:
    config = load("smoke", ["propose.kinds=['induction', 'deduction']"])
    assert (config.kinds, config.proposals_per_teacher) == ((Kind.DEDUCTION, Kind.INDUCTION), 8)
    whole, fewer = (
        {line.split()[0]: line for line in plan(load("one-gpu", settings)).splitlines()}
        for settings in ((), ["propose.kinds=['deduction']"])
    )
    assert whole["per"] != fewer["per"] and "128 proposals" in fewer["per"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["population.teacherz=3"], "population.teacherz"),
        (["generations=0"], "generations"),
        (["model.rank='big'"], "model.rank"),
        (["mode=single"], "mode single"),
        (["engine.kind=vllm"], "engine.python"),
        (["seed"], "key=value"),
        (["seed.deep=1"], "seed"),
        (["solve.trained_attempts=9"], "trained_attempts"),
        (["solve.trained_attempts=1", "solve.mixed_share=0.5"], "one attempt cannot have mixed results"),
        (["learning.estimator=pass_at_k", "learning.pass_at=8"], "learning.pass_at must be less than the 8 trained attempts"),
        (["learning.estimator=pass_at_k", "solve.trained_attempts=4"], "less than the 4 trained attempts"),
        (["learning.frozen=students", "population.teachers=0", "propose.curriculum=uniform"], "trains nobody"),
        (["population.teachers=0"], "if and only if"),
        (["propose.curriculum=uniform"], "if and only if"),
        (["propose.kinds=['deduction', 'deduction']"], "propose.kinds: .*named twice"),
        (["propose.kinds=['induction']"], "propose.kinds: inductions are about programs of other kinds"),
        (["propose.kinds=[]"], "propose.kinds: .*at least 1 item"),
        (["propose.kinds=['deductions']"], "propose.kinds"),
        (["experiment.leak=0.1", "solve.easy_share=0.2"], "cannot be combined"),
        (["experiment.leak=0.1", "solve.mixed_share=0.2"], "cannot be combined"),
        (["experiment.leak=0.1", "propose.references_from=mixed"], "cannot be combined"),
        (["propose.curriculum=uniform", "population.teachers=0", "propose.references_from=mixed"], "needs teachers"),
        (["solve.easy_share=0.2", "solve.mixed_share=0.2"], "not both"),
        (["population.teachers=0", "propose.curriculum=uniform", "solve.top_up=true"], "did not choose"),
        (["mode=single", "population.teachers=0", "population.students=1", "propose.curriculum=uniform"], "mode single"),
        (["solve.easy_share=1.0"], "solve.easy_share"),
        (["strategy.population=3"], "strategy.population must be even, not 3"),
        (["strategy.population=6"], "solve.attempts is 8, which strategy.population = 6 does not divide"),
        (["strategy.population=8"], "propose.group_size is 4, which strategy.population = 8 does not divide"),
        (["strategy.population=4", "solve.trained_attempts=4"], "solve.trained_attempts must be 0"),
        (["strategy.population=4", "learning.divide=rows"], "learning.divide cannot be rows"),
        (["strategy.population=4", "strategy.sigma=0"], "strategy.sigma"),
        (["reward.trace_weight=1.0"], "reward.trace_weight"),
        (["evolution.mutations=[]", "evolution.crossovers=[]"], "both empty: name an operator"),
        (["evolution.mutations=[]", "population.students=2"], "an event leaves one member of a role"),
        (["evolution.mutations=[]", "evolution.gamma=0.75"], "an event leaves one member of a role"),
        (["evolution.mutations=['M1', 'X1']"], "^evolution.mutations: X1 does not make a child of one parent"),
        (["evolution.crossovers=['M5', 'C1']"], "^evolution.crossovers: C1, M5 does not make a child of two parents"),
        (["model.targets=[]"], "^model.targets: .*at least 1 item"),
        (["reward.trace_weight=0.5"], "reward.trace_weight needs model.style trace, whose answers have a trace, not compact"),
        (["learning.gradient_checkpointing=maybe"], "^learning.gradient_checkpointing: 'maybe' is not true, false or auto$"),
        (["learning.gradient_checkpointing=2"], "^learning.gradient_checkpointing: 2 is not true, false or auto$"),
        (["learning.row_tokens=0"], "^learning.row_tokens: .*greater than or equal to 1$"),
        (["learning.row_tokens=20000"], r"learning.row_tokens \(20000\) is more than learning.micro_batch_tokens \(16384\)"),
        (
            ["learning.skip_zero_groups=true", "learning.entropy_bonus=0.001"],
            "groups that entropy_bonus or kl would train",
        ),
        (["learning.off_policy_steps=1"], "which learning.importance_cap corrects; set it, for example to 2"),
        (["learning.off_policy_steps=2", "learning.importance_cap=2"], "learning.off_policy_steps"),
        (
            ["learning.off_policy_steps=1", "learning.importance_cap=2", "strategy.population=4"],
            "learning.off_policy_steps cannot be combined with strategy.population",
        ),
        (["learning.skip_zero_groups=true", "learning.kl=0.1"], "groups that entropy_bonus or kl would train"),
        (["learning.betas=[0.9, 1.0]"], "learning.betas.1: .*less than 1"),
        (["learning.betas=[-3.0, 0.9]"], "learning.betas.0: .*greater than or equal to 0"),
        (["learning.learning_rate=inf"], "learning.learning_rate: .*finite number"),
        (["evolution.kappa=nan"], "evolution.kappa: .*finite number"),
        (["rating.sigma=-1"], "rating.sigma: .*greater than 0"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load("smoke", settings)
    assert "\n" not in str(error.value)


def test_one_kind_of_operator_is_enough_where_every_event_can_use_it() -> None:
    settings = ["population.teachers=4", "population.students=4", "evolution.mutations=[]"]
    assert load("smoke", settings).evolution.crossovers and load("smoke", ["evolution.crossovers=[]"]).evolution.mutations
    for none in ("evolution.every=0", "generations=5"):  # no event: the last generation of a run has none
        assert not load("smoke", [none, "evolution.mutations=[]", "evolution.crossovers=[]"]).evolution.mutations


def test_a_stored_configuration_whose_events_have_no_operator_is_still_read() -> None:
    """A run of an older version has stopped at its first event: it can be forked, scored and exported."""
    stored = dump(load("smoke", ["generations=20"])) | {"evolution": {"mutations": [], "crossovers": []}}
    assert not parse(stored).evolution.mutations
    with pytest.raises(ConfigError, match="both empty"):
        check_operators(parse(stored))


def test_recomputation_is_true_false_or_left_to_the_plan() -> None:
    found = [load("smoke", [f"learning.gradient_checkpointing={text}"]) for text in ("true", "false", "auto", "'auto'")]
    assert [config.learning.gradient_checkpointing for config in found] == [True, False, "auto", "auto"]
    for config in found:
        assert RunConfig.model_validate(dump(config)) == config
    assert load("smoke").learning.gradient_checkpointing == "auto"


def test_small_passes_keep_the_usual_rows() -> None:
    """A configuration of before learning.row_tokens, with passes that are smaller than a row, is still one."""
    config = load("smoke", ["learning.micro_batch_tokens=512"])
    assert (config.learning.row_tokens, config.learning.micro_batch_tokens) == (1024, 512)
    assert load("smoke", ["learning.skip_zero_groups=true"]).learning.entropy_bonus == 0


def test_a_population_without_teachers_is_its_students() -> None:
    config = load("smoke", ["population.teachers=0", "population.students=3", "propose.curriculum=uniform"])
    assert (config.adapters, config.matches) == (3, 3)
    assert (load("evidence").adapters, load("evidence").matches) == (8, 4)
    assert (load("single").adapters, load("single").matches) == (1, 1)
    lines = plan(config).splitlines()
    assert lines[0] == "members          3 (no teachers, 3 students)"
    tokens = 3 * 12 * config.solve.attempts * config.solve.max_new_tokens
    assert lines[1].endswith(f"36 proposals, at most {36 * config.solve.attempts} attempts, at most {tokens:,} generated tokens")


def test_copies_write_for_the_roles_that_a_strategy_trains() -> None:
    def roles(*settings: str) -> set[str]:
        return set(load("smoke", settings).copied_roles)

    generator = ("population.teachers=0", "propose.curriculum=uniform")
    assert roles() == set()
    assert roles("strategy.population=4") == {"teacher", "student"}
    assert roles("strategy.population=8", "learning.frozen=teachers") == {"student"} == roles("strategy.population=8", *generator)
    assert roles("strategy.population=4", "learning.frozen=students") == {"teacher"}
    assert (load("smoke").served, load("smoke", ["strategy.population=4"]).served) == (6, 24)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"smoke$"):
        load("nothing")
    with pytest.raises(ConfigError, match=r"smoke; did you mean smoke\?$"):
        load("smoek")


def test_an_unknown_key_of_a_file_is_one_line_with_the_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[populaton]\nteachers = 2\n")
    with pytest.raises(ConfigError) as error:
        load(str(file))
    assert str(error.value) == "populaton.teachers: there is no such setting; did you mean population.teachers?"
    file.write_text("zzz = 2\n")
    with pytest.raises(ConfigError, match=r"^zzz: there is no such setting; populora explain lists them$"):
        load(str(file))


def test_setting_keys_are_the_keys_of_a_dump() -> None:
    values = dump(load("smoke"))
    keys = [
        f"{name}.{field}" if isinstance(one, dict) else name
        for name, one in values.items()
        for field in (one if isinstance(one, dict) else [""])
    ]
    assert setting_keys() == keys
    assert setting_keys(groups=True)[:6] == ["mode", "generations", "seed", "threads", "model", "model.name"]


def test_settings_are_toml_where_they_parse_and_text_elsewhere() -> None:
    config = load("smoke", ["learning.learning_rate=2e-4", "sandbox.kind=local", "reward.gates=['constant']"])
    assert (config.learning.learning_rate, config.sandbox.kind, config.reward.gates) == (2e-4, "local", ("constant",))


def test_differences_are_dotted_keys() -> None:
    assert differences(dump(load("smoke")), dump(load("smoke", ["seed=1", "model.rank=8"]))) == ["model.rank", "seed"]


def test_a_configuration_survives_its_own_dump() -> None:
    assert RunConfig.model_validate(dump(load("paper"))) == load("paper")
