"""What the forms offer: the runs of the store, their generations, stages, members and suites, as lists to choose from.

A form of Prefect is the schema of its deployment. It cannot make one field depend on another, and its lists are those of the
moment at which it was written. So a worker writes them again when the runs of the store have changed, and the links of notes and
pages fill in a whole form (flows.run.form_links).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema

from flows.benchmarks.suite_data import suite_names
from flows.prefect_ops import flows as flows_
from flows.run.form_links import BEFORE_ALL, NUMBERED, generation_text
from flows.run.manifest import Json
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, Store, StoreRefused, open_store
from flows.store.file_store import RUN_ID

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
    "limit": "Problems",
    "attempts": "Sampled attempts",
    "store": "Store",
}
LISTED, DESCRIBED = 400, 12
"""Generations offered as a list, and runs whose generations or members a description names."""


@dataclass(frozen=True)
class Offer:
    """What one run has: the generations begun and its members' newest weights."""

    run_id: str
    begun: float
    generations: tuple[int, ...]
    members: tuple[str, ...]


class Catalogue:
    """The runs of a store. A run's files are read again only when it has another generation."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Run, float, dict[int, tuple[str, ...]]]] = {}

    def offers(self, store: Store) -> list[Offer]:
        """Return what each run of the store has, the newest run first. A run that cannot be read is left out."""
        found = []
        for name in store.folders(""):
            if RUN_ID.fullmatch(name):
                try:
                    found.append(self._offer(store, name))
                except (NotStored, Damaged, StoreRefused, KeyError, ValueError):
                    continue
        return sorted(found, key=lambda one: (-one.begun, one.run_id))

    def _offer(self, store: Store, run_id: str) -> Offer:
        if run_id not in self._known:
            run = Run(store, run_id)
            description = run.history.description()
            if description is None:
                raise NotStored(run_id)
            self._known[run_id] = run, float(description["clock"].get("started", 0.0)), {}
        run, begun, members = self._known[run_id]
        folders = [name for name in store.folders(f"{run_id}/") if name.startswith("generation=")]
        generations = tuple(sorted(int(name.removeprefix("generation=")) for name in folders))
        for number in reversed(generations):
            if number in members:
                break
            if run.manifest("rate", number) is not None:
                rows = run.read_table(number, "ratings").to_pylist()
                members[number] = tuple(dict.fromkeys(row["next_adapter_id"] for row in rows))
                break
        return Offer(run_id, begun, generations, members[max(members)] if members else ())


class Forms:
    """The forms of a server. `refresh` brings them up to date."""

    def __init__(self) -> None:
        self._catalogue = Catalogue()

    def refresh(self) -> list[str]:
        """Write the forms that no longer offer what the store holds, and return their names."""
        written = []
        with get_client(sync_client=True) as client:
            for name, flow in FORMS.items():
                try:
                    found = client.read_deployment_by_name(f"{name}/{name}")
                except ObjectNotFound:
                    continue
                store = str(found.parameters["store"])
                schema = offering(parameter_schema(flow).model_dump(), self._catalogue.offers(open_store(store)), store)
                if found.parameter_openapi_schema != schema:
                    client.update_deployment(found.id, DeploymentUpdate(parameter_openapi_schema=schema))
                    written.append(name)
        return written


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
