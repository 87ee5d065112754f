"""What a new browser reads before it is asked: what draws figures, and the newest runs, which are most likely opened first."""

from contextlib import suppress
from importlib import import_module

from flows.compare.run_list import RunList
from flows.pages.library import Library
from flows.storage import Damaged, NotStored, StoreRefused, StoreUnavailable

RUNS = 4  # each takes three reads of a kilobyte or so per generation, and its manifests

FAULTS = (StoreUnavailable, StoreRefused, NotStored, Damaged)


def preload(library: Library, runs: int = RUNS) -> None:
    """Load what the first pages would wait for. What cannot be read is left to the page that asks for it, which says why."""
    for slow in ("flows.report.report_figures", "matplotlib.backends.backend_svg"):  # matplotlib and SciPy
        import_module(slow)
    readable = []
    with suppress(*FAULTS):
        readable = [entry for entry in RunList(library.store).entries() if not entry.fault]
    for entry in sorted(readable, key=lambda one: one.began or 0.0, reverse=True)[:runs]:
        with suppress(*FAULTS):
            library.watch(library.run(entry.run_id)).alarms()
