"""Energy is what counters say: of files and a library that stand for RAPL and NVML. What cannot be read is left out."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flows.config import ConfigError
from flows.execution.energy import Counter, Energy, card_counters, processor_counters
from flows.execution.run_stage import Spec, cost_recorded, perform
from flows.run.held_adapters import HeldAdapters
from flows.run.lease import hold
from flows.run.manifest import digest
from flows.run.run import Run
from flows.settings import Cost
from flows.store.file_store import FileStore
from stages.core.engines.counted import TokenCount
from tests.support import example_run
from tests.support.cards import machine


def zone(root: Path, folder: str, name: str, microjoules: int, wraps: int = 1_000_000) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text(f"{wraps}\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place / "energy_uj"


def test_packages_and_their_memory_are_counted_and_wrap_around(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    zone(tmp_path, "intel-rapl:0:0", "core", 5)
    zone(tmp_path, "intel-rapl:1", "psys", 5)
    other = zone(tmp_path, "intel-rapl:2", "package-1", 0)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    (tmp_path / "intel-rapl").mkdir()
    with Energy({}, processor_counters(tmp_path)) as energy:
        package.write_text("950000")
        energy.look()
        package.write_text("150000")  # 0.05 J, then around
        memory.write_text("20000")
    assert energy.recorded() == {"processor": {"dram 0:1": 0.02, "package-0 0": 0.25, "package-1 2": 0.0}}
    with Energy({}, processor_counters(tmp_path)) as energy:
        other.unlink()  # it cannot be read any more
    assert set(energy.recorded()["processor"]) == {"dram 0:1", "package-0 0"}


def test_without_counters_nothing_is_recorded(tmp_path: Path) -> None:
    with Energy({}, processor_counters(tmp_path)) as energy:
        pass
    assert energy.recorded() == {}
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "name").write_text("package-0")
    assert processor_counters(tmp_path) == {}, "a counter that this user may not read"


def test_a_counter_that_wraps_is_read_while_the_step_runs() -> None:
    readings = iter(range(10_000))
    with Energy({}, {"p": Counter(lambda: float(next(readings)), 1e9)}, seconds=0.001) as energy:
        time.sleep(0.05)
    assert energy.recorded()["processor"]["p"] > 1


class Nvml:
    """What stands for nvidia-ml-py: cards by their identifier, with millijoules."""

    def __init__(self, counters: dict[str, int]) -> None:
        self.counters, self.started = counters, False

    def nvmlInit(self) -> None:
        self.started = True

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert self.started
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if handle not in self.counters:
            raise RuntimeError("Not Supported")
        return self.counters[handle]


def test_the_steps_own_card_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = machine(tmp_path / "cards", monkeypatch, 2)
    first, second = cards.uuid(0), cards.uuid(1)
    library = Nvml({first: 5_000, second: 7_000})
    assert list(card_counters("auto", library)) == [first] and list(card_counters("cuda:1", library)) == [second]
    assert card_counters("cpu", library) == {} and card_counters("cuda:7", library) == {}
    assert card_counters("auto", Nvml({})) == {}, "a card that is older than the counter"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with Energy(card_counters("auto", library), {}) as energy:
        library.counters[second] += 1_500
    assert energy.recorded() == {"cards": {second: 1.5}}


def test_without_the_library_or_a_driver_no_card_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path / "card", monkeypatch, 1)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert card_counters("auto") == {}

    class NoDriver(Nvml):
        def nvmlInit(self) -> None:
            raise RuntimeError("Driver Not Loaded")

    assert card_counters("auto", NoDriver({})) == {}


def test_the_clock_holds_what_is_known_and_nothing_else() -> None:
    none = TokenCount()
    assert cost_recorded(Cost(), {}, none, none) == {}
    assert cost_recorded(Cost(currency="EUR", watts=9), {"cards": {"a": 1.0}}, TokenCount(1, 1), TokenCount(5, 3)) == {
        "tokens": {"prompt": 4, "generated": 2},
        "energy": {"cards": {"a": 1.0}},
        "watts": 9.0,
    }
    measured = {"processor": {"package-0 0": 3.0}}
    assert cost_recorded(Cost(kwh=0.3, watts=9), measured, none, none) == {
        "energy": measured,
        "price": {"machine_hour": 0.0, "kwh": 0.3, "currency": ""},
    }


class Counting:
    """What a stage without engine, sandbox and trainer wants of a backend."""

    tokens, held = TokenCount(), HeldAdapters(0)


def test_a_step_records_its_machines_price_and_the_planned_generations_where_no_digest_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in Cost.model_fields:
        monkeypatch.delenv(f"POPULORA_COST_{name.upper()}", raising=False)
    files, digests = FileStore(tmp_path), []
    for run_id, cost in (("free", {}), ("paid", Cost(machine_hour=2, currency="EUR", watts=80).model_dump())):
        with hold(files, run_id) as epoch:
            run = Run(files, run_id, epoch)
            example_run.start(run)
            spec = Spec(files.url, run_id, "match", 0, None, epoch, 7 if cost else 3, cost)
            made = perform(run, spec, example_run.CONFIG, Counting())  # type: ignore[arg-type]
        assert made.clock["generations"] == spec.generations
        digests.append(digest(replace(made, run="", previous="")))
        for key in ("price", "watts"):
            assert (key in made.clock) == bool(cost) or "energy" in made.clock, key
    assert digests[0] == digests[1]
    monkeypatch.setenv("POPULORA_COST_CURRENCY", "much too long for a label")
    with pytest.raises(ConfigError, match=r"^POPULORA_COST_CURRENCY=much too long for a label: String should have at most 12"):
        perform(run, spec, example_run.CONFIG, Counting())  # type: ignore[arg-type]
