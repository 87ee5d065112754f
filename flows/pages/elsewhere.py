"""Where else to look: the pages that the reader of a wrong address may have meant."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from flows.near_names import nearest
from flows.pages.library import Library
from flows.run.addresses import Addresses
from flows.run.lineage import generation_of_row
from flows.run.manifest import folder_of
from flows.run.run import Run
from flows.storage import Damaged, NotStored, StoreRefused, StoreUnavailable
from flows.store.names import RUN_ID
from stages.core.method.top_up import task_of

LONGEST = 80  # characters of a name: comparing names takes the product of their lengths
MOST = 4096  # names that are compared
FAULTS: tuple[type[Exception], ...] = (Damaged, NotStored, StoreRefused, StoreUnavailable)
_AT = Addresses()
_GENERATION = re.compile(r"^(?:generation=|g)(\d{4,9})[/-]")


@dataclass(frozen=True)
class Link:
    """A page and its name."""

    text: str
    address: str


@dataclass(frozen=True)
class Elsewhere:
    """The run of the address, if there is one, and the pages with the nearest names."""

    run: str = ""
    near: tuple[Link, ...] = ()


def elsewhere(library: Library, address: Mapping[str, str]) -> Elsewhere:
    """Return where else to look, by the parts of an address: `run_id`, `adapter_id`, … Empty if the store cannot say it."""
    parts = {name: str(value)[:LONGEST] for name, value in address.items()}
    if "run_id" not in parts:
        return Elsewhere()
    run = _run(library, parts["run_id"])
    near: list[Link] = []
    with suppress(*FAULTS):  # what was found before a fault is shown
        near.extend(_inside(library, run, parts) if run else _runs(library, parts["run_id"]))
    return Elsewhere(run.run_id if run else "", tuple(near))


def _run(library: Library, run_id: str) -> Run | None:
    try:
        return library.run(run_id)
    except FAULTS:
        return None


def _runs(library: Library, run_id: str) -> Iterator[Link]:
    named = (name for name in library.store.folders("") if RUN_ID.fullmatch(name))
    return (Link(f"run {name}", _AT.run(name)) for name in _nearest(run_id, named) if library.has_run(name))


def _inside(library: Library, run: Run, parts: Mapping[str, str]) -> Iterator[Link]:
    """Yield the pages of a run with names like those of the address."""
    name = run.run_id
    if "adapter_id" in parts:
        yield from (Link(one, _AT.adapter(name, one)) for one in _nearest(parts["adapter_id"], library.pedigree(run).nodes))
        yield Link("all adapters", _AT.adapters(name))
    if "task_id" in parts:
        yield from (Link(one, _AT.task(name, one)) for one in _nearest(task_of(parts["task_id"]), _tasks(library, run, parts)))
    if parts.keys() & {"generation", "task_id", "uri"}:
        yield from (Link(f"generation {number}", _AT.generation(name, number)) for number in _generation(run, parts))


def _tasks(library: Library, run: Run, parts: Mapping[str, str]) -> Iterator[str]:
    generation = generation_of_row(parts["task_id"])
    table, column = ("seeds", "task_id") if generation is None else ("proposals", "proposal_id")
    return (row[column] for row in library.each(run, f"{folder_of(generation)}/{table}.parquet", (column,)))


def _generation(run: Run, parts: Mapping[str, str]) -> list[int]:
    """Return the generation that the address names, if it has begun; the newest one otherwise."""
    begun = run.history.generations()
    found = _GENERATION.search(parts.get("uri") or parts.get("task_id", ""))
    named = int(found[1]) if found else None
    return [named] if named in begun and named is not None else begun[-1:]


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the nearest names. None if the name itself is known: then something else is missing."""
    names = list(islice(known, MOST))
    return [] if name in names else nearest(name, names)
