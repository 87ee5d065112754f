"""Differences of configurations: by type and value, with keys that only some runs have."""

from flows.compare.settings_diff import Difference, SettingsDiff, diff, flat


def test_groups_become_dotted_keys_and_an_empty_group_is_a_value() -> None:
    assert flat({"b": {"y": {"z": [1]}, "x": {}}, "a": 1}) == {"a": 1, "b.x": {}, "b.y.z": [1]}


def test_only_what_differs_is_listed_and_the_rest_is_counted() -> None:
    found = diff([{"a": 1, "b": 2, "c": [1]}, {"a": 1, "b": 3, "c": [1]}, {"a": 1, "b": 2, "c": [1]}])
    assert found == SettingsDiff((Difference("b", ("2", "3", "2")),), 2)


def test_values_of_other_types_differ_and_an_absent_key_differs_from_null() -> None:
    found = diff([{"a": 1, "b": "1", "c": True, "d": None}, {"a": 1.0, "b": 1, "c": 1}])
    expected = (("a", ("1", "1.0")), ("b", ("1", "1")), ("c", ("true", "1")), ("d", ("null", None)))
    assert found == SettingsDiff(tuple(Difference(key, values) for key, values in expected), 0)
