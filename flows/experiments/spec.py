"""Experiments: arms times seeds, their question, and the primary comparison, fixed in a file before anything runs.

    name = "size"                      # prefix of every run id: size-pair-s0
    question = "Does a population learn more than one agent?"
    seeds = [0, 1, 2]                  # each is a run of every arm, on the same seed tasks and starting adapters
    settings = { generations = 60 }    # override every arm's configuration

    [[arms]]
    name = "pair"
    config = "one-one"                 # a name in infra/runs, or a file
    settings = { evolution = { every = 0 } }
    seeds = [0, 1, 2, 3, 4]            # replace the experiment's seeds
    runs = "older-pair"                # take over older-pair-s0, ... of another experiment, instead of size-pair-s0, ...; a
                                       # contrast with runs that began before this file was committed is exploratory

    [primary]                          # everything else is exploratory
    contrast = ["pair", "single"]      # first minus second, paired by seed
    budget = "generations"             # at the largest amount of it that both runs of a pair reached; where only one of the arms
                                       # has teachers, generated_tokens_per_student compares students that wrote as much

Imports no Prefect.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pyarrow.compute as pc
from pydantic import Field, ValidationError, model_validator

from flows.config import ConfigError, RunConfig, dump, load, parse
from flows.settings import Group
from flows.store.names import RUN_ID
from flows.suites.own_suites import ONE_KIND, OwnSuites
from stages.core.prompts.styles import Kind

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Budget = Literal[
    "generations",
    "generated_tokens",
    "generated_tokens_per_adapter",
    "generated_tokens_per_student",
    "trained_tokens",
    "trained_tokens_per_adapter",
    "optimizer_steps",
    "seconds",
]
GREEDY = "pass@1 greedy"
"""The measure that does not depend on the temperature of samples."""
BUDGETS: tuple[Budget, ...] = get_args(Budget)
GROUP = re.compile(rf"({'|'.join(Kind)})( band [0-9]+)?")


class Arm(Group):
    """One configuration of the comparison."""

    name: Name
    config: str = Field("smoke", description="Name in infra/runs, or a TOML file.")
    settings: dict[str, Any] = Field({}, description="Settings that differ in this arm, as in a configuration file.")
    seeds: tuple[Seed, ...] | None = Field(None, min_length=1, description="Seeds that replace the experiment's.")
    runs: Name | None = Field(None, description="Prefix of the run ids. Empty: the names of the experiment and of the arm.")
    about: str = ""


class Primary(Group):
    """The one confirmatory comparison: paired by seed, two-sided t test on the differences."""

    contrast: tuple[str, str]
    measure: str = Field(GREEDY, description="As in SCORES.")
    group: str = Field("all", description="All problems, a kind, or a kind and band.")
    over: Literal["mean", "best", "worst"] = Field(
        "mean", description="Of the scored members of a run. Best and worst only for as many students in both arms."
    )
    budget: Budget = "generations"
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    power: Annotated[float, Field(gt=0, lt=1)] = 0.8


class Experiment(Group):
    """The content of an experiment file."""

    name: Name
    question: str
    seeds: tuple[Seed, ...] = Field(min_length=1)
    settings: dict[str, Any] = Field({}, description="Settings that override the configuration of every arm.")
    arms: tuple[Arm, ...] = Field(min_length=2)
    primary: Primary
    contrasts: tuple[tuple[str, str], ...] = Field(
        (), description="Exploratory contrasts. Empty: every arm against the second arm of the primary contrast."
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"arms: {', '.join(sorted({name for name in names if names.count(name) > 1}))} appears twice")
        for pair in (self.primary.contrast, *self.contrasts):
            for name in pair:
                if name not in names:
                    raise ValueError(f"contrast: {name} is not one of the arms {', '.join(names)}")
            if pair[0] == pair[1]:
                raise ValueError(f"contrast: {pair[0]} cannot be compared with itself")
        return self

    def compared(self) -> list[tuple[str, str]]:
        """All contrasts, the primary one first."""
        usual = [(arm.name, self.primary.contrast[1]) for arm in self.arms if arm.name != self.primary.contrast[1]]
        return list(dict.fromkeys([self.primary.contrast, *(self.contrasts or usual)]))


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    arm: str
    seed: int
    run_id: str
    config: RunConfig


def read(path: Path) -> Experiment:
    """Read the experiment in a file. Raises ConfigError with one line that names the file and the key."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    of_a_run = [key for key in values if key in RunConfig.model_fields]
    if 2 * len(of_a_run) > len(values) and not values.keys() & Experiment.model_fields.keys():
        raise ConfigError(f"{path} is a run's configuration, not an experiment; start it with populora run -c {path}")
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}: {key}: {said}" if key else f"{path}: {said}") from error


