"""Scores of a run's adapters: on a suite at any time, without interrupting training, and inside the run as it trains."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.backend import Backend
from flows.base_model import hub
from flows.benchmarks import targets
from flows.benchmarks.members import Chosen, config_of, folder_of_generation
from flows.benchmarks.suite_score import BenchmarkRequest, folder_of, own_problems, problems_of, score_suite, stored, style_of
from flows.cards import one_card, usable
from flows.config import RunConfig
from flows.run.history import CHOSEN
from flows.run.manifest import Manifest, Ref
from flows.run.resume import BRING_BACK, check_base
from flows.run.retention import scoring
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.run.suite_versions import is_one_version, suite_version
from flows.suites.own_suites import PROBE, OwnSuites
from flows.suites.suite_data import suite_of, suites_folder
from stages.benchmark import SamplingPlan, answer_probe, own_words
from stages.core import tables
from stages.core.progress import Progress, silent
from stages.core.suites.scores import Contestant, probe_scores


@dataclass(frozen=True)
class Question:
    """What adapters are asked: a suite, how many problems of it (0: all), and samples besides the greedy answer.

    `pattern` chooses problems by id; empty: they stand for the whole suite.
    """

    suite: str
    limit: int = 0
    attempts: int = 0
    pattern: str = ""


def score_run(run: Run, chosen: Chosen, asked: Question, progress: Progress = silent) -> pa.Table:
    """Return SCORES of the chosen adapters. Those already stored under the same name are read, not computed again.

    What is computed has a card of this machine for itself, if the run uses any. Raises CardUnavailable if none is free.
    """
    config, contestants = config_of(run), chosen.contestants(run)
    if asked.suite not in PROBE:
        with kept_for(run, contestants, asked.suite, chosen):
            target, request = targets.of_run(run, contestants, chosen.folder(run)), _request(asked, config)
            there = stored(target, request) is not None
            if not there:
                run.check_takes_scores()
                check_base(run, config, BRING_BACK)
            with one_card([] if there else usable(config.model.device)):
                return score_suite(target, request)
    folder = probe_folder(run, chosen, asked)
    done = run.history.manifest(f"benchmarks/{folder}/benchmark.json")
    if done is not None and run.holds(done):
        return run.read_table(done.output("scores.parquet"), "scores")
    run.check_takes_scores()
    with one_card(usable(config.model.device)), kept_for(run, contestants, asked.suite, chosen):
        return _score(run, config, contestants, asked, folder, progress)


def kept_for(run: Run, contestants: Sequence[Contestant], suite: str, chosen: Chosen) -> AbstractContextManager[None]:
    """Keep the run's retention from removing what is scored before its scores are committed."""
    return scoring(run, f"{suite} {chosen.folder(run)}", [one.adapter_id for one in contestants if one.adapter_id])


def probe_folder(run: Run, chosen: Chosen, asked: Question) -> str:
    """Return the folder under `benchmarks/` with the probe's answers and scores of these adapters, of the suite as it is now.

    Where scores of another version of the suite have the plain name, this one's digest follows it.
    """
    request, now = f"{chosen.folder(run)}-n{asked.limit}-k{asked.attempts}", OwnSuites().digest(asked.suite)
    plain = f"{asked.suite}/asked/{request}"
    if asked.pattern:
        plain = f"{asked.suite}{CHOSEN}{request}-p{hashlib.sha256(asked.pattern.encode()).hexdigest()[:8]}"
    taken = run.history.manifest(f"benchmarks/{plain}/benchmark.json")
    return plain if taken is None or of_version(taken, now) else f"{plain}-s{now[:8]}"


def of_version(scored: Manifest, suite_sha256: str) -> bool:
    """Return whether scores are of a suite with this digest. Those that record none count as being of any."""
    return is_one_version((suite_version(scored), suite_sha256))


