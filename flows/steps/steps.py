"""The steps of a run: each reads its tables, calls its stage, and writes what the stage returns.

A step is the only place where a stage meets storage. `STEPS` names them in the order of a generation. No Prefect here: the
stage subprocess runs the same functions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from flows.added_rewards import added_rewards
from flows.backend import Backend
from flows.base_model.hub import BASE_RULE, DIGEST_RULE, check_files
from flows.benchmarks.schedule import Panel, members_at, panels, shared, write_panels
from flows.benchmarks.score import probe_plan, score_members
from flows.choices import choose, chosen_curriculum, estimator_of, evolution_policy, gates_of, operators_of
from flows.config import ConfigError, RunConfig
from flows.program import program
from flows.run.earlier_index import write_segment
from flows.run.history import kept_out
from flows.run.stage_io import StageIO
from flows.steps.earlier_tasks import recent, references_of, stored_among
from flows.steps.early_judging import early_verdicts_of, judged_early
from flows.steps.generation_metrics import generation_metrics, paid_grades
from flows.steps.part_work import proposal_plan, propose_work, solve_work
from flows.steps.strategy import engine_of, updater_of
from flows.steps.trained_samples import group_of, groups_after_reward, moved_since, sampled_in, trained_samples, update_groups
from stages import evolve as evolution
from stages import generate as generating
from stages import grade as grading
from stages import match as matching
from stages import propose as proposing
from stages import rate as rating_stage
from stages import reward as rewards
from stages import seed as seeding
from stages import solve as solving
from stages import update as updating
from stages import verify as verification
from stages.benchmark import SamplingPlan, answer_probe, chosen_problems
from stages.core import tables
from stages.core.engines.agreement import check_drift
from stages.core.judging.judge import judge_answers, judge_tasks
from stages.core.lora.adapter_files import weights_sha256
from stages.core.method.leak import admitted, believed, leaks
from stages.core.method.proposing import PromptTooLong
from stages.core.method.rating import Rating, Scale
from stages.core.method.rewards import RULES
from stages.core.method.top_up import fresh
from stages.core.population import Member, initial_members, member_ids, start_adapter_id
from stages.core.prompts.room import control_tokens
from stages.core.randomness import generator
from stages.core.shards import Shard
from stages.trace import record_traces

Step = Callable[[StageIO, RunConfig, Backend], None]


def start(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Write the starting adapters (all equal: the same A, B = 0), ratings and seed tasks."""
    backend.check_model()  # where the model is: whoever began the run may not have it
    described = io.run.history.description() or {}
    check_files(Path(backend.model_path), described.get("versions", {}).get("model", {}))
    adapter, sizes = backend.initial_adapter(), config.population
    names = [start_adapter_id(member) for member, _ in member_ids(sizes.teachers, sizes.students, config.mode)]
    digests = io.write_adapters(dict.fromkeys(names, adapter))
    rating = Rating(config.rating.mu, config.rating.sigma)
    members = initial_members(sizes.teachers, sizes.students, config.mode, digests, rating)
    io.write_table("population", seeding.starting_ratings(members, config.evolution.kappa))
    seeds, counts = _seeds(config, backend, backend.suites.probe_keys(kept_out(described)))
    io.write_table("seeds", seeds)
    io.count(seeds=seeds.num_rows, **counts)
    io.version(
        **{BASE_RULE: DIGEST_RULE}, base_model=backend.model_digest(), engine=backend.engine_version(), sandbox=backend.walls()
    )


def _seeds(config: RunConfig, backend: Backend, held_out: frozenset[str]) -> tuple[pa.Table, dict[str, int]]:
    """Return SEEDS and their counts. Raises ConfigError if the model does not follow its style, or no prompt fits its window."""
    rule = config.seeding
    wanted = seeding.SeedPlan(rule.rows, rule.max_rounds, rule.round or backend.batch_rows())
    try:
        with _room_for_prompts(config):
            return seeding.seed(
                backend.engine({}),
                backend.sandbox(),
                backend.style(),
                proposal_plan(config),
                wanted,
                config.seed,
                held_out,
                backend.fits(config.solve.max_new_tokens),
                backend.shipped_tasks(),
                backend.progress,
                backend.answerable(config.solve.max_new_tokens),
                control_tokens(backend.tokenizer),
            )
    except seeding.UnreadableProposals as error:
        model, hint = config.model, f"see what it follows: {program('try-prompts', config.model.name)}"
        raise ConfigError(f"model.style: {model.name} does not follow the style {model.style}: {error}; {hint}") from error


