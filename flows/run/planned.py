"""How many generations a run is to have: what run.json says, or more, if a later start raised `generations`.

Artifacts are written once, so run.json keeps the number of the first start. The manifest of each stage has the number of its own
start in its clock, which no digest covers.
"""

from collections.abc import Sequence

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
    begun = 0 if newest.generation is None else newest.generation + 1
    return max(planned, int(newest.clock.get(GENERATIONS, 0)), begun)


def planned_of_readable(history: History, description: Json) -> int:
    """Return the same, or what run.json alone says if a newest manifest is damaged, which stops neither a resume nor a fork."""
    try:
        finished = history.newest_stages()
    except Damaged:
        finished = []
    return planned_generations(description, finished)
