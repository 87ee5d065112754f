"""What a run is to have: its generations, and those with a benchmark.

The generations are those that run.json says, or more, if a later start raised `generations`.

Artifacts are written once, so run.json keeps the number of the first start. The manifest of each stage has the number of its own
start in its clock, which no digest covers.
"""

from collections.abc import Sequence
from contextlib import suppress

from flows.config import RunConfig
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


def benchmarks_at(config: RunConfig, generation: int) -> bool:
    """Return whether any member is scored: all every `benchmark.every` generations and at the last, offspring at their ages.

    `benchmark.start` scores the start in the first generation.
    """
    if config.benchmark.start and generation == 0:
        return True
    return regular_at(config, generation) or any(born_at(config, generation, age) for age in config.benchmark.children_at)


def regular_at(config: RunConfig, generation: int) -> bool:
    """Return whether the benchmark of all members is due."""
    every = config.benchmark.every
    return generation == config.generations - 1 or (bool(every) and (generation + 1) % every == 0)


def born_at(config: RunConfig, generation: int, age: int) -> bool:
    """Return whether offspring can have that age: born after an evolving generation, trained for `age` generations by now."""
    event = generation - max(age, 1)  # newborns are scored with the weights that play, the others after their update
    several = max(config.population.students, config.population.teachers if config.benchmark.members == "all" else 1) > 1
    rule = config.evolution
    return bool(several and rule.every and rule.gamma and event >= 0 and (event + 1) % rule.every == 0)


def _readable(history: History) -> list[Manifest]:
    for generation in (*reversed(history.generations()), None):
        with suppress(Damaged):
            if finished := history.of_generation(generation):
                return finished
    return []


def _begun(newest: Manifest) -> int:
    return 0 if newest.generation is None else newest.generation + 1
