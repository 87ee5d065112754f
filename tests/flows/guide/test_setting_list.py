"""Settings as data: all of them, as the configuration defines them."""

from flows.config import RunConfig, dump, setting_keys
from flows.guide.setting_list import Setting, as_toml, groups, settings


def test_every_setting_is_there_with_a_title_and_the_default_that_a_run_gets() -> None:
    assert list(settings()) == setting_keys() and all(setting.title for setting in settings().values())
    values = dump(RunConfig())
    for key, setting in settings().items():
        group, _, name = key.rpartition(".")
        assert setting.default == (values[group] if group else values)[name], key


def test_every_group_says_what_it_is_about() -> None:
    assert list(groups()) == [key for key in setting_keys(groups=True) if key not in settings()]
    assert groups()["population"] == "How many adapters play each role. With mode = single, one adapter plays both roles."


def test_type_and_limits_are_words() -> None:
    kinds = {key: settings()[key].kind for key in ("propose.references", "model.alpha", "evolution.gamma", "model.name")}
    assert kinds == {
        "propose.references": "integer, at least 0, at most 16",
        "model.alpha": "number, more than 0",
        "evolution.gamma": "number, at least 0, at most 1",
        "model.name": "text",
    }
    assert settings()["learning.betas"].kind == "list of 2; each: number, at least 0, less than 1"
    assert settings()["benchmark.children_at"].kind == "list; each: integer, at least 0"
    assert settings()["evolution.mix"] == Setting(
        "evolution.mix",
        "Mix",
        "draw: choose mutation or crossover at random. alternate: take turns.",
        'one of "draw", "alternate"',
        "draw",
        ("draw", "alternate"),
    )
    assert settings()["solve.top_up"].choices == (False, True)
    mixed = settings()["learning.gradient_checkpointing"]
    assert (mixed.kind, mixed.choices, mixed.default) == ('"auto" or true or false', ("auto", False, True), "auto")


def test_values_are_written_as_a_file_has_them() -> None:
    assert [as_toml(value) for value in (True, 1e-05, "ü", ["a"], 3)] == ["true", "1e-05", '"ü"', '["a"]', "3"]
