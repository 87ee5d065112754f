"""Prometheus metrics of every run of a store, read from its manifests and small tables at each scrape.

Nothing is counted in the processes that train. A scrape reports what is stored, so it holds after a crash and for any number
of machines. Counters cover all generations. Gauges show the newest generation that has the number. A lease that this machine
wrote says how old it is. Any other is measured by this process's own clock, from the first look on: clocks of two machines are
never compared.
"""

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flows.monitoring.run_state import StateReader
from flows.monitoring.run_tables import RunTables
from flows.monitoring.status import stored_bytes
from flows.monitoring.telemetry_machine import MachineMetrics
from flows.monitoring.telemetry_run import numbers
from flows.run.run import Run
from flows.storage import Damaged, NotStored, Store, StoreRefused

BYTES_SECONDS = 60.0  # seconds to reuse a count of stored bytes: it needs a listing


class StoreMetrics(Collector):
    """The metrics of a store. `watch_of` returns each run's small tables so far."""

    def __init__(
        self, store: Store, states: StateReader, run_ids: Callable[[], list[str]], watch_of: Callable[[str], RunTables]
    ) -> None:
        self._store, self._states, self._run_ids, self._watch_of = store, states, run_ids, watch_of
        self._bytes: dict[str, tuple[float, dict[str, int]]] = {}
        self._around = MachineMetrics()
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        """Describe nothing in advance: otherwise the registry would scrape the store to find out."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        with self._lock:
            families: dict[str, Metric] = {}
            unreadable = _family(families, "populora_unreadable_runs", "Runs whose metrics could not be read at this scrape.", ())
            faults = 0
            for run_id in self._run_ids():
                try:
                    self._add(families, self._watch_of(run_id))
                except (NotStored, Damaged, StoreRefused):
                    faults += 1
            unreadable.add_metric([], faults)
            free = self._store.free()
            if free is not None:
                _family(families, "populora_store_free_bytes", "Bytes that can still be written.", ()).add_metric([], free)
            for name, says, labels, value in self._around.numbers():
                _family(families, name, says, tuple(labels)).add_metric([*labels.values()], value)
            yield from families.values()

    def _add(self, families: dict[str, Metric], watch: RunTables) -> None:
        for name, says, labels, value in numbers(watch):
            _family(families, name, says, ("run", *labels)).add_metric([watch.run.run_id, *labels.values()], value)
        for kind, size in self._stored(watch.run).items():
            of = _family(families, "populora_store_bytes", "Bytes stored, by purpose.", ("run", "kind"))
            of.add_metric([watch.run.run_id, kind], size)
        known = self._states.standing(watch.run.run_id, complete=False)
        _family(families, "populora_lease_held", "Whether a process is running the run.", ("run",)).add_metric(
            [watch.run.run_id], known.held
        )
        says = "Seconds since the heartbeat of a lease that is held or was left behind."
        age = _family(families, "populora_lease_unchanged_seconds", says, ("run",))
        if known.lease is not None:
            age.add_metric([watch.run.run_id], known.silent)

    def _stored(self, run: Run) -> dict[str, int]:
        counted, found = self._bytes.get(run.run_id, (float("-inf"), {}))
        if time.monotonic() - counted > BYTES_SECONDS:
            found = stored_bytes(run)
            self._bytes[run.run_id] = (time.monotonic(), found)
        return found


def _family(
    families: dict[str, Metric], name: str, says: str, labels: tuple[str, ...]
) -> CounterMetricFamily | GaugeMetricFamily:
    if name not in families:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        families[name] = kind(name, says, labels=labels)
    found = families[name]
    assert isinstance(found, CounterMetricFamily | GaugeMetricFamily), name
    return found
