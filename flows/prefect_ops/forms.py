"""What the forms offer: the runs of the store, their generations, stages, members and suites, as lists to choose from.

A form of Prefect is the schema of its deployment. It cannot make one field depend on another, and its lists are those of the
moment at which it was written. So a worker writes them again every minute and when the store has other runs, and the links of
notes and pages fill in a whole form (flows.form_links).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema

from flows.form_links import BEFORE_ALL, NUMBERED, generation_text
from flows.prefect_ops import flows as flows_
from flows.run.manifest import Json, generation_of
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, Store, StoreRefused, open_store
from flows.store.names import RUN_ID
from flows.suites.suite_data import suite_names

FORMS: dict[str, Any] = {
    "fork": flows_.fork,
    "restart": flows_.restart,
    "benchmark-member": flows_.benchmark_member,
    "compare": flows_.compare,
}
"""The flows with a form that offers what the store holds. Each is served by a deployment of the same name."""
TITLES = {
    "run_id": "Run",
    "new_run_id": "New run",
    "generation": "Generation",
    "stage": "First stage to compute again",
    "adapter": "Weights",
    "runs": "Runs",
    "suites": "Suites",
    "settings": "Changed settings",
    "go_on": "Train now",
    "placement": "Placement",
    "limit": "Problems",
    "attempts": "Sampled attempts",
    "store": "Store",
}
LISTED, DESCRIBED = 400, 12
"""Generations offered as a list, and runs whose generations or members a description names."""
FRESH_SECONDS = 60.0
"""How long forms are taken for up to date while their store has the same runs."""


@dataclass(frozen=True)
class Offer:
    """What one run has: the generations begun and its members' newest weights."""

    run_id: str
    begun: float
    generations: tuple[int, ...]
    members: tuple[str, ...]


@dataclass
class _KnownRun:
    """A run as it was found under its name: `stamp` is that of its run.json. `members` are the newest weights by generation."""

    stamp: str
    run: Run
    begun: float
    members: dict[int, tuple[str, ...]]


