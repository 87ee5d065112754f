"""`populora explain` for a setting, a group, all settings, and an unknown key."""

import re

import pytest

from flows.cli import main
from flows.config import PROJECT, setting_keys
from flows.guide.explanation import explain, overview


def test_a_setting_is_explained_from_its_definition_the_configurations_and_the_pages() -> None:
    assert explain("learning.learning_rate") == (
        "learning.learning_rate: Learning rate\n"
        "type        number, at least 0\n"
        "default     1e-05\n"
        "elsewhere   0.001 in azr, chaos, evidence, one-one, single, smoke; 0.0002 in laptop, pair; 0.0001 in one-gpu; 0.002 in\n"
        "            quickstart; 0.0007 in reasoner\n"
        "why         The shipped models have 3.5 and 1.1 million parameters. quickstart has minutes where reasoner has an hour.\n"
        "            laptop has 60 steps of at most 512 attempts where the paper has 200 of 6,144; one-gpu has as many as the\n"
        "            paper, and half the rate at which the 0.5B learned. (docs/method.md)\n"
        "rule        The AdamW step of one adapter, gradient clipping, warm-up: stages/core/training/step.py:adamw\n"
        "            (docs/map.md, Reward and update)\n"
        "group       [learning] The policy gradient: one optimizer step per adapter and generation."
    )


def test_every_row_of_the_map_that_names_a_key_is_shown_with_it() -> None:
    rows = [line for line in (PROJECT / "docs" / "map.md").read_text().splitlines() if line.startswith("| ")]
    named = [(key, row) for row in rows for key in re.findall(r"`([\w.]+)`", row.split(" | ")[2]) if key in setting_keys()]
    assert len(named) > 50
    for key, row in named:
        rule = row.split(" | ")[0].removeprefix("| ").replace("`", "")
        assert "".join(rule.split()) in "".join(explain(key).split()), key


def test_a_group_is_its_settings_a_line_each_and_all_of_them_are_without_a_key() -> None:
    first, *lines = explain("population").splitlines()
    assert first == "[population] How many adapters play each role. With mode = single, one adapter plays both roles."
    assert lines == [line for line in overview().splitlines() if line.startswith("population.")]
    assert lines[0] == "population.teachers              Teachers (4)"
    assert [line.split()[0] for line in overview().splitlines()] == setting_keys()


def test_the_page_of_all_settings_is_printed_and_takes_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--markdown"]) == 0
    assert capsys.readouterr().out == (PROJECT / "docs" / "settings.md").read_text()
    assert main(["explain", "learning.kl", "--markdown"]) == 2
    assert capsys.readouterr().err == "populora: --markdown prints all settings: leave out KEY\n"


@pytest.mark.parametrize(("key", "meant"), [("lerning", "learning"), ("learning.learning_rat", "learning.learning_rate")])
def test_an_unknown_key_is_one_line_with_the_nearest_one(key: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", key]) == 2
    assert capsys.readouterr().err == f"populora: {key}: there is no such setting; did you mean {meant}?\n"
