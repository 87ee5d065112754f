"""Which cores vLLM computes on without a GPU."""

from stages.core.engines.vllm_cores import BIND, RESERVED, core_settings


def test_all_allowed_cores_are_used_and_none_is_reserved() -> None:
    assert core_settings({}, {1, 0}) == {BIND: "0,1", RESERVED: "0"}
    assert core_settings({}, {3, 9, 5}) == {BIND: "3,5,9", RESERVED: "0"}


def test_what_the_user_has_set_stays() -> None:
    assert core_settings({BIND: "nobind"}, {0, 1}) == {RESERVED: "0"}
    assert core_settings({BIND: "0-3", RESERVED: "1"}, {0, 1}) == {}