def planned(experiment: Experiment) -> list[Planned]:
    """Return every run, seed by seed, so that an unfinished experiment is balanced over arms. Raises ConfigError."""
    seeds = list(dict.fromkeys(seed for arm in experiment.arms for seed in arm.seeds or experiment.seeds))
    found = [
        _planned(experiment, arm, seed)
        for seed in sorted(seeds)
        for arm in experiment.arms
        if seed in (arm.seeds or experiment.seeds)
    ]
    arms: dict[str, str] = {}
    for one in found:
        if (other := arms.setdefault(one.run_id, one.arm)) != one.arm:
            raise ConfigError(f"arms {other} and {one.arm} both have the run {one.run_id}")
    usual = {one.arm: one for one in reversed(found)}  # of each arm, the run of its first seed
    for first, second in experiment.compared():
        _check_scored_alike(usual[first], usual[second], experiment.primary.measure)
    pair = [usual[arm] for arm in experiment.primary.contrast]
    if experiment.primary.over != "mean":
        _check_as_many(experiment.primary, *pair)
    if not set.intersection(*({one.seed for one in found if one.arm == arm} for arm in experiment.primary.contrast)):
        raise ConfigError(f"primary.contrast: {' and '.join(experiment.primary.contrast)} share no seed, and pairs are by seed")
    for one in pair:
        _check_measured(experiment.primary, one)
    return found


def _check_measured(rule: Primary, one: Planned) -> None:
    """Raise ConfigError for a measure or a group of problems that the scores of a run do not have."""
    attempts = one.config.benchmark.attempts
    measures = [GREEDY, *(["avg@1", f"pass@{attempts}"] if attempts else [])]
    if rule.measure not in measures:
        more = "" if attempts else "; benchmark.attempts draws samples"
        raise ConfigError(f"primary.measure: {rule.measure!r}, but {one.arm} has {', '.join(map(repr, measures))}{more}")
    if rule.group != "all" and not GROUP.fullmatch(rule.group):
        raise ConfigError(f"primary.group: {rule.group!r}; choose all, {', '.join(Kind)}, or a band such as 'deduction band 3'")
    _, kind = ONE_KIND.get(one.config.benchmark.suite, ("", ""))
    if kind and rule.group != "all" and not rule.group.startswith(kind):
        raise ConfigError(f"primary.group: {rule.group!r}, but {one.arm} is scored on {one.config.benchmark.suite}")
    if " band " in rule.group:
        _check_band(rule, one)


def _check_band(rule: Primary, one: Planned) -> None:
    """Raise ConfigError for a band or depth that the suite does not have, or for an extreme: bands have only a mean."""
    kind, _, band = rule.group.partition(" band ")
    problems = OwnSuites().problems(one.config.benchmark.suite)
    bands = [str(number) for number in sorted(set(problems.filter(pc.equal(problems["kind"], kind))["band"].to_pylist()))]
    if band not in bands:
        said = f"{one.config.benchmark.suite} has the bands {', '.join(bands)} of {kind}"
        raise ConfigError(f"primary.group: {rule.group!r}, but {said}")
    if rule.over != "mean":
        raise ConfigError(f"primary.over: {rule.over!r}, but {rule.group!r} is one band; use 'mean', or a kind")


def _check_scored_alike(first: Planned, second: Planned, measure: str) -> None:
    """Raise ConfigError unless both arms of a contrast are scored on the same problems, and alike where `measure` samples.

    Scores of teachers never count.
    """
    keys = [("benchmark", "suite"), ("benchmark", "limit"), *([("engine", "temperature")] if measure != GREEDY else [])]
    for group, key in keys:
        ours, theirs = (getattr(getattr(one.config, group), key) for one in (first, second))
        if ours != theirs:
            said = f"{group}.{key} is {ours!r} for {first.arm} and {theirs!r} for {second.arm}"
            raise ConfigError(f"{said}; arms that are compared must be scored alike")


def _check_as_many(rule: Primary, first: Planned, second: Planned) -> None:
    """Raise ConfigError unless both arms score as many members: the best of several is higher by chance alone."""
    ours, theirs = (one.config.population.students for one in (first, second))
    if ours != theirs:
        said = f"primary.over is {rule.over!r}, but {first.arm} has {ours} students and {second.arm} {theirs}"
        raise ConfigError(f"{said}; use 'mean', or arms with as many students")


def _planned(experiment: Experiment, arm: Arm, seed: int) -> Planned:
    run_id = f"{arm.runs or f'{experiment.name}-{arm.name}'}-s{seed}"
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(f"arm {arm.name}: the run id {run_id} is longer than 40 characters")
    try:
        values = _over(_over(dump(load(arm.config)), experiment.settings), arm.settings)
        config = parse(values | {"seed": seed})
    except ConfigError as error:
        raise ConfigError(f"arm {arm.name}: {error}") from error
    return Planned(arm.name, seed, run_id, config)


def _over(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values overridden by the settings, group by group."""
    merged = dict(values)
    for key, value in settings.items():
        known = merged.get(key)
        merged[key] = _over(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged
