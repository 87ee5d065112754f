"""What a process keeps of adapters in memory: which file is found, which one it displaces, and the limit."""

import numpy as np
import pytest

from flows.config import ConfigError
from flows.run.held_adapters import HeldAdapters, held_by_process
from flows.run.manifest import Ref
from stages.core.lora.adapter import Weights

FILE, STATE = "adapter_model.safetensors", "optimizer.safetensors"


def file(adapter_id: str, digest: str = "a", name: str = FILE) -> Ref:
    return Ref(f"adapters/{adapter_id}/{name}", digest)


def arrays(count: int = 10) -> Weights:
    return {"w": np.zeros(count, np.float32)}


def there(held: HeldAdapters, ref: Ref, now: int = 1) -> bool:
    return held.find(ref, now) is not None


def test_only_the_digest_in_question_is_found() -> None:
    held, kept = HeldAdapters(1000), arrays()
    held.hold(file("t0-g0001"), kept, 1)
    assert held.find(file("t0-g0001"), 1) is kept
    for other in (file("t0-g0001", "b"), file("t0-g0001", name=STATE), file("t1-g0001"), file("t0-g0002")):
        assert not there(held, other)


def test_nobody_can_change_what_is_held() -> None:
    held = HeldAdapters(1000)
    held.hold(file("t0-g0001"), arrays(), 1)
    found = held.find(file("t0-g0001"), 1)
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found["w"] *= 0.9


@pytest.mark.parametrize(("name", "kept"), [(FILE, ["t0-g0009", "t0-g0010"]), (STATE, ["t0-g0010"])])
def test_of_each_member_the_newest_stay_whatever_is_read_later(name: str, kept: list[str]) -> None:
    """The weights of two generations, since an update's metrics compare those that played; the moments of one."""
    held, all_of_them = HeldAdapters(1000), ["t0-start", "t0-g0008", "t0-g0009", "t0-g0010", "t0-g0008", "t0-start"]
    for adapter_id in all_of_them:
        held.hold(file(adapter_id, name=name), arrays(), 10)
    assert [one for one in all_of_them[:4] if there(held, file(one, name=name), 10)] == kept


def test_what_no_stage_asks_for_is_let_go() -> None:
    """A member that was replaced: its last weights are asked for in the generation in which it played, and never again."""
    held = HeldAdapters(1000)
    for member in ("dead", "sat-out"):
        held.hold(file(f"{member}-g0005"), arrays(), 5)
    for now in (6, 7):
        assert there(held, file("sat-out-g0005"), now)
        held.hold(file(f"t0-g{now:04d}"), arrays(), now)
    assert not there(held, file("dead-g0005"), 7) and there(held, file("sat-out-g0005"), 7)


def test_a_file_written_again_takes_the_place_of_what_it_replaces() -> None:
    held = HeldAdapters(1000)
    held.hold(file("t0-g0001", "first"), arrays(), 1)
    held.hold(file("t0-g0001", "again"), arrays(), 1)
    assert not there(held, file("t0-g0001", "first")) and there(held, file("t0-g0001", "again"))


def test_beyond_the_limit_the_file_held_longest_goes_first() -> None:
    held, members = HeldAdapters(100), ("t0", "t1", "t2")
    for member in members:
        held.hold(file(f"{member}-g0001"), arrays(10), 1)
    assert [there(held, file(f"{member}-g0001")) for member in members] == [False, True, True]
    held.hold(file("t3-g0001"), arrays(26), 1)
    assert not there(held, file("t3-g0001")) and there(held, file("t2-g0001"))


def test_without_a_limit_nothing_is_held_and_arrays_stay_as_they_are() -> None:
    held, given = HeldAdapters(0), arrays()
    held.hold(file("t0-g0001"), given, 1)
    assert not there(held, file("t0-g0001")) and given["w"].flags.writeable


def test_the_limit_is_read_from_the_environment() -> None:
    held = held_by_process({"POPULORA_HELD_GB": "0.00000008"})
    held.hold(file("t0-g0001"), arrays(20), 1)
    assert there(held, file("t0-g0001"))
    held.hold(file("t0-g0002", "b"), arrays(21), 2)
    assert not there(held, file("t0-g0002", "b"), 2)
    for wrong in ("-1", "all", "inf", "nan", "1e300"):
        with pytest.raises(ConfigError, match=r"POPULORA_HELD_GB=.*: give the gigabytes"):
            held_by_process({"POPULORA_HELD_GB": wrong})
