"""Scores of a public suite, shard by shard: each shard of problems is answered, judged and committed before the next one.

A killed benchmark resumes: committed shards are read, and no problem is answered or run twice. Everything is stored under
`benchmarks/{suite}/…` of the target's run, with every completion. A run's chain and lease are not touched.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.backend import Backend
from flows.base_model import hub
from flows.benchmarks.targets import BenchmarkTarget
from flows.config import ConfigError
from flows.run.history import CHOSEN
from flows.run.run import Manifest, Run
from flows.settings import SandboxRule
from flows.suites import suite_data
from flows.suites.own_suites import PROBE, OwnSuites
from stages import benchmark as stage
from stages.core import tables
from stages.core.engines.protocol import Engine
from stages.core.prompts.chat_template import has_template, templated
from stages.core.suites import prompts
from stages.core.suites.code_scoring import Expected, Sandboxes
from stages.core.suites.harness import MAX_INPUT
from stages.core.suites.math_grader import HOME_PYTHON, MathGrader
from stages.core.suites.problems import BadSuite, Problem, chosen, digest
from stages.core.suites.scores import suite_scores

SHARD = 128  # problems: what an engine completes in one batch; a killed benchmark repeats at most one shard
CPU_SECONDS, PATIENT_SECONDS, MEMORY_MB = 10.0, 90.0, 4096
WINDOW = 2  # programs queued per container: solutions run long, and a shard is distributed among all containers
ELSEWHERE = "elsewhere"  # the style of completions made by other systems with their own prompts
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class BenchmarkRequest:
    """The request put to a target: everything that the scores depend on besides the weights.

    `pattern` says how `problems` were chosen by id; empty: they stand for the whole suite.
    """

    suite: str
    problems: tuple[Problem, ...]
    style: str
    attempts: int = 0
    max_new_tokens: int = 1024
    temperature: float = 1.0
    seed: int = 0
    pattern: str = ""

    @cached_property
    def wording(self) -> str:
        """A digest of how a public suite's problems are worded; empty if other prompts are used."""
        return "" if self.suite in PROBE or self.style == ELSEWHERE else prompts.digest(self.problems, self.style)

    @cached_property
    def key(self) -> str:
        """A digest of the whole request."""
        values = [self.suite, digest(self.problems), self.style, self.attempts, self.max_new_tokens, self.temperature, self.seed]
        values += [self.wording]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def problems_of(
    suite: str, data: Path | None, limit: int, since: str = "", until: str = "", pattern: str = ""
) -> tuple[Problem, ...]:
    """The problems of a public suite or of the project's probe. Raises ConfigError."""
    if suite in PROBE:
        return stage.probe_problems(own_problems(suite, limit, pattern))
    try:
        return tuple(chosen(suite_data.load(suite, data), limit, since, until, pattern))
    except BadSuite as error:
        raise ConfigError(f"suite {suite}: {error}") from error


def own_problems(suite: str, limit: int, pattern: str = "") -> pa.Table:
    """Return the problems of one of the project's own suites. Raises ConfigError."""
    try:
        return stage.chosen_problems(OwnSuites().problems(suite), limit, pattern)
    except BadSuite as error:
        raise ConfigError(f"suite {suite}: {error}") from error


def style_of(backend: Backend) -> str:
    """Return the default style of public suites: the model's chat template, or completion if it has none."""
    return "chat" if has_template(backend.tokenizer) else "completion"


def words_of(request: BenchmarkRequest, backend: Backend) -> stage.SuitePrompts:
    """Return the project's own prompts for its probe, the suite's fixed ones otherwise."""
    if request.suite in PROBE:
        return stage.own_words(hub.style_of(backend.config), backend.style())
    if request.style == ELSEWHERE:
        return stage.found_words()
    if request.style != "chat":
        return stage.public_words(request.style, str)
    try:
        return stage.public_words(request.style, templated(backend.tokenizer))
    except ValueError as error:
        raise ConfigError(f"style chat: {backend.config.model.name}: {error}; use completion instead") from error


def folder_of(target: BenchmarkTarget, request: BenchmarkRequest) -> str:
    """Return a folder name for the request, so that equal requests share their answers."""
    place = CHOSEN if request.pattern else "/asked/"
    return f"{request.suite}{place}{target.who}-{request.key[:12]}"


