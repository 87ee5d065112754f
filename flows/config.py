"""RunConfig: every knob of a run, nothing else.

One frozen pydantic model. Defaults are the paper's (arXiv 2605.16727) or, where it is silent, the decisions of docs/method.md;
the files in infra/runs/ say what a named configuration changes. Imports no Prefect.
"""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PROJECT = Path(__file__).resolve().parent.parent
RUNS = PROJECT / "infra" / "runs"

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class ConfigError(ValueError):
    """The user's configuration cannot be used; the message is one line that names the key."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Model(_Group):
    """The frozen base model and the shape of every adapter."""

    name: str = Field(
        "infra/models/seed", title="Base model", description="Folder (relative ones start at the project) or hub name."
    )
    style: Literal["compact", "chat"] = Field(
        "compact", description="Prompt style: marker tokens for the seed model, English for others."
    )
    rank: Positive = 32
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="Of the base model's arithmetic; adapters are float32 masters."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1 ...; auto takes the first GPU if there is one.")


class Population(_Group):
    """How many of each role. One in each role with mode = single is one adapter that plays both."""

    teachers: Positive = 4
    students: Positive = 4
    matchmaker: str = Field("pfsp", description="pfsp (weight p(1-p)), random, round_robin, or path/to/file.py:function.")


class Propose(_Group):
    """What each teacher writes a generation: 3 kinds x groups x group_size proposals."""

    groups: Positive = Field(16, description="Different prompts a kind.")
    group_size: Positive = Field(4, description="Proposals for one prompt; their rewards share a baseline.")
    references: Annotated[int, Field(ge=0, le=16)] = Field(6, description="Past tasks shown in a prompt, drawn from the buffer.")
    num_inputs: Annotated[int, Field(ge=2, le=20)] = Field(
        10, description="Inputs of an induction task; the first half is shown."
    )
    max_new_tokens: Positive = 1024
    buffer: Literal["shared", "own"] = "shared"
    buffer_size: Positive = Field(16384, description="Newest tasks kept, a kind.")


class Solve(_Group):
    """What each student does with its teacher's valid tasks."""

    attempts: Annotated[int, Field(ge=2)] = 8
    max_new_tokens: Positive = 1024
    trained_attempts: Annotated[int, Field(ge=0)] = Field(0, description="Attempts a task that train the student; 0 means all.")


class Reward(_Group):
    """Who earns what: teacher 1 - s for 0 < s, 0 for s = 0, -1 invalid; student +1, -0.5, -1 on a format error."""

    rule: str = Field("populora", description="populora, azr (-0.5 at the extremes), or path/to/file.py:function.")
    gates: tuple[str, ...] = Field((), description="Task gates that are on: constant, identity, verbatim_output, quoted_input.")


class Learning(_Group):
    """The policy gradient: one optimizer step an adapter and generation."""

    estimator: str = Field(
        "reinforce_plus_plus_baseline", description="Or trr_plus_plus, grpo, dr_grpo, or path/to/file.py:function."
    )
    teacher_baseline: Literal["group", "kind", "none"] = "group"
    whiten_shift: bool = Field(True, description="Subtract the token-weighted mean when whitening, as veRL does.")
    learning_rate: Annotated[float, Field(ge=0)] = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    clip_range: Annotated[float, Field(gt=0)] = 0.2
    entropy_bonus: float = 0.001
    kl: Annotated[float, Field(ge=0)] = 0.0
    importance_cap: Annotated[float, Field(ge=0)] = Field(0.0, description="Truncates engine/trainer weights; 0 switches it off.")
    micro_batch_tokens: Positive = 16384
    gradient_checkpointing: bool = False
    adapters_per_group: Annotated[int, Field(ge=0)] = Field(0, description="Adapters in one pass; 0 means all of them.")


class RatingRule(_Group):
    """TrueSkill constants and the rule that turns solve rates into results."""

    mu: float = 25.0
    sigma: float = 25.0 / 3.0
    beta: float = 25.0 / 6.0
    tau: float = 25.0 / 300.0
    draw_probability: Share = 0.1
    draw_margin: Annotated[float, Field(ge=0)] = Field(0.02, description="A draw when observed and expected rate differ by less.")


class Evolution(_Group):
    """Every `every` generations the bottom share `gamma` of each role, by mu - kappa*sigma, is replaced."""

    every: Annotated[int, Field(ge=0)] = Field(10, description="0 switches evolution off.")
    gamma: Share = 0.25
    kappa: float = 3.0
    crossover_share: Share = 0.5
    mix: Literal["draw", "alternate"] = Field("draw", description="draw: by chance; alternate: mutation and crossover in turn.")
    mutations: tuple[str, ...] = ("M1", "M2", "M3", "M4")
    crossovers: tuple[str, ...] = ("X1", "X2", "X3", "X4")
    space: Literal["delta", "paper"] = "delta"
    child_rating: Literal["inherit", "fresh"] = "inherit"
    min_age: Annotated[int, Field(ge=0)] = Field(0, description="Evolution events that a newborn is protected for.")


