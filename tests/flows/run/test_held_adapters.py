"""What a process keeps of adapters in memory: which file is found, which one it displaces, and the limit."""

import numpy as np
import pytest

from flows.run.held_adapters import HeldAdapters, of_process
from flows.run.manifest import Ref
from flows.storage import StoreRefused
from stages.core.lora.adapter import Weights

FILE, STATE = "adapter_model.safetensors", "optimizer.safetensors"


def file(adapter_id: str, digest: str = "a", name: str = FILE) -> Ref:
    return Ref(f"adapters/{adapter_id}/{name}", digest)


def arrays(count: int = 10) -> Weights:
    return {"w": np.zeros(count, np.float32)}


def test_only_the_digest_in_question_is_found() -> None:
    held, kept = HeldAdapters(1000), arrays()
    held.keep(file("t0-g0001"), kept)
    assert held.find(file("t0-g0001")) is kept
    assert held.find(file("t0-g0001", "b")) is None
    assert held.find(file("t0-g0001", name=STATE)) is None
    assert held.find(file("t1-g0001")) is None


@pytest.mark.parametrize(("name", "kept"), [(FILE, ["t0-g0009", "t0-g0010"]), (STATE, ["t0-g0010"])])
def test_of_each_member_the_newest_stay_whatever_is_read_later(name: str, kept: list[str]) -> None:
    """The weights of two generations, since an update's metrics compare those that played; the moments of one."""
    held, all_of_them = HeldAdapters(1000), ["t0-start", "t0-g0008", "t0-g0009", "t0-g0010", "t0-g0008", "t0-start"]
    for adapter_id in all_of_them:
        held.keep(file(adapter_id, name=name), arrays())
    assert [one for one in all_of_them[:4] if held.find(file(one, name=name)) is not None] == kept


def test_a_file_written_again_takes_the_place_of_what_it_replaces() -> None:
    held = HeldAdapters(1000)
    held.keep(file("t0-g0001", "first"), arrays())
    held.keep(file("t0-g0001", "again"), arrays())
    assert held.find(file("t0-g0001", "first")) is None and held.find(file("t0-g0001", "again")) is not None


def test_beyond_the_limit_the_file_kept_longest_goes_first() -> None:
    held = HeldAdapters(100)
    for member in ("t0", "t1", "t2"):
        held.keep(file(f"{member}-g0001"), arrays(10))
    assert [held.find(file(f"{member}-g0001")) is not None for member in ("t0", "t1", "t2")] == [False, True, True]
    held.keep(file("t3-g0001"), arrays(26))
    assert held.find(file("t3-g0001")) is None and held.find(file("t2-g0001")) is not None


def test_without_a_limit_nothing_is_kept() -> None:
    held = HeldAdapters(0)
    held.keep(file("t0-g0001"), arrays())
    assert held.find(file("t0-g0001")) is None


def test_the_limit_is_read_from_the_environment() -> None:
    held = of_process({"POPULORA_HELD_GB": "0.00000008"})
    held.keep(file("t0-g0001"), arrays(20))
    assert held.find(file("t0-g0001")) is not None
    held.keep(file("t0-g0002", "b"), arrays(21))
    assert held.find(file("t0-g0002", "b")) is None
    for wrong in ("-1", "all", "inf", "nan"):
        with pytest.raises(StoreRefused, match=r"POPULORA_HELD_GB=.*: give the gigabytes"):
            of_process({"POPULORA_HELD_GB": wrong})
