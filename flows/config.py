"""RunConfig: every setting of a run, in the groups of flows/settings.py. The files in infra/runs/ are named configurations.

One frozen pydantic model. Imports no Prefect.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from flows import allowed
from flows.near_names import hint, key_hint
from flows.settings import (
    USUAL_ROW_TOKENS,
    BenchmarkRule,
    Cost,
    EngineRule,
    Evolution,
    ExperimentRule,
    Group,
    Learning,
    Model,
    Population,
    Positive,
    Propose,
    RatingRule,
    Retention,
    Reward,
    SandboxRule,
    Seeding,
    Solve,
    StrategyRule,
)
from stages.core.method.culling import replaced_members
from stages.core.prompts.styles import Kind

PROJECT = Path(__file__).resolve().parent.parent
RUNS = PROJECT / "infra" / "runs"


class ConfigError(ValueError):
    """The user's configuration cannot be used; the message is one line that names the key."""


BETWEEN_FIELDS: list[Any] = [
    {
        "if": {"properties": {"mode": {"const": "single"}}, "required": ["mode"]},
        "then": {"properties": {"population": {"properties": {"teachers": {"const": 1}, "students": {"const": 1}}}}},
    },
    {
        "if": {
            "properties": {"engine": {"properties": {"kind": {"const": "vllm"}}, "required": ["kind"]}},
            "required": ["engine"],
        },
        "then": {"properties": {"engine": {"properties": {"python": {"minLength": 1}}, "required": ["python"]}}},
    },
    {
        "if": {
            "properties": {"population": {"properties": {"teachers": {"const": 0}}, "required": ["teachers"]}},
            "required": ["population"],
        },
        "then": {
            "properties": {"propose": {"properties": {"curriculum": {"minLength": 1}}, "required": ["curriculum"]}},
            "required": ["propose"],
        },
    },
    {
        "if": {
            "properties": {"learning": {"properties": {"skip_zero_groups": {"const": True}}, "required": ["skip_zero_groups"]}},
            "required": ["learning"],
        },
        "then": {
            "properties": {
                "learning": {
                    "properties": {"entropy_bonus": {"const": 0}, "kl": {"const": 0}},
                    "required": ["entropy_bonus"],
                }
            }
        },
    },
    {
        "if": {
            "properties": {"learning": {"properties": {"off_policy_steps": {"const": 1}}, "required": ["off_policy_steps"]}},
            "required": ["learning"],
        },
        "then": {
            "properties": {
                "learning": {"properties": {"importance_cap": {"exclusiveMinimum": 0}}, "required": ["importance_cap"]}
            }
        },
    },
]
"""The part of `_consistent` that JSON schema can express: Prefect's server rejects such values before a run exists."""


