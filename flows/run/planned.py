"""How many generations a run is to have: what run.json says, or more, if a later start raised `generations`.

Artifacts are written once, so run.json keeps the number of the first start. The manifest of each stage has the number of its own
start in its clock, which no digest covers.
"""

from collections.abc import Sequence
from contextlib import suppress

from flows.run.history import History
from flows.run.manifest import Json, Manifest
from flows.storage import Damaged

GENERATIONS = "generations"
"""In a manifest's clock: the generations that the run was to have when the stage ran."""


def planned_generations(description: Json, finished: Sequence[Manifest]) -> int:
    """Return how many generations a run is to have, from its run.json and its finished stages, of which only the last is read.

    Versions until 0.2 recorded no raised number: such a run has at least the generation that it has begun.
    """
    planned = int(description.get("config", {}).get("generations", 0))
    if not finished:
        return planned
    newest = finished[-1]
    return max(planned, int(newest.clock.get(GENERATIONS, 0)), _begun(newest))


def planned_of_readable(history: History, description: Json) -> int:
    """Return the same; of a run whose newest manifests are damaged, by the newest generation that can be read."""
    return planned_generations(description, _readable(history))


def is_recorded(history: History, description: Json) -> bool:
    """Return whether the number is known. A version until 0.2 that raised it recorded only what it had begun."""
    finished, planned = _readable(history), int(description["config"]["generations"])
    return not finished or GENERATIONS in finished[-1].clock or _begun(finished[-1]) <= planned


def _readable(history: History) -> list[Manifest]:
    for generation in (*reversed(history.generations()), None):
        with suppress(Damaged):
            if finished := history.of_generation(generation):
                return finished
    return []


def _begun(newest: Manifest) -> int:
    return 0 if newest.generation is None else newest.generation + 1
