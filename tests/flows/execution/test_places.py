"""Where the parts of a stage compute: on cards, or in as many processes on the processor as the machine's owner allows."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from flows.commands.run import _spare_places
from flows.config import PROJECT, ConfigError, load
from flows.execution.places import places_for, spare_places
from flows.execution.preflight import CardTooSmall, processes
from flows.execution.slots import Slots, Tenant
from tests.flows.execution.test_slots import together
from tests.support.cards import machine, step

FOUR = {"POPULORA_PROCESSES": "4"}


@pytest.fixture
def no_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 0)


@pytest.mark.usefixtures("no_cards")
@pytest.mark.parametrize(
    ("settings", "environment", "count"),
    [
        ([], {}, 0),
        ([], {"POPULORA_PROCESSES": "1"}, 0),
        ([], FOUR, 4),
        (["model.device=auto"], FOUR, 4),
        (["model.device=cuda:1"], FOUR, 0),  # a card that the configuration names is no CPU
        (["engine.kind=vllm", "engine.python=/python"], FOUR, 0),
    ],
)
def test_on_a_cpu_several_processes_compute_where_they_may(settings: list[str], environment: dict[str, str], count: int) -> None:
    assert places_for(load("smoke", settings), environment, "2.13.0+cpu") == [None] * count


@pytest.mark.usefixtures("no_cards")
def test_a_gpu_that_nobody_lists_is_not_shared() -> None:
    assert places_for(load("smoke", ["model.device=auto"]), FOUR, "2.13.0") == []


def test_cards_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 3)
    assert [str(card) for card in places_for(load("smoke", ["model.device=auto"]), FOUR)] == ["card 0", "card 1", "card 2"]


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "1_0", "1025", "9" * 5000])
def test_what_is_not_a_number_from_one_on_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^POPULORA_PROCESSES={text}: give how many processes"):
        processes({"POPULORA_PROCESSES": text})


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-c", "chaos"],
        ["run", "-c", "chaos", "--dry-run"],
        ["run", "-c", "chaos", "--detach"],
        ["experiment", str(PROJECT / "infra/experiments/size.toml")],
    ],
)
def test_a_command_refuses_it_before_anything_starts(words: list[str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "flows.cli", *words, "--store", str(tmp_path / "store")]
    done = subprocess.run(words, cwd=PROJECT, env=os.environ | {"POPULORA_PROCESSES": "two"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("populora: POPULORA_PROCESSES=two: ") and not (tmp_path / "store").exists()


def spare(settings: list[str], places: list[None], count: int = 2) -> str:
    return spare_places(load("smoke", settings), places, {"POPULORA_PROCESSES": str(count)})


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["learning.adapters_per_group=6"],
        ["learning.adapters_per_group=3", "learning.divide=rows"],
        ["learning.adapters_per_group=3", "learning.frozen=teachers"],
    ],
)
def test_processes_without_parts_are_spare(settings: list[str]) -> None:
    said = "POPULORA_PROCESSES=2: no stage of this run has parts, so one process computes; "
    assert spare(settings, [None] * 2) == said + "a run that starts with engine.shards=2 has up to 2 parts"


def test_processes_with_parts_are_used() -> None:
    assert spare(["engine.shards=2"], [None] * 2) == ""
    assert "stages of this run have 2 parts; " in spare(["engine.shards=2"], [None] * 4, 4)


def test_an_update_with_parts_leaves_rollouts_in_one_process() -> None:
    said = "POPULORA_PROCESSES=2: only the update of this run has 2 parts, other stages have 1; "
    assert (
        spare(["learning.adapters_per_group=3"], [None] * 2) == said + "a run that starts with engine.shards=2 has up to 2 parts"
    )
    assert spare(["learning.adapters_per_group=3", "engine.shards=2"], [None] * 2) == ""


def test_a_variable_that_is_not_used_is_named() -> None:
    assert spare([], [], 1) == ""
    assert spare(["model.device=cuda:1"], []).startswith("POPULORA_PROCESSES=2 is not used: ")


def test_a_plan_for_larger_cards_is_printed_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 1)
    monkeypatch.setattr("flows.execution.places.cards_for", Mock(side_effect=CardTooSmall("card 0 is too small")))
    monkeypatch.setenv("POPULORA_PROCESSES", "2")
    assert _spare_places(load("paper", [])) == ""


def test_a_plan_says_what_is_spare() -> None:
    words = [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--dry-run"]
    done = subprocess.run(words, cwd=PROJECT, env=os.environ | FOUR, capture_output=True, text=True, check=True)
    assert "processes        POPULORA_PROCESSES=4: no stage of this run has parts" in done.stdout


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