class RunConfig(Group):
    """A run: population or single agent, from generation 0 to `generations` - 1."""

    model_config = ConfigDict(json_schema_extra={"allOf": BETWEEN_FIELDS})

    mode: Literal["population", "single"] = Field(
        "population",
        title="Mode",
        description="population: teachers and students are different adapters. single: one adapter plays both roles.",
    )
    generations: Positive = Field(
        200, title="Generations", description="Number of generations. May be raised, but not lowered, when a run is resumed."
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(0, title="Seed", description="Seed of every random draw of the run.")
    threads: Positive = Field(
        2,
        title="CPU threads",
        description="Threads of engine and trainer in each process. Runs are byte-identical only with the same number.",
    )
    model: Model = Model()
    population: Population = Population()
    seeding: Seeding = Seeding()
    propose: Propose = Propose()
    solve: Solve = Solve()
    reward: Reward = Reward()
    learning: Learning = Learning()
    strategy: StrategyRule = StrategyRule()
    rating: RatingRule = RatingRule()
    evolution: Evolution = Evolution()
    engine: EngineRule = EngineRule()
    sandbox: SandboxRule = SandboxRule()
    benchmark: BenchmarkRule = BenchmarkRule()
    retention: Retention = Retention()
    experiment: ExperimentRule = ExperimentRule()
    cost: Cost = Cost()

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if self.mode == "single" and (self.population.teachers, self.population.students) != (1, 1):
            raise ValueError("mode single has one adapter: population.teachers and population.students must be 1")
        if bool(self.propose.curriculum) != (self.population.teachers == 0):
            raise ValueError("set propose.curriculum if and only if population.teachers is 0: the generator replaces teachers")
        if self.propose.kinds == ("induction",) and self.population.teachers:
            raise ValueError("propose.kinds: inductions are about programs of other kinds; add deduction or abduction")
        if self.propose.curriculum and self.solve.top_up:
            raise ValueError("solve.top_up would add tasks that propose.curriculum did not choose; set it to false")
        if self.propose.curriculum and self.propose.mixed_references:
            raise ValueError("propose.references_from = mixed needs teachers: with propose.curriculum there are no prompts")
        if self.experiment.leak and self.reads_grades:
            raise ValueError(
                "experiment.leak cannot be combined with propose.curriculum, propose.references_from = mixed, solve.easy_share "
                "or solve.mixed_share, which read the judge's grades"
            )
        if self.solve.easy_share and self.solve.mixed_share:
            raise ValueError("set solve.easy_share or solve.mixed_share, not both: each is a share of all tasks of a student")
        if self.solve.trained_attempts > self.solve.attempts:
            raise ValueError("solve.trained_attempts is more than solve.attempts")
        if self.solve.mixed_share and self.solve.trained_attempts == 1:
            raise ValueError("solve.mixed_share with solve.trained_attempts = 1: one attempt cannot have mixed results")
        rule = self.learning
        if rule.frozen == "students" and not self.population.teachers:
            raise ValueError("learning.frozen = students with population.teachers = 0 trains nobody")
        if rule.skip_zero_groups and (rule.entropy_bonus or rule.kl):
            raise ValueError("learning.skip_zero_groups leaves out groups that entropy_bonus or kl would train; set both to 0")
        if rule.attention == "flex" and not self.model.device.startswith("cuda"):
            raise ValueError("learning.attention = flex needs model.device = cuda: FlexAttention has no gradient on a CPU")
        answers = self.solve.trained_attempts or self.solve.attempts
        if rule.estimator == "pass_at_k" and rule.pass_at >= answers:
            raise ValueError(f"learning.pass_at must be less than the {answers} trained attempts at a task, or no student learns")
        if rule.off_policy_steps and not rule.importance_cap:
            raise ValueError(
                "learning.off_policy_steps trains weights on samples of earlier ones, which learning.importance_cap corrects; "
                "set it, for example to 2"
            )
        if rule.row_tokens > max(rule.micro_batch_tokens, USUAL_ROW_TOKENS):
            raise ValueError(
                f"learning.row_tokens ({rule.row_tokens}) is more than learning.micro_batch_tokens ({rule.micro_batch_tokens}): "
                "a row is computed in one pass"
            )
        if self.engine.kind == "vllm" and not self.engine.python:
            raise ValueError("engine.kind vllm needs engine.python, the interpreter that `make vllm` made")
        if self.reward.trace_weight and self.model.style not in ("auto", "trace"):
            raise ValueError(f"reward.trace_weight needs model.style trace, whose answers have a trace, not {self.model.style}")
        self._check_copies()
        allowed.check_interpreter(self.engine.python)
        allowed.check_sandbox(self.sandbox.kind)
        return self

    def _check_copies(self) -> None:
        """Raise ValueError unless all copies of an adapter get the same prompts equally often."""
        copies = self.strategy.population
        if not copies:
            return
        if copies % 2:
            raise ValueError(f"strategy.population must be even, not {copies}: copies come in pairs with opposite noise")
        dealt = {"student": ("solve.attempts", self.solve.attempts), "teacher": ("propose.group_size", self.propose.group_size)}
        for role in sorted(self.copied_roles):
            key, count = dealt[role]
            if count % copies:
                raise ValueError(f"{key} is {count}, which strategy.population = {copies} does not divide: copies share a prompt")
        if self.solve.trained_attempts:
            raise ValueError("solve.trained_attempts must be 0 with strategy.population: every attempt says what its copy earns")
        if self.learning.divide == "rows":
            raise ValueError("learning.divide cannot be rows with strategy.population: there are no gradients to sum")
        if self.learning.off_policy_steps:
            raise ValueError("learning.off_policy_steps cannot be combined with strategy.population: copies are made anew")
        if self.learning.skip_zero_groups:
            raise ValueError("learning.skip_zero_groups leaves out gradients; strategy.population has none: set one of them")

    @property
    def copied_roles(self) -> frozenset[str]:
        """Roles whose completions perturbed copies write: those that an evolution strategy trains."""
        roles = ("teacher", "student") if self.population.teachers else ("student",)
        trained = (role for role in roles if self.learning.frozen != f"{role}s")
        return frozenset(trained if self.strategy.population else ())

    @property
    def served(self) -> int:
        """Adapters that an engine may have to serve at once: one per role and member, or the copies of each."""
        return max(1, self.strategy.population) * (self.population.teachers + self.population.students)

    @property
    def adapters(self) -> int:
        """Adapters of the population: one per member, and one in all for a single agent."""
        return 1 if self.mode == "single" else self.population.teachers + self.population.students

    @property
    def matches(self) -> int:
        """Matches of a generation: one per teacher, or one per student where the generator poses the tasks."""
        return self.population.teachers or self.population.students

    @property
    def engineless(self) -> frozenset[str]:
        """Stages that need no engine and no GPU in this run: propose, where a generator poses the tasks."""
        return frozenset({"propose"} if self.propose.curriculum else ())

    @property
    def reads_grades(self) -> bool:
        """Whether tasks are chosen by the grades of the last generations."""
        replayed = self.solve.easy_share or self.solve.mixed_share
        return bool(self.propose.curriculum or replayed or self.propose.mixed_references)

    @property
    def proposals_per_teacher(self) -> int:
        """Kinds x groups x group size: the tasks of a match."""
        return self.prompts_per_teacher * self.propose.group_size

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of task that are written."""
        return tuple(map(Kind, self.propose.kinds))

    @property
    def prompts_per_teacher(self) -> int:
        """Kinds x groups: the prompts of a match."""
        return len(self.propose.kinds) * self.propose.groups

    def recomputing(self, choice: bool | Literal["auto"], above: int = 0) -> "RunConfig":
        """Return this configuration with another choice of `learning.gradient_checkpointing` and `learning.recompute_above`."""
        chosen = {"gradient_checkpointing": choice, "recompute_above": above}
        return self.model_copy(update={"learning": self.learning.model_copy(update=chosen)})


def configurations() -> list[str]:
    """Return the names of the shipped configurations."""
    return sorted(file.stem for file in RUNS.glob("*.toml"))


def setting_keys(groups: bool = False) -> list[str]:
    """Return every dotted key of a configuration, in the order of the settings; with `groups` also the names of their groups."""
    keys = []
    for name, default in RunConfig():
        own = [f"{name}.{field}" for field in type(default).model_fields] if isinstance(default, Group) else []
        keys += [name, *own] if groups or not own else own
    return keys


def load(source: str, settings: Iterable[str] = ()) -> RunConfig:
    """The configuration `source` (a TOML file, or a name in infra/runs/) with `key=value` settings over it.

    Raises ConfigError with one line that names the file or the key.
    """
    path = Path(source) if source.endswith(".toml") else RUNS / f"{source}.toml"
    if not path.is_file():
        known = configurations()
        raise ConfigError(f"no configuration {source!r}: give a .toml file or one of {', '.join(known)}{hint(source, known)}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    found = apply(values, settings)
    check_operators(found)
    return found


ONE_PARENT, TWO_PARENTS = frozenset(["M1", "M2", "M3", "M4", "M5", "C1"]), frozenset(["X1", "X2", "X3", "X4", "C2"])
"""Shipped operators by the number of parents that they take."""


def check_operators(config: RunConfig) -> None:
    """Raise ConfigError if an evolution event of the run could apply no operator, or one to too few or too many parents.

    Older runs may have such a configuration.
    """
    rule, sizes = config.evolution, (config.population.teachers, config.population.students)
    if not 0 < rule.every < config.generations:
        return
    for key, names, others, parents in (
        ("mutations", rule.mutations, TWO_PARENTS, "one parent"),
        ("crossovers", rule.crossovers, ONE_PARENT, "two parents"),
    ):
        if misplaced := sorted(others.intersection(names)):
            raise ConfigError(
                f"evolution.{key}: {', '.join(misplaced)} does not make a child of {parents}; see docs/evolution.md"
            )
    left = [members - count for members in sizes if (count := replaced_members(members, rule.gamma))]
    if left and not (rule.mutations or rule.crossovers):
        raise ConfigError("evolution.mutations and .crossovers are both empty: name an operator, or set evolution.every=0")
    if left and min(left) < 2 and not rule.mutations:
        raise ConfigError(
            "evolution.mutations is empty, but an event leaves one member of a role, and crossover needs two: name a mutation, "
            "or set a larger population or a smaller evolution.gamma"
        )


def apply(values: dict[str, Any], settings: Iterable[str]) -> RunConfig:
    """The configuration of plain values with `key=value` settings over them. Raises ConfigError naming the key."""
    changed: dict[str, Any] = json.loads(json.dumps(values))
    for setting in settings:
        apply_setting(changed, setting)
    return parse(changed)


def parse(values: dict[str, Any]) -> RunConfig:
    """A RunConfig from plain values. Raises ConfigError naming the first bad key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "configuration"
        if first["type"] == "extra_forbidden":
            raise ConfigError(unknown_key(key, first["input"])) from error
        raise ConfigError(f"{key}: {first['msg'].removeprefix('Value error, ')}") from error


def unknown_key(key: str, value: object = None) -> str:
    """Return the message about a key that is no setting. A group (`value` has its settings) is named by its first one."""
    if isinstance(value, Mapping) and value:
        key = f"{key}.{next(iter(value))}"
    return f"{key}: there is no such setting{key_hint(key, setting_keys(groups=True)) or '; populora explain lists them'}"


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration with what has become a setting since then, at its default: an upgrade strands no run."""
    try:
        return dump(parse(values))
    except ConfigError:
        return values  # of a version that knew settings which are gone; whoever compares names them


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ between two dumped configurations."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}")
    return found


def apply_setting(values: dict[str, Any], setting: str) -> None:
    """Sets a dotted key; the value is TOML where it parses as TOML, otherwise a plain string."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting}: write key=value")
    *groups, name = key.strip().split(".")
    for group in groups:
        values = values.setdefault(group, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {setting}: {group} is not a group of settings")
    try:
        values[name] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        values[name] = text


def dump(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain JSON values, defaults included."""
    return json.loads(config.model_dump_json())


def identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a dumped configuration that a run is known by: all but `cost`, which describes machines."""
    return {key: value for key, value in values.items() if key != "cost"}


def priced(config: RunConfig, description: Mapping[str, Any] | None) -> RunConfig:
    """The configuration with the prices that the run began with (in the clock of its run.json), unless it has its own."""
    known = {} if description is None else description.get("clock", {}).get("cost", {})
    return config if any(config.cost.model_dump().values()) or not known else parse(dump(config) | {"cost": known})
