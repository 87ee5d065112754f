"""Scores of a run's adapters: on a suite at any time, without interrupting training, and inside the run as it trains."""

import hashlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.backend import Backend
from flows.benchmarks import targets
from flows.benchmarks.own_suites import PROBE
from flows.benchmarks.suite_data import suite_of, suites_folder
from flows.benchmarks.suite_score import BenchmarkRequest, folder_of, own_problems, problems_of, score_suite, style_of
from flows.config import ConfigError, RunConfig, parse
from flows.run import hub_models
from flows.run.history import CHOSEN
from flows.run.manifest import Ref
from flows.run.run import Run
from flows.run.stage_io import StageIO
from stages.benchmark import SamplingPlan, answer_probe, own_words
from stages.core import tables
from stages.core.population import Member, population_after
from stages.core.progress import Progress, silent
from stages.core.suites.by_depth import depth_scores
from stages.core.suites.changes import score_changes
from stages.core.suites.scores import Contestant, Slices, forms, probe_scores


def score_run(
    run: Run,
    suite: str,
    adapter_ids: list[str],
    generation: int | None,
    limit: int,
    attempts: int,
    members: str = "students",
    pattern: str = "",
    progress: Progress = silent,
) -> pa.Table:
    """Return SCORES of the chosen adapters: ids, or `members` as trained in `generation` (-1: the start; None: the newest).

    `members` is `students`, `all`, `top:N` (by fitness) or adapter ids separated by commas. `pattern` chooses problems by id.

    Scores already stored under the same name are read, not computed again.
    """
    config, contestants = _config(run), contestants_of(run, adapter_ids, generation, members)
    if suite not in PROBE:
        target = targets.of_run(run, contestants, folder_of_run(run, adapter_ids, generation, members))
        return score_suite(target, request_for(suite, config, suites_folder(), limit=limit, attempts=attempts, pattern=pattern))
    folder = probe_folder(run, suite, adapter_ids, generation, limit, attempts, members, pattern)
    done = run.history.manifest(f"benchmarks/{folder}/benchmark.json")
    if done is not None and run.holds(done):
        return run.read_table(done.output("scores.parquet"), "scores")
    return _score(run, config, suite, contestants, folder, limit, attempts, pattern, progress)


def probe_folder(
    run: Run,
    suite: str,
    adapter_ids: list[str],
    generation: int | None,
    limit: int,
    attempts: int,
    members: str,
    pattern: str = "",
) -> str:
    """Return the folder under `benchmarks/` with the probe's answers and scores of these adapters."""
    request = f"{folder_of_run(run, adapter_ids, generation, members)}-n{limit}-k{attempts}"
    if not pattern:
        return f"{suite}/asked/{request}"
    return f"{suite}{CHOSEN}{request}-p{hashlib.sha256(pattern.encode()).hexdigest()[:8]}"


def _score(
    run: Run,
    config: RunConfig,
    suite: str,
    contestants: list[Contestant],
    folder: str,
    limit: int,
    attempts: int,
    pattern: str,
    progress: Progress,
) -> pa.Table:
    problems = own_problems(suite, limit, pattern)
    backend, began = Backend(config, progress), time.monotonic()
    io = StageIO(run, "benchmark", None, None, config.model.name, config.model.alpha)
    try:
        engine = backend.engine(io.adapters([one.adapter_id for one in contestants if one.adapter_id]))
        plan = probe_plan(suite, config, backend, attempts)
        answers = answer_probe(contestants, problems, engine, backend.sandbox(), plan)
        versions: dict[str, Any] = {"engine": backend.engine_version(), "suite": backend.suites.digest(suite)}
        versions["sandbox"] = backend.walls()
        versions |= {"question": {"problems": pattern}} if pattern else {}
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
    words = own_words(hub_models.style_of(config), backend.style())
    return SamplingPlan(suite, words, attempts, config.benchmark.max_new_tokens, config.engine.temperature, config.seed)


