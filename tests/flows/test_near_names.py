"""Names that a user may have meant."""

import pytest

from flows.config import setting_keys
from flows.near_names import hint, key_hint, near_or_all, nearest


@pytest.mark.parametrize(
    ("name", "said"),
    [("statsu", "; did you mean status?"), ("repot", "; did you mean report?"), ("fly", ""), ("", "")],
)
def test_the_closest_name_is_suggested_or_none(name: str, said: str) -> None:
    assert hint(name, ["run", "report", "status"]) == said


def test_the_three_nearest_names_come_closest_first() -> None:
    assert nearest("t0-g01", ["t0-g02", "t0-g11", "t0-g01", "s5", "t1-g01"])[0] == "t0-g01"
    assert len(nearest("t0-g01", [f"t0-g0{number}" for number in range(9)])) == 3 and nearest("x", ["report"]) == []


def test_without_a_close_name_all_are_listed_or_the_first_eight() -> None:
    assert near_or_all("smok", ["again", "smoke"]) == "; did you mean smoke?"
    assert near_or_all("x", []) == "" and near_or_all("x", ["again"]) == "; there is again"
    assert near_or_all("x", map(str, range(10))) == "; there are 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("populaton.teachers", "population.teachers"),
        ("population.teacherz", "population.teachers"),
        ("evolution.betas", "learning.betas"),
        ("teachers", "population.teachers"),
        ("learning_rat", "learning.learning_rate or strategy.learning_rate"),
        ("generatoins", "generations"),
        ("lerning", "learning"),
        ("every", "evolution.every or benchmark.every"),
        ("propse.max_new_tokens", "propose.max_new_tokens"),
        ("max_new_tokens", "propose.max_new_tokens, solve.max_new_tokens or benchmark.max_new_tokens"),
    ],
)
def test_a_key_is_found_by_the_whole_of_it_or_by_its_end(key: str, meant: str) -> None:
    assert key_hint(key, setting_keys(groups=True)) == f"; did you mean {meant}?"


def test_a_key_like_no_other_gets_no_suggestion() -> None:
    assert key_hint("zzz", setting_keys()) == key_hint("zzz.qqq", setting_keys()) == ""
    assert key_hint("model.nosuch", setting_keys()) == "; model has name, revision, style, rank, alpha, targets, dtype, device"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("learning.rate", "; did you mean learning.learning_rate?"),
        ("learning.batch", "; did you mean learning.micro_batch_tokens?"),
        ("cost.price", "; cost has machine_hour, kwh, currency, watts"),
    ],
)
def test_a_key_of_a_group_is_a_word_of_one_of_its_keys_or_they_are_listed(key: str, said: str) -> None:
    assert key_hint(key, setting_keys()) == said