def stored(target: BenchmarkTarget, request: BenchmarkRequest) -> pa.Table | None:
    """Return SCORES if this request has been scored before and its results are intact."""
    done = target.run.history.manifest(f"benchmarks/{folder_of(target, request)}/benchmark.json")
    if done is None or not target.run.holds(done):
        return None
    return target.run.read_table(done.output("scores.parquet"), "scores")


def score_suite(
    target: BenchmarkTarget,
    request: BenchmarkRequest,
    progress: Progress = lambda done, of: None,
    backend: Backend | None = None,
) -> pa.Table:
    """Return SCORES of the target: stored results are read, missing ones are generated and judged.

    `backend` provides the model and engine if one exists already.
    """
    found = stored(target, request)
    if found is not None:
        return found
    began, folder = time.monotonic(), folder_of(target, request)
    shards = _shards(request)
    made: list[Manifest] = []
    with ExitStack() as stack:
        work = _Work(target, request, stack, backend)
        for number, (name, problems) in enumerate(shards.items()):
            progress(number, len(shards))
            made.append(_shard(work, f"{folder}/shards/{name}", problems))
        progress(len(shards), len(shards))
        versions = work.asked_versions() | _made_versions(made)
    parts = [replace(one.output("answers.parquet"), stamp="") for one in made]
    answers = tables.join([target.run.read_table(ref, "answers") for ref in parts], tables.ANSWERS)
    scores = suite_scores(answers, target.contestants)
    place = f"benchmarks/{folder}"
    outputs = [
        target.run.write_table_at(f"{place}/answers.parquet", answers, tables.ANSWERS),
        target.run.write_table_at(f"{place}/scores.parquet", scores, tables.SCORES),
    ]
    counts = {"problems": len(request.problems), "answers": answers.num_rows, "shards": len(shards)}
    clock = {"seconds": round(time.monotonic() - began, 1)}
    target.run.commit_benchmark(folder, [*target.inputs, *parts], outputs, counts, versions, clock)
    return scores


def done_shards(target: BenchmarkTarget, request: BenchmarkRequest) -> list[Manifest]:
    """Return the manifests of the committed shards, in order."""
    folder, run = folder_of(target, request), target.run
    found = [run.history.manifest(f"benchmarks/{folder}/shards/{name}/shard.json") for name in _shards(request)]
    return [one for one in found if one is not None]


def _shards(request: BenchmarkRequest) -> dict[str, Sequence[Problem]]:
    """Return the problems of each shard by its name, which says their positions: shards of another size have other names."""
    problems = request.problems
    return {f"{at:05d}-{at + SHARD:05d}": problems[at : at + SHARD] for at in range(0, len(problems), SHARD)}


def _shard(work: "_Work", folder: str, problems: Sequence[Problem]) -> Manifest:
    """Return the manifest of one shard, whose answers are generated unless it is committed already."""
    run: Run = work.target.run
    uri = f"benchmarks/{folder}/shard.json"
    done = run.history.manifest(uri)
    if done is not None and run.holds(done):
        return done
    began = time.monotonic()
    recording = stage.Recording(work.request.suite, work.bands)
    try:
        answers = stage.judge(work.complete(problems), problems, work.words, work.graders, recording)
    except BadSuite as error:
        raise ConfigError(f"suite {work.request.suite}: {error}") from error
    ref = run.write_table_at(f"benchmarks/{folder}/answers.parquet", answers, tables.ANSWERS)
    clock = {"seconds": round(time.monotonic() - began, 1)}
    counts = {"problems": len(problems), "answers": answers.num_rows}
    mine = Manifest(run.run_id, None, "benchmark", "", work.target.inputs, (ref,), counts, work.versions(), clock)
    return run.commit_as(uri, mine)


def _made_versions(shards: Sequence[Manifest]) -> dict[str, Any]:
    """Return what made and judged the answers, from the manifests of the shards: some may be of an earlier process.

    The engine is that of the last shard. A benchmark that resumed with another one has the others in its shards' manifests.
    """
    missing = dict.fromkeys(name for one in shards for name in one.versions.get("grader", {}).get("missing_walls", ()))
    grader = {"grader": {"missing_walls": list(missing)}} if missing else {}
    return grader | {"engine": shards[-1].versions["engine"]}


def benchmark_sandboxes(backend: Backend, rule: SandboxRule) -> Sandboxes:
    """Return two pools with a benchmark's limits, for the caller to close; neither starts a container before it has work."""
    usual, patient = (
        backend.sandbox_with(
            WINDOW, cpu_seconds=seconds, wall_seconds=6 * seconds, memory_mb=max(rule.memory_mb, MEMORY_MB), input_text=MAX_INPUT
        )
        for seconds in (max(CPU_SECONDS, rule.cpu_seconds), PATIENT_SECONDS)
    )
    return Sandboxes(usual, patient)


class _Work:
    """Resources for answering and judging, each created on first use and closed with the stack."""

    def __init__(self, target: BenchmarkTarget, request: BenchmarkRequest, stack: ExitStack, backend: Backend | None) -> None:
        self.target, self.request, self.stack = target, request, stack
        self.backend = backend or Backend(target.config)
        if backend is None:
            stack.callback(self.backend.close)
        self.words = words_of(request, self.backend)
        self.made: dict[str, bool] = {}

    @cached_property
    def bands(self) -> dict[str, int]:
        """The band or depth of each problem of the project's own suites; public suites have none."""
        if self.request.suite not in PROBE:
            return {}
        found = self.backend.suites.problems(self.request.suite)
        return dict(zip(found["problem_id"].to_pylist(), found["band"].to_pylist(), strict=True))

    def complete(self, problems: Sequence[Problem]) -> list[stage.StoredCompletion]:
        """Return completions by the engine, or those made elsewhere."""
        if self.target.given is not None:
            wanted = {problem.problem_id for problem in problems}
            return [one for one in self.target.given if one.problem_id in wanted]
        asked = self.request
        ask = stage.SamplingPlan(asked.suite, self.words, asked.attempts, asked.max_new_tokens, asked.temperature, asked.seed)
        return stage.complete(self.target.contestants, problems, self.engine, ask)

    @cached_property
    def engine(self) -> Engine:
        self.made["engine"] = True
        return self.backend.engine(self.target.adapters)

    @cached_property
    def graders(self) -> list[stage.Grader]:
        return [
            stage.program_grader(self.sandboxes, self.expected),
            stage.value_grader(self.sandboxes.usual),
            stage.mathematics_grader(self.mathematics),
        ]

    @cached_property
    def mathematics(self) -> MathGrader:
        made = MathGrader(max(1, min(self.target.config.threads, 4)), python=os.environ.get(HOME_PYTHON, ""))
        self.stack.callback(made.close)
        return made

    @cached_property
    def sandboxes(self) -> Sandboxes:
        made = benchmark_sandboxes(self.backend, self.target.config.sandbox)
        self.stack.callback(made.usual.close)
        self.stack.callback(made.patient.close)
        return made

    @cached_property
    def expected(self) -> Expected:
        referenced = [problem for problem in self.request.problems if problem.reference]
        return suite_data.expected(referenced, self.sandboxes) if referenced else {}

    def versions(self) -> dict[str, Any]:
        """Return the versions used by a shard that was made here, for its manifest."""
        found = self.asked_versions()
        if "mathematics" in self.__dict__ and self.mathematics.missing:
            found["grader"] = {"missing_walls": list(self.mathematics.missing)}
        return found | {"engine": self.backend.engine_version() if self.made else {"kind": "elsewhere"}}

    def asked_versions(self) -> dict[str, Any]:
        """Return what was asked, for the manifest: equal for equal requests."""
        asked = self.request
        rule = {"style": self.words.style, "attempts": asked.attempts, "max_new_tokens": asked.max_new_tokens}
        rule |= {"temperature": asked.temperature, "seed": asked.seed}
        rule |= {"problems": asked.pattern} if asked.pattern else {}
        found: dict[str, Any] = {"suite": digest(asked.problems), "question": rule}
        if asked.wording:
            found["prompt"] = asked.wording
        if self.target.model:
            found["model"] = dict(self.target.model)
        return found