def score_members(io: StageIO, config: RunConfig, backend: Backend, members: Sequence[Contestant]) -> None:
    """Score a run's members as trained on every suite of `benchmark.suites`, in the run's own engine.

    Scores are stored where `populora benchmark RUN` would put them, shard by shard and outside the chain, so that a killed step
    resumes and the scheduled benchmark finds nothing left to do. The stage's manifest records the digests of the scores.
    """
    rule, found = config.benchmark, {}
    for suite in rule.suites:
        target = targets.of_run(io.run, members, folder_of_generation(io.generation, rule.members))
        request = request_for(suite, config, suites_folder(), limit=rule.limit, attempts=rule.attempts)
        score_suite(target, request, partial(backend.progress, f"shards of {suite}"), backend)
        place = f"benchmarks/{folder_of(target, request)}"
        done = io.run.history.manifest(f"{place}/benchmark.json")
        assert done is not None, place
        found[suite] = {"uri": f"{place}/scores.parquet", "sha256": done.output("scores.parquet").sha256}
    if found:
        io.version(suites=found)


def scores_text(scores: pa.Table) -> str:
    """Return the overall scores, and those by kind, as aligned lines."""
    rows = [row for row in scores.to_pylist() if " band " not in row["group"]]
    lines = [f"{'adapter':16} {'group':13} {'measure':14} {'score':>7} {'± s.e.':>8} {'n':>6}"]
    for row in rows:
        error = "" if row["stderr"] is None else f"{100 * row['stderr']:.2f}"
        score = f"{100 * row['score']:.2f}"
        lines.append(f"{row['adapter_id']:16} {row['group']:13} {row['measure']:14} {score:>7} {error:>8} {row['problems']:>6}")
    return "\n".join(lines)


def forms_text(answers: pa.Table) -> str:
    """Return the share of answers with the required format, and the share of those that are correct, as aligned lines."""
    lines = [f"{'adapter':16} {'answers':8} {'formed':>7} {'± s.e.':>8} {'right of formed':>15} {'± s.e.':>8} {'n':>6}"]
    for one in forms(answers):
        formed, right = (f"{100 * share:.2f}" for share in (one.formed, one.right))
        errors = ["" if error is None else f"{100 * error:.2f}" for error in (one.formed_stderr, one.right_stderr)]
        how = "greedy" if one.greedy else "sampled"
        lines.append(f"{one.adapter_id:16} {how:8} {formed:>7} {errors[0]:>8} {right:>15} {errors[1]:>8} {one.problems:>6}")
    return "\n".join(lines)


def depths_text(answers: pa.Table) -> str:
    """Return the scores of the staircase by kind and depth in percent, as aligned lines; `-` where nothing was sampled.

    `same` is the share of groups of 8 samples that are all right or all wrong, `wrong` the share that are all wrong.
    """
    scores = depth_scores(answers)
    passes = sorted({k for one in scores for k in one.pass_at})
    heads = ["depth", "n", "greedy", "± s.e.", "formed", "of formed", *(f"pass@{k}" for k in passes), "same", "wrong"]
    lines = []
    for slot in dict.fromkeys((one.adapter_id, one.kind) for one in scores):
        lines += [f"{slot[0]}, {slot[1]}", "".join(f"{head:>10}" for head in heads)]
        for one in scores:
            if (one.adapter_id, one.kind) == slot:
                same = None if one.all_wrong is None or one.all_right is None else one.all_wrong + one.all_right
                cells = [None if one.greedy is None else one.greedy.mean, None if one.greedy is None else one.greedy.stderr]
                cells += [one.formed, one.right_of_formed]
                cells += [one.pass_at[k].mean if k in one.pass_at else None for k in passes] + [same, one.all_wrong]
                shown = ("-" if cell is None else f"{100 * cell:.1f}" for cell in cells)
                lines.append("".join(f"{cell:>10}" for cell in (one.depth, one.problems, *shown)))
    return "\n".join(lines)


def changes_text(after: pa.Table, before: pa.Table, slices: Slices, generation: int) -> str:
    """Return the change of each score since `generation`, paired by problem, as aligned lines."""
    since = "since the start" if generation < 0 else f"since generation {generation}"
    lines = [f"{since:16} {'measure':14} {'change':>7} {'± s.e.':>8} {'better':>7} {'worse':>6} {'n':>6}"]
    for one in score_changes(after, before, slices):
        if " band " in one.group:
            continue
        found = one.found
        error = "" if found.stderr is None else f"{100 * found.stderr:.2f}"
        change = f"{100 * found.difference:+.2f}"
        counts = f"{found.better:>7} {found.worse:>6} {found.problems:>6}"
        lines.append(f"{one.group:16} {one.measure:14} {change:>7} {error:>8} {counts}")
    return "\n".join(lines)


