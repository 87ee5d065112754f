"""Where the parts of a stage compute: on cards, or in as many processes as the cores are enough for."""

import os
from pathlib import Path

import pytest

from flows.config import load
from flows.execution import places
from flows.execution.places import places_for
from flows.execution.slots import Slots, Tenant
from tests.flows.execution.test_slots import together
from tests.support.cards import machine, step


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "cores", lambda: 16)


@pytest.mark.usefixtures("sixteen")
@pytest.mark.parametrize(
    ("settings", "processes"),
    [
        ([], 0),  # no parts
        (["engine.shards=2"], 2),
        (["engine.shards=2", "threads=8"], 2),
        (["engine.shards=2", "threads=9"], 0),  # not enough cores for two
        (["engine.shards=20", "threads=2"], 8),
        (["learning.adapters_per_group=1"], 6),  # groups of an update alone
        (["learning.adapters_per_group=4"], 2),
        (["engine.shards=2", "engine.kind=vllm", "engine.python=/python"], 0),  # which takes all cores by itself
    ],
)
def test_on_a_cpu_parts_share_the_cores(settings: list[str], processes: int) -> None:
    assert places_for(load("smoke", settings)) == [None] * processes


@pytest.mark.usefixtures("sixteen")
def test_cards_come_first_and_a_named_card_is_no_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 3)
    found = places_for(load("smoke", ["model.device=auto", "engine.shards=3"]))
    assert [str(card) for card in found] == ["card 0", "card 1", "card 2"]
    assert places_for(load("smoke", ["model.device=cuda:1", "engine.shards=3"])) == []


def test_cores_are_those_that_the_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert places.cores() == 1
    finally:
        os.sched_setaffinity(0, before)


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
