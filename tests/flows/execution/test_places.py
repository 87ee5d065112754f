"""Where the parts of a stage compute: on cards, or in as many processes on the processor as the machine's owner allows."""

from pathlib import Path

import pytest

from flows.config import ConfigError, load
from flows.execution import places
from flows.execution.places import places_for
from flows.execution.slots import Slots, Tenant
from tests.flows.execution.test_slots import together
from tests.support.cards import machine, step

FOUR = {"POPULORA_PROCESSES": "4"}


@pytest.mark.parametrize(
    ("settings", "environment", "processes"),
    [
        ([], {}, 0),
        ([], {"POPULORA_PROCESSES": "1"}, 0),
        ([], FOUR, 4),
        (["model.device=auto"], FOUR, 4),  # torch is built for a CPU here
        (["model.device=cuda:1"], FOUR, 0),  # a card that the configuration names is no CPU
        (["engine.kind=vllm", "engine.python=/python"], FOUR, 0),
    ],
)
def test_on_a_cpu_several_processes_compute_where_they_may(
    settings: list[str], environment: dict[str, str], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "version", {"torch": "2.13.0+cpu"}.__getitem__)
    assert places_for(load("smoke", settings), environment) == [None] * processes


def test_a_gpu_that_nobody_lists_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "version", {"torch": "2.13.0"}.__getitem__)
    assert places_for(load("smoke", ["model.device=auto"]), FOUR) == []


def test_cards_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 3)
    assert [str(card) for card in places_for(load("smoke", ["model.device=auto"]), FOUR)] == ["card 0", "card 1", "card 2"]


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5"])
def test_a_number_of_processes_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^POPULORA_PROCESSES={text}: give how many processes"):
        places_for(load("smoke", []), {"POPULORA_PROCESSES": text})


def test_parts_on_a_cpu_run_in_processes_that_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = machine(tmp_path, monkeypatch, 0)
    with Slots([None, None], Tenant(1, ("r",))) as slots:
        assert slots.parallel == 2
        for generation in range(3):
            slots.run(step("match", generation))
            together(slots, "propose", generation, 2)
            slots.run(step("verify", generation))
            together(slots, "update", generation, 2)
    assert [one.card for one in none.noted("start")] == ["unset"] * 2
    assert len(none.noted("step")) == 18