@contextmanager
def _room_for_prompts(config: RunConfig) -> Iterator[None]:
    """Raise ConfigError if no prompt that was drawn leaves room for a completion."""
    try:
        yield
    except PromptTooLong as error:
        limits = f"propose.max_new_tokens={config.propose.max_new_tokens}, solve.max_new_tokens={config.solve.max_new_tokens}"
        raise ConfigError(f"{limits}: {error}; set fewer, in a fork if the run has begun") from error


def match(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Draw students near each teacher's own strength. Without teachers, every student meets the generator."""
    population, rule = io.population(), config.rating
    rng = generator(config.seed, io.generation, "match")
    matchmaker = choose("population.matchmaker", config.population.matchmaker, matching.MATCHMAKERS)
    drawn = matching.match(population, rng, io.generation, rule.beta, matchmaker, Rating(rule.mu, rule.sigma))
    io.write_table("matches", drawn)


def propose(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Let teachers write tasks, or the generator where there are none."""
    if config.propose.curriculum:
        _generate(io, config, backend)
        return
    population, work = io.population(), propose_work(io, config)
    teachers = sorted(set(work.own["teacher_id"].to_pylist()))
    adapters = io.adapters(work.adapters)
    backend.check_agreement("propose", adapters)
    engine = engine_of(io, config, backend, adapters, "teacher")
    with judged_early(io, backend, judge_tasks) as early, _room_for_prompts(config):
        proposals = proposing.propose(
            work.matches,
            _digests(population),
            references_of(io, config, backend, teachers),
            engine,
            backend.style(),
            work.plan,
            config.seed,
            io.generation,
            work.shard,
            early,
        )
    io.write_own("proposals", proposals)
    count_refused_proposals(io, proposals)
    io.version(engine=backend.engine_version())


def _generate(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Let the generator write tasks, of kinds and depths by the grades of the last generations. Needs no engine."""
    proposals = generating.generate(
        io.table("matches"),
        generating.records_of(recent(io), config.kinds),
        chosen_curriculum(config),
        config.proposals_per_teacher,
        config.propose.num_inputs,
        backend.suites.held_out(kept_out(io.run.history.description())),
        config.seed,
        io.generation,
        Shard.named(io.part),
    )
    io.write_own("proposals", proposals)


def verify(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Run every proposal in the sandbox. All rows stay, each with a status. Later generations find them by the index."""
    earlier = backend.earlier.seen(io)
    tasks = verification.verify(
        io.table("proposals"),
        backend.sandbox(),
        backend.style(),
        earlier.keys,
        backend.suites.probe_keys(kept_out(io.run.history.description())),
        gates_of(config),
        backend.fits(config.solve.max_new_tokens),
        backend.progress,
        partial(leaks, config.experiment.leak, config.seed, io.generation) if config.experiment.leak else None,
        early_verdicts_of(io, backend),
        backend.answerable(config.solve.max_new_tokens),
        control_tokens(backend.tokenizer),
    )
    io.write_table("tasks", tasks)
    write_segment(io, believed(tasks))
    if config.experiment.leak:
        io.count(leaked=sum(admitted(tasks)))
    io.version(sandbox=backend.walls())


def solve(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Let matched students attempt every valid task and, where the run replays tasks, those that are due."""
    work = solve_work(io, config, backend)
    adapters = io.adapters(work.adapters)
    backend.check_agreement("solve", adapters)
    with judged_early(io, backend, judge_answers) as early:
        rollouts = solving.solve(
            work.matches,
            _digests(io.population()),
            work.tasks,
            engine_of(io, config, backend, adapters, "student"),
            backend.style(),
            work.plan,
            config.seed,
            io.generation,
            work.again,
            work.shard,
            early,
        )
    io.write_own("rollouts", rollouts)
    count_refused_answers(io, backend, rollouts)
    io.version(engine=backend.engine_version())


def count_refused_proposals(io: StageIO, proposals: pa.Table) -> None:
    """Count the proposals that could not be read, by reason, in the manifest of the stage or part."""
    io.count(**{f"refused_{reason}": count for reason, count in proposing.refusals(proposals).items()})


def count_refused_answers(io: StageIO, backend: Backend, rollouts: pa.Table) -> None:
    """Count the answers that could not be read, by reason, in the manifest of the stage or part."""
    io.count(**{f"refused_{reason}": count for reason, count in solving.refusals(backend.style(), rollouts).items()})


def grade(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Decide in the sandbox and on the host which answers are correct."""
    tasks, rollouts = io.table("tasks"), io.table("rollouts")
    replayed = stored_among(io, backend, rollouts, tasks)  # a fork from here may have switched replays off
    grades = grading.grade(tasks, rollouts, backend.sandbox(), replayed, backend.progress, early_verdicts_of(io, backend))
    io.write_table("grades", grades)
    if config.reward.trace_weight:
        io.write_table("traces", record_traces(tasks, replayed, grades, backend.sandbox()))
    io.version(sandbox=backend.walls())


def reward(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Turn proposals and attempts into samples."""
    tasks, rollouts, grades = believed(io.table("tasks")), io.table("rollouts"), paid_grades(io, config)
    samples = rewards.reward(
        io.table("proposals"),
        tasks,
        rollouts,
        grades,
        choose("reward.rule", config.reward.rule, RULES),
        estimator_of(config),
        config.learning.teacher_baseline,
        config.solve.trained_attempts,
        added_rewards(io, config, tasks, rollouts, grades),
    )
    io.write_table("samples", samples)
    io.write_table("groups", groups_after_reward(io, config, samples))


def update_parts(io: StageIO, config: RunConfig) -> list[tuple[str, list[str]]]:
    """Return the parts of this generation's update, each with the ids of its adapters: `00`, ... or, by rows, `00of02`, ..."""
    parts: dict[str, list[str]] = {}
    for row in update_groups(io, config).to_pylist():
        parts.setdefault(row["part"], []).append(row["adapter_id"])
    return list(parts.items())


def update_part(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Take the optimizer step of one adapter group."""
    assert io.part is not None
    group = group_of(io, config, io.part).to_pylist()
    members = {row["adapter_id"]: (row["member_id"], row["role"]) for row in group}
    adapters = io.adapters(members, moments=True)
    backend.rest()  # an engine of this process; those of others sleep already (flows.execution.stage_process)
    stepped, metrics = updating.update(adapters, members, trained_samples(io, config), updater_of(io, config, backend))
    metrics = _checked(metrics, moved_since(io, config), backend)
    io.write_adapters({f"{member_id}-g{io.generation:04d}": adapter for member_id, adapter in stepped.items()})
    io.write_part(metrics, tables.METRICS)


def gradient_part(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Compute the gradients of one share of the rows."""
    assert io.part is not None
    adapters = io.adapters(group_of(io, config, io.part)["adapter_id"].to_pylist())
    samples, skips = trained_samples(io, config), config.learning.skip_zero_groups
    found, tokens = updating.gradients(adapters, samples, Shard.named(io.part), backend.trainer(), skips)
    for adapter_id, gradient in found.items():
        io.write_gradient(adapter_id, gradient)
    io.write_part(tokens, tables.TOKENS)


def update(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Join the groups and measure the generation so far."""
    parts = io.parts([name for name, _ in update_parts(io, config)], tables.METRICS)
    io.write_table("metrics", generation_metrics(io, config, backend, parts))


def summed_update(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Take the steps from the sums of the shares' gradients, one adapter after another, and measure the generation so far."""
    parts, samples, skips = update_parts(io, config), trained_samples(io, config), config.learning.skip_zero_groups
    tokens = tables.join(io.parts([name for name, _ in parts], tables.TOKENS), tables.TOKENS)
    trained, moved, metrics = set(samples["adapter_id"].to_pylist()), moved_since(io, config), []
    dtype = sampled_in(io, config)  # this machine has computed no log-probability, and may not have the parts' device
    for member in [one for one in io.population() if one.adapter_id in trained]:
        [(name, adapter)] = io.adapters([member.adapter_id], moments=True).items()
        gradients = io.gradients(name, [part for part, adapters in parts if name in adapters])
        role = (member.member_id, member.role)
        stepped, measured = updating.step(adapter, name, role, samples, gradients, tokens, backend.stepper(), skips)
        metrics.append(_checked(measured, moved, backend, dtype))
        if stepped is not None:
            io.write_adapters({f"{member.member_id}-g{io.generation:04d}": stepped})
    io.write_table("metrics", generation_metrics(io, config, backend, metrics))


def rate(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Update the ratings from the results. Each row names the weights that played and the weights that continue."""
    rule = config.rating
    population, matches = io.population(), io.table("matches")
    tasks, grades = believed(io.table("tasks")), paid_grades(io, config)
    rated = rating_stage.rate(
        population,
        matches,
        tasks,
        fresh(grades, tasks),
        io.updated_adapters(),
        Scale(rule.beta, rule.tau, rule.draw_probability),
        rule.draw_margin,
        config.evolution.kappa,
    )
    io.write_table("ratings", rated)


def benchmark(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Score the members as trained, before any is replaced, and offspring at the ages that the configuration names."""
    rule = config.benchmark
    if not (everybody := list(panels(io, config))):
        return
    chosen = shared(everybody, config.engine.shards, io.part)
    problems = chosen_problems(backend.suites.problems(rule.suite), rule.limit)
    plan = probe_plan(rule.suite, config, backend, rule.attempts)
    answers = [_answers(panel, io, backend, problems, plan) for panel in chosen]
    if io.part is None:
        write_panels(io, chosen, answers)
        score_members(io, config, backend, members_at(io, config))
    else:
        io.write_part(tables.join(answers, tables.ANSWERS), tables.ANSWERS)
    io.version(engine=backend.engine_version(), sandbox=backend.walls(), suite=backend.suites.digest(rule.suite))


def _answers(panel: Panel, io: StageIO, backend: Backend, problems: pa.Table, plan: SamplingPlan) -> pa.Table:
    """Return a panel's answers. The engine has the adapters of one panel: of all there may be more than vLLM has room for."""
    engine = backend.engine(io.adapters(one.adapter_id for one in panel.contestants if one.adapter_id))
    return answer_probe(panel.contestants, problems, engine, backend.sandbox(), plan, backend.progress)


def evolve(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Replace the weakest by offspring in evolving generations; otherwise write an empty table."""
    from stages.core.lora.operators import compare  # noqa: PLC0415 (imports torch)

    policy, population = evolution_policy(config), io.trained_population()
    if not evolution.due(io.generation, config.generations, policy) or config.mode == "single":
        io.write_table("offspring", tables.OFFSPRING.empty_table())
        return
    parents = io.adapters(evolution.needed(population, io.generation, config.seed, policy))
    offspring, children = evolution.evolve(
        population,
        parents,
        io.generation,
        config.seed,
        policy,
        operators_of(config),
        lambda child: weights_sha256(child.weights),
        compare,
        backend.progress,
    )
    io.write_adapters(children)
    io.write_table("offspring", offspring)


STEPS: dict[str, Step] = {
    step.__name__: step for step in (start, match, propose, verify, solve, grade, reward, update, rate, benchmark, evolve)
}


def _digests(population: list[Member]) -> dict[str, str]:
    return {member.adapter_id: member.adapter_sha256 for member in population}


def _checked(metrics: pa.Table, moved: frozenset[str], backend: Backend, dtype: str = "") -> pa.Table:
    """Return METRICS of steps. Raises Disagreement if engine and trainer differ, in `dtype`, on samples of what stepped."""
    named = updating.as_lag(metrics, moved)
    check_drift(named, backend.drift_bounds(dtype).mean)
    return named