def _score(
    run: Run, config: RunConfig, contestants: list[Contestant], asked: Question, folder: str, progress: Progress
) -> pa.Table:
    problems = own_problems(asked.suite, asked.limit, asked.pattern)
    backend, began = Backend(config, progress), time.monotonic()
    check_base(run, config, BRING_BACK)
    io = StageIO(run, "benchmark", None, None, config.model.name, config.model.alpha)
    try:
        engine = backend.engine(io.adapters([one.adapter_id for one in contestants if one.adapter_id]))
        plan = probe_plan(asked.suite, config, backend, asked.attempts)
        answers = answer_probe(contestants, problems, engine, backend.sandbox(), plan)
        versions: dict[str, Any] = {"engine": backend.engine_version(), "suite": backend.suites.digest(asked.suite)}
        versions["sandbox"] = backend.walls()
        versions |= {"question": {"problems": asked.pattern}} if asked.pattern else {}
    finally:
        backend.close()
    scores = probe_scores(answers, contestants)
    outputs = [
        run.write_table_at(f"benchmarks/{folder}/answers.parquet", answers, tables.ANSWERS),
        run.write_table_at(f"benchmarks/{folder}/scores.parquet", scores, tables.SCORES),
    ]
    counts = {"problems": problems.num_rows, "answers": answers.num_rows}
    inputs: list[Ref] = io.inputs()
    run.commit_benchmark(folder, inputs, outputs, counts, versions, {"seconds": round(time.monotonic() - began, 1)})
    return scores


def probe_plan(suite: str, config: RunConfig, backend: Backend, attempts: int) -> SamplingPlan:
    """Return how the project's probe is asked: with the prompts and at the temperature that the population is trained with."""
    words = own_words(hub.style_of(config), backend.style())
    return SamplingPlan(suite, words, attempts, config.benchmark.max_new_tokens, config.engine.temperature, config.seed)


def score_members(io: StageIO, config: RunConfig, backend: Backend, members: Sequence[Contestant]) -> None:
    """Score a run's members as trained on every suite of `benchmark.suites`, in the run's own engine.

    Scores are stored where `populora benchmark RUN` would put them, shard by shard and outside the chain, so that a killed step
    resumes and the scheduled benchmark finds nothing left to do. The stage's manifest records the digests of the scores.
    """
    rule, found = config.benchmark, {}
    for suite in rule.suites:
        target = targets.of_run(io.run, members, folder_of_generation(io.generation, rule.members), backend.held)
        request = request_for(suite, config, suites_folder(), limit=rule.limit, attempts=rule.attempts)
        score_suite(target, request, partial(backend.progress, f"shards of {suite}"), backend)
        place = f"benchmarks/{folder_of(target, request)}"
        done = io.run.history.manifest(f"{place}/benchmark.json")
        assert done is not None, place
        found[suite] = {"uri": f"{place}/scores.parquet", "sha256": done.output("scores.parquet").sha256}
    if found:
        io.version(suites=found)


def scored_generations(run: Run, members: str, asked: Question) -> list[tuple[int, pa.Table]]:
    """Return (generation, SCORES) of earlier benchmarks of these members with the same question, oldest first."""
    found = []
    request = None if asked.suite in PROBE else _request(asked, config_of(run))
    for generation in [-1, *run.history.generations()]:
        chosen = Chosen((), generation, members)
        of_suite = f"{asked.suite}/asked/{chosen.folder(run)}-{request.key[:12]}" if request else probe_folder(run, chosen, asked)
        done = run.history.manifest(f"benchmarks/{of_suite}/benchmark.json")
        if done is not None and run.holds(done):
            found.append((generation, run.read_table(done.output("scores.parquet"), "scores")))
    return found


def _request(asked: Question, config: RunConfig) -> BenchmarkRequest:
    return request_for(asked.suite, config, suites_folder(), limit=asked.limit, attempts=asked.attempts, pattern=asked.pattern)


def request_for(
    suite: str,
    config: RunConfig,
    data: Path | None,
    limit: int = 0,
    attempts: int = 0,
    style: str = "",
    max_new_tokens: int = 0,
    window: tuple[str, str] = ("", ""),
    pattern: str = "",
) -> BenchmarkRequest:
    """Return the request for a suite; its style is the given one, else the configuration's, else the tokenizer's."""
    longest = config.benchmark.max_new_tokens if suite in PROBE else suite_of(suite).max_new_tokens
    return BenchmarkRequest(
        suite=suite,
        problems=problems_of(suite, data, limit, *window, pattern=pattern),
        style=hub.style_of(config) if suite in PROBE else style or config.benchmark.style or style_of(Backend(config)),
        attempts=attempts,
        max_new_tokens=max_new_tokens or longest,
        temperature=config.engine.temperature,
        seed=config.seed,
        pattern=pattern,
    )
