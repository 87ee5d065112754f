"""The stages of a generation, one row each. Only this file states their order, what each needs, and how each is sharded.

A new stage is a row here, a step in `flows/steps/steps.py`, and a file in `stages/`.
"""

from dataclasses import dataclass
from typing import Literal

Shards = Literal["completions", "contestants", "adapter groups or rows"]


@dataclass(frozen=True)
class Stage:
    """One stage of a generation.

    Attributes:
        name: Its name in manifests, in the run graph and on the command line.
        generates: Whether it uses the engine (propose: where teachers write the tasks). It then runs under `engine.python`
            with vLLM, and in the GPU pool of a placement.
        judges: Whether it uses the sandbox. It then needs Docker, and runs in the sandbox pool unless it also generates.
        trains: Whether its parts take optimizer steps, or compute the gradients of some rows, in the GPU pool of a placement.
            Joining them needs no GPU.
        shards: What its parts divide; None for a stage that always runs whole.
        optional: Whether only some generations have it.
    """

    name: str
    generates: bool = False
    judges: bool = False
    trains: bool = False
    shards: Shards | None = None
    optional: bool = False

    def uses_gpu(self, part: str | None, joins: bool = False) -> bool:
        """Return whether a step of the stage uses a GPU where there is one. Joining shards or groups does not."""
        return self.uses_engine(part, joins) or (self.trains and part is not None)

    def uses_engine(self, part: str | None, joins: bool = False) -> bool:
        """Return whether a step of the stage generates. Joining a benchmark's parts may: public suites have none."""
        return self.generates and not (joins and part is None and self.shards == "completions")


START = Stage("start", generates=True, judges=True)
"""The stage before the first generation."""

STAGES = (
    Stage("match"),
    Stage("propose", generates=True, shards="completions"),
    Stage("verify", judges=True),
    Stage("solve", generates=True, shards="completions"),
    Stage("grade", judges=True),
    Stage("reward"),
    Stage("update", trains=True, shards="adapter groups or rows"),
    Stage("rate"),
    Stage("benchmark", generates=True, judges=True, shards="contestants", optional=True),
    Stage("evolve"),
)
"""In the order of a generation, which is the order of its manifests."""

STAGE_NAMES = tuple(stage.name for stage in STAGES)
REQUIRED = tuple(stage.name for stage in STAGES if not stage.optional)
"""The stages that every generation has."""

_BY_NAME = {stage.name: stage for stage in (START, *STAGES)}


def stage_of(name: str) -> Stage:
    """Return the row of a stage. Raises KeyError for an unknown name."""
    return _BY_NAME[name]