def newest_generation(run: Run) -> int:
    """Return the newest generation with committed ratings; -1: the start."""
    rated = [number for number in run.history.generations() if run.manifest("rate", number) is not None]
    return rated[-1] if rated else -1


def scored_generations(run: Run, suite: str, members: str, limit: int, attempts: int) -> list[tuple[int, pa.Table]]:
    """Return (generation, SCORES) of earlier benchmarks with the same request, oldest first."""
    found = []
    request = None if suite in PROBE else request_for(suite, _config(run), suites_folder(), limit=limit, attempts=attempts)
    for generation in [-1, *run.history.generations()]:
        who = folder_of_run(run, [], generation, members)
        tail = f"n{limit}-k{attempts}" if request is None else request.key[:12]
        done = run.history.manifest(f"benchmarks/{suite}/asked/{who}-{tail}/benchmark.json")
        if done is not None and run.holds(done):
            found.append((generation, run.read_table(done.output("scores.parquet"), "scores")))
    return found


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
        style=hub_models.style_of(config) if suite in PROBE else style or config.benchmark.style or style_of(Backend(config)),
        attempts=attempts,
        max_new_tokens=max_new_tokens or longest,
        temperature=config.engine.temperature,
        seed=config.seed,
        pattern=pattern,
    )


def contestants_of(run: Run, adapter_ids: list[str], generation: int | None, members: str) -> list[Contestant]:
    """Return the requested adapters: by id, or by rule in a generation (None: the newest)."""
    named = adapter_ids or _given(members)
    if named:
        return _named(run, named)
    return _chosen(run, _config(run), newest_generation(run) if generation is None else generation, members)


def folder_of_run(run: Run, adapter_ids: list[str], generation: int | None, members: str) -> str:
    """Return a folder name for the targets, so that equal requests share their answers."""
    named = adapter_ids or _given(members)
    if named:
        return "-".join(named)
    return folder_of_generation(newest_generation(run) if generation is None else generation, members)


def folder_of_generation(generation: int, members: str) -> str:
    """Return a folder name for the members of a generation that a rule chooses."""
    rule = "" if members == "students" else "-" + members.replace(":", "")
    return ("start" if generation < 0 else f"generation={generation:04d}") + rule


def _config(run: Run) -> RunConfig:
    description = run.history.description()
    assert description is not None
    return parse(description["config"])


def _given(members: str) -> list[str]:
    """Return adapter ids if `members` contains them."""
    rule = members == "all" or members == "students" or members.startswith("top:")
    return [] if rule else [name.strip() for name in members.split(",") if name.strip()]


def _chosen(run: Run, config: RunConfig, generation: int, rule: str) -> list[Contestant]:
    """Return the members of a generation, as trained, that a rule selects."""
    empty = tables.OFFSPRING.empty_table()
    if generation < 0:
        members = population_after(run.read_table(None, "population"), empty, -1)
    else:
        if run.manifest("rate", generation) is None:
            raise ConfigError(f"generation {generation} of run {run.run_id} is not rated yet")
        members = population_after(run.read_table(generation, "ratings"), empty, generation)
    if rule.startswith("top:"):
        count = rule.removeprefix("top:")
        if not count.isdigit() or not int(count):
            raise ConfigError(f"members: {rule!r} is not one of students, all, top:N, or adapter ids")
        kappa = config.evolution.kappa
        best = sorted(members, key=lambda member: (-(member.rating.mu - kappa * member.rating.sigma), member.member_id))
        members = best[: int(count)]
    return [_contestant(member) for member in members if rule != "students" or member.role != "teacher"]


def _contestant(member: Member) -> Contestant:
    return Contestant(member.member_id, member.role, member.adapter_id, member.adapter_sha256)


def _named(run: Run, adapter_ids: list[str]) -> list[Contestant]:
    contestants = []
    for adapter_id in adapter_ids:
        ref = run.history.find(f"adapters/{adapter_id}/adapter_model.safetensors")
        member = adapter_id.rpartition("-")[0]
        role = {"t": "teacher", "s": "student"}.get(member[:1], "both")
        contestants.append(Contestant(member, role, adapter_id, ref.sha256))
    return contestants
