"""Public suites inside a run: its members as trained, every `benchmark.every` generations, with the code of nightly scoring.

Scores are stored where `populora benchmark RUN` would put them, shard by shard and outside the chain, so that a killed step
resumes and the scheduled benchmark finds nothing left to do. The stage's manifest records the digests of the scores.
"""

from collections.abc import Sequence
from functools import partial

from flows.backend import Backend
from flows.benchmarks import entrants
from flows.benchmarks.score import asked, folder_of_generation
from flows.benchmarks.suite_data import suites_folder
from flows.benchmarks.suite_score import folder_of, score_suite
from flows.config import RunConfig
from flows.run.stage_io import StageIO
from stages.benchmark import Player


def score_members(io: StageIO, config: RunConfig, backend: Backend, players: Sequence[Player]) -> None:
    """Score the members on every suite of `benchmark.suites`, in the run's own engine."""
    rule, found = config.benchmark, {}
    assert io.generation is not None
    for suite in rule.suites:
        subject = entrants.of_run(io.run, players, folder_of_generation(io.generation, rule.members))
        question = asked(suite, config, suites_folder(), limit=rule.limit, attempts=rule.attempts)
        score_suite(subject, question, partial(backend.progress, f"shards of {suite}"), backend)
        place = f"benchmarks/{folder_of(subject, question)}"
        done = io.run.history.manifest(f"{place}/benchmark.json")
        assert done is not None, place
        found[suite] = {"uri": f"{place}/scores.parquet", "sha256": done.output("scores.parquet").sha256}
    if found:
        io.version(suites=found)