class SandboxRule(_Group):
    """Where model-written programs run, and within which limits."""

    kind: Literal["docker", "local"] = "docker"
    image: str = "populora-sandbox:local"
    runtime: str = Field("", description="Container runtime, such as runsc; empty takes Docker's default.")
    containers: Positive = 2
    cpu_seconds: Annotated[float, Field(gt=0)] = 2.0
    wall_seconds: Annotated[float, Field(gt=0)] = 10.0
    memory_mb: Positive = 256
    recycle_after: Positive = 2000


class EngineRule(_Group):
    """What makes completions."""

    kind: Literal["transformers", "vllm"] = "transformers"
    python: str = Field("", description="Interpreter of the rollout worker; empty takes this one (vLLM wants its own).")
    temperature: Annotated[float, Field(gt=0)] = 1.0
    batch_tokens: Positive = Field(131072, description="Cache positions of one decoding batch.")


class Seeding(_Group):
    """The buffers at the start: valid tasks that the base model wrote from the identity function, as AZR does."""

    rows: Positive = Field(256, description="Tasks a kind.")
    max_rounds: Positive = 40


class BenchmarkRule(_Group):
    """Scores inside the run, on the members as trained."""

    every: Annotated[int, Field(ge=0)] = Field(0, description="Generations between benchmarks; 0 means only the last one.")
    suite: str = "probe-dev"
    limit: Annotated[int, Field(ge=0)] = Field(0, description="Problems scored, evenly over kinds and bands; 0 means all.")
    attempts: Annotated[int, Field(ge=0)] = Field(0, description="Sampled attempts beside the greedy one, for pass@k.")
    members: Literal["all", "students"] = "students"
    max_new_tokens: Positive = 1024


class Retention(_Group):
    """Which adapter files stay after a generation is done; what goes leaves a tombstone with its digest and the reason."""

    on: bool = True
    newest: Positive = Field(2, description="Optimizer states of that many newest generations stay.")
    optimizer_every: Positive = Field(20, description="Optimizer states of every so-manieth generation stay.")
    adapter_every: Positive = Field(
        5, description="Adapters of every so-manieth generation stay, and at births, deaths, benchmarks."
    )


class RunConfig(_Group):
    """A run: population or single agent, from generation 0 to `generations` - 1."""

    mode: Literal["population", "single"] = "population"
    generations: Positive = 200
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    threads: Positive = Field(2, description="CPU threads of engine and trainer; part of what makes runs byte-identical.")
    model: Model = Model()
    population: Population = Population()
    seeding: Seeding = Seeding()
    propose: Propose = Propose()
    solve: Solve = Solve()
    reward: Reward = Reward()
    learning: Learning = Learning()
    rating: RatingRule = RatingRule()
    evolution: Evolution = Evolution()
    engine: EngineRule = EngineRule()
    sandbox: SandboxRule = SandboxRule()
    benchmark: BenchmarkRule = BenchmarkRule()
    retention: Retention = Retention()

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if self.mode == "single" and (self.population.teachers, self.population.students) != (1, 1):
            raise ValueError("mode single has one adapter: population.teachers and population.students must be 1")
        if self.solve.trained_attempts > self.solve.attempts:
            raise ValueError("solve.trained_attempts is more than solve.attempts")
        if self.engine.kind == "vllm" and not self.engine.python:
            raise ValueError("engine.kind vllm needs engine.python, the interpreter that `make vllm` made")
        return self

    @property
    def proposals_per_teacher(self) -> int:
        """3 kinds x groups x group size."""
        return 3 * self.propose.groups * self.propose.group_size


def load(source: str = "smoke", settings: Iterable[str] = ()) -> RunConfig:
    """The configuration `source` (a TOML file, or a name in infra/runs/) with `key=value` settings over it.

    Raises ConfigError with one line that names the file or the key.
    """
    path = Path(source) if source.endswith(".toml") else RUNS / f"{source}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in RUNS.glob("*.toml")))
        raise ConfigError(f"no configuration {source!r}: give a .toml file or one of {known}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return apply(values, settings)


def apply(values: dict[str, Any], settings: Iterable[str]) -> RunConfig:
    """The configuration of plain values with `key=value` settings over them. Raises ConfigError naming the key."""
    changed: dict[str, Any] = json.loads(json.dumps(values))
    for setting in settings:
        _apply(changed, setting)
    return parse(changed)


def parse(values: dict[str, Any]) -> RunConfig:
    """A RunConfig from plain values. Raises ConfigError naming the first bad key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "configuration"
        raise ConfigError(f"{key}: {first['msg'].removeprefix('Value error, ')}") from error


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


def _apply(values: dict[str, Any], setting: str) -> None:
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
