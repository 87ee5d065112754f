"""The energy that a machine measures while a step runs: the counters of its NVIDIA cards and of its processor (RAPL: Intel, AMD).

Both count whole devices. A card belongs to the step that has claimed it (flows.cards); the processor's counter covers
everything that runs on the machine. A counter that is missing or may not be read is left out: Linux lets only root read RAPL
unless an administrator allows others to.

Cards are read with nvidia-ml-py, NVIDIA's own binding: one file, no dependencies, optional. RAPL is a file that holds a number.
codecarbon queries addresses outside the machine, and codecarbon and zeus-ml install many packages to read the same counters.
"""

import importlib
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from flows import cards
from flows.cards import VISIBLE, CardUnavailable

POWERCAP = Path("/sys/class/powercap")
SECONDS = 60.0  # between two readings: a processor's counter begins again after 262 kJ, which takes a large one 10 minutes
COUNTED = ("package", "dram")  # other zones are parts of a package (core, uncore), or contain one (psys)

Joules = Callable[[], float]


@dataclass(frozen=True)
class Counter:
    """A counter of joules. It begins again at 0 after `wraps_at`; 0: never."""

    read: Joules
    wraps_at: float = 0.0


Counters = Mapping[str, Counter]
"""Counters by the name of what they count."""


class Energy:
    """Joules of each counter while the block runs. A counter that fails once is left out."""

    def __init__(self, of_cards: Counters, of_processor: Counters, seconds: float = SECONDS) -> None:
        self._groups = {"cards": of_cards, "processor": of_processor}
        self._counters = {(group, name): one for group, found in self._groups.items() for name, one in found.items()}
        self._last: dict[tuple[str, str], float] = {}
        self._sums: dict[tuple[str, str], float] = {}
        self._seconds, self._ended, self._lock = seconds, threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="energy", daemon=True)

    def __enter__(self) -> "Energy":
        self.look()
        if any(counter.wraps_at for counter in self._counters.values()):
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.look()

    def look(self) -> None:
        """Read every counter and add what it has counted since the last look."""
        with self._lock:
            for key, counter in list(self._counters.items()):
                try:
                    now = counter.read()
                except Exception:  # whatever a driver or a library raises: energy never fails a step
                    del self._counters[key]
                    self._sums.pop(key, None)
                    continue
                apart = now - self._last.get(key, now)
                self._sums[key] = self._sums.get(key, 0.0) + max(0.0, apart if apart >= 0 else apart + counter.wraps_at)
                self._last[key] = now

    def recorded(self) -> dict[str, dict[str, float]]:
        """Return joules by `cards` and `processor`, then by the counter's name, as a manifest's clock holds them."""
        found: dict[str, dict[str, float]] = {}
        for (group, name), joules in self._sums.items():
            found.setdefault(group, {})[name] = round(joules, 3)
        return found

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            self.look()


def processor_counters(root: Path = POWERCAP) -> dict[str, Counter]:
    """Return the counters of the processor packages and their memory that this process may read."""
    found = {}
    for zone in sorted(root.glob("intel-rapl:*")):
        with suppress(OSError, ValueError):
            name, file = (zone / "name").read_text().strip(), zone / "energy_uj"
            wraps = float((zone / "max_energy_range_uj").read_text())
            float(file.read_text())  # may it be read?
            if name.startswith(COUNTED):
                # intel-rapl:0 is a package, intel-rapl:0:1 a zone of it; the folder's name tells two zones of one name apart
                found[f"{name} {zone.name.removeprefix('intel-rapl:')}"] = Counter(_microjoules(file), wraps / 1e6)
    return found


def card_counters(device: str, library: Any = None) -> dict[str, Counter]:
    """Return the counters of the cards that a step on this `model.device` uses.

    There are none without nvidia-ml-py, and of a slice of a card. `library`: nvidia-ml-py, or what stands for it.
    """
    try:
        used = _used(device, os.environ.get(VISIBLE), os.environ.get("PATH"))
        library = library or (importlib.import_module("pynvml") if used else None)
        if not used or library is None:
            return {}
        library.nvmlInit()
    except (ImportError, CardUnavailable):
        return {}
    except Exception:  # NVMLError and its kinds: no driver, no permission
        return {}
    found = {}
    for card in used:
        with suppress(Exception):  # a card that is older than the counter, or gone
            handle = library.nvmlDeviceGetHandleByUUID(card.uuid)
            library.nvmlDeviceGetTotalEnergyConsumption(handle)
            found[card.uuid] = Counter(_millijoules(library, handle))
    return found


@cache  # nvidia-smi can take a second, and a process keeps its cards
def _used(device: str, visible: str | None, path: str | None) -> list[cards.Card]:
    """Return the cards that a step on this device uses: the named one, else the first that this process may use.

    `visible` and `path` are what the answer depends on besides.
    """
    if device == "cpu":
        return []
    found = cards.cards()
    number = device.partition(":")[2]
    return found[int(number) :][:1] if number.isdigit() else found[:1]


def _microjoules(file: Path) -> Joules:
    return lambda: float(file.read_text()) / 1e6


def _millijoules(library: Any, handle: Any) -> Joules:
    return lambda: float(library.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