class Catalogue:
    """The runs of a store. A run's files are read again only when it has another generation, or another run took its name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _KnownRun] = {}
        self._names: list[str] | None = None

    def changed(self) -> bool:
        """Return whether the store has other runs than `offers` found the last time, from one listing."""
        return self._names != self._listed()

    def offers(self) -> list[Offer]:
        """Return what each run of the store has, the newest run first. A run that cannot be read is left out."""
        names, found, unwritten = self._listed(), list[Offer](), set[str]()
        for name in names:
            try:
                found.append(self._offer(name))
            except NotStored:
                unwritten.add(name)  # a run that begins: its run.json is yet to come
            except (Damaged, StoreRefused, KeyError, ValueError):
                continue
        self._names = [name for name in names if name not in unwritten]
        self._known = {name: known for name, known in self._known.items() if name in names}
        return sorted(found, key=lambda one: (-one.begun, one.run_id))

    def _listed(self) -> list[str]:
        return [name for name in self._store.folders("") if RUN_ID.fullmatch(name)]

    def _offer(self, run_id: str) -> Offer:
        known = self._run(run_id)
        numbers = map(generation_of, self._store.folders(f"{run_id}/"))
        generations = tuple(sorted(number for number in numbers if number is not None))
        for number in reversed(generations):
            if number in known.members:
                break
            if known.run.manifest("rate", number) is not None:
                rows = known.run.read_table(number, "ratings").to_pylist()
                known.members[number] = tuple(dict.fromkeys(row["next_adapter_id"] for row in rows))
                break
        return Offer(run_id, known.begun, generations, known.members[max(known.members)] if known.members else ())

    def _run(self, run_id: str) -> _KnownRun:
        """Return the run that has this name now."""
        stamp = self._store.stamp(f"{run_id}/run.json")
        known = self._known.get(run_id)
        if known is None or known.stamp != stamp:
            run = Run(self._store, run_id)
            description = run.history.description()
            if description is None:
                raise NotStored(run_id)
            known = self._known[run_id] = _KnownRun(stamp, run, float(description["clock"].get("started", 0.0)), {})
        return known


class Forms:
    """The forms of a server. `refresh` brings them up to date. `opened` opens a store by its address, once."""

    def __init__(self, opened: Callable[[str], Store] = open_store, clock: Callable[[], float] = time.monotonic) -> None:
        self._opened, self._clock = opened, clock
        self._refreshed = float("-inf")
        self._catalogues: dict[str, Catalogue] = {}

    def outdated(self) -> bool:
        """Return whether the last `refresh` is FRESH_SECONDS ago, or the runs of a store have changed since."""
        if self._clock() - self._refreshed >= FRESH_SECONDS:
            return True
        return any(catalogue.changed() for catalogue in self._catalogues.values())

    def refresh(self) -> list[str]:
        """Write the forms that no longer offer what the store holds, and return their names."""
        written, offers = [], dict[str, list[Offer]]()
        with get_client(sync_client=True) as client:
            for name, flow in FORMS.items():
                try:
                    found = client.read_deployment_by_name(f"{name}/{name}")
                except ObjectNotFound:
                    continue
                store = str(found.parameters["store"])
                if store not in offers:
                    offers[store] = self._offers(store)
                schema = offering(parameter_schema(flow).model_dump(), offers[store], store)
                if found.parameter_openapi_schema != schema:
                    client.update_deployment(found.id, DeploymentUpdate(parameter_openapi_schema=schema))
                    written.append(name)
        self._catalogues = {store: self._catalogues[store] for store in offers}
        self._refreshed = self._clock()
        return written

    def _offers(self, store: str) -> list[Offer]:
        if store not in self._catalogues:
            self._catalogues[store] = Catalogue(self._opened(store))
        return self._catalogues[store].offers()


def offering(schema: Json, offers: Sequence[Offer], store: str) -> Json:
    """Return a flow's schema with titles, and with lists of what the store holds."""
    properties: dict[str, Json] = {name: dict(field) for name, field in schema["properties"].items()}
    for name, field in properties.items():
        field["title"] = TITLES.get(name, field["title"])
    properties["store"] |= {"enum": [store], "readOnly": True}
    runs = [one.run_id for one in offers]
    if "run_id" in properties and runs:
        properties["run_id"]["enum"] = runs
    if "runs" in properties and runs:
        properties["runs"]["items"] = {"type": "string", "enum": runs}
    if "generation" in properties:
        _offer_generations(properties["generation"], offers)
    if "stage" in properties:
        properties["stage"]["enum"] = list(STAGE_NAMES)
    if "suites" in properties:
        properties["suites"]["items"] = {"type": "string", "enum": suite_names()}
    if "adapter" in properties:
        members = {one.run_id: ", ".join(one.members) for one in offers if one.members}
        _describe(properties["adapter"], "Newest weights", members)
    return schema | {"properties": properties}


def _offer_generations(field: Json, offers: Sequence[Offer]) -> None:
    """Offer texts before the number: a list, or a pattern where a list would be too long. The flow reads both as numbers.

    The form opens with the texts, since its lists show the number 0 as not chosen. Programs that call the API may give either.
    """
    least, newest = int(field.pop("minimum")), max((one.generations[-1] for one in offers if one.generations), default=-1)
    text: Json = {"title": "by name", "type": "string"}
    number: Json = {"title": "by number", "type": field.pop("type"), "minimum": least}
    if newest >= least and newest - least < LISTED:
        text |= {"enum": [generation_text(one) for one in range(newest, least - 1, -1)]}
        number |= {"maximum": newest}
    else:
        text |= {"pattern": f"^({BEFORE_ALL}|{NUMBERED}[0-9]{{1,9}})$" if least < 0 else f"^{NUMBERED}[0-9]{{1,9}}$"}
    field["anyOf"] = [text, number]
    begun = {one.run_id: f"{one.generations[0]} to {one.generations[-1]}" for one in offers if one.generations}
    _describe(field, "Begun", begun)


def _describe(field: Json, what: str, by_run: Mapping[str, str]) -> None:
    said = [f"{run_id}: {text}" for run_id, text in list(by_run.items())[:DESCRIBED]]
    more = [f"and {len(by_run) - DESCRIBED} more runs"] if len(by_run) > DESCRIBED else []
    if said:
        field["description"] = f"{field.get('description', '')} {what}: {'; '.join([*said, *more])}."
