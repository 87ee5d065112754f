"""The groups of a run's configuration: every knob with its title, description, default, choices and limits.

The same text is the reference for the TOML files in infra/runs/ and the form of the Prefect UI. Defaults are the paper's
(arXiv 2605.16727) or, where it is silent, the decisions of docs/method.md. Imports no Prefect.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from stages.core.sandbox.protocol import IMAGE

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Amount = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]


class Group(BaseModel):
    """Settings that belong together: frozen, and a name that is not one of them is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Model(Group):
    """The frozen base model and the shape of every adapter."""

    name: str = Field("infra/models/seed", title="Base model", description="Folder (relative to the project) or hub name.")
    revision: str = Field(
        "", title="Revision", description="Commit of a hub model; empty: the newest when the run begins, which run.json keeps."
    )
    style: Literal["compact", "chat"] = Field(
        "compact", title="Prompt style", description="Marker tokens for the seed model, English for others."
    )
    rank: Positive = Field(32, title="LoRA rank")
    alpha: Above0 = Field(32.0, title="LoRA alpha", description="Adapters are scaled by alpha / rank.")
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        title="Adapted layers",
        description="Names of linear layers, in every block.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", title="Arithmetic", description="Of the base model; adapters are float32 masters."
    )
    device: str = Field("auto", title="Device", description="cpu, cuda, cuda:1 ...; auto takes the first GPU if there is one.")


class Population(Group):
    """How many of each role. One in each role with mode = single is one adapter that plays both."""

    teachers: Positive = Field(4, title="Teachers")
    students: Positive = Field(4, title="Students")
    matchmaker: str = Field(
        "pfsp", title="Matchmaker", description="pfsp (weight p(1-p)), random, round_robin, or path/to/file.py:function."
    )


class Propose(Group):
    """What each teacher writes a generation: 3 kinds x groups x group_size proposals."""

    groups: Positive = Field(16, title="Prompts a kind", description="Different prompts a kind.")
    group_size: Positive = Field(4, title="Proposals a prompt", description="Their rewards share a baseline.")
    references: Annotated[int, Field(ge=0, le=16)] = Field(
        6, title="References", description="Past tasks shown in a prompt, drawn from the buffer."
    )
    num_inputs: Annotated[int, Field(ge=2, le=20)] = Field(
        10, title="Inputs of an induction task", description="The first half is shown."
    )
    max_new_tokens: Positive = Field(1024, title="Longest proposal", description="In tokens.")
    buffer: Literal["shared", "own"] = Field("shared", title="Buffer", description="One of all teachers, or one each.")
    buffer_size: Positive = Field(16384, title="Buffer size", description="Newest tasks kept, a kind.")


class Solve(Group):
    """What each student does with its teacher's valid tasks."""

    attempts: Annotated[int, Field(ge=2)] = Field(8, title="Attempts a task")
    max_new_tokens: Positive = Field(1024, title="Longest answer", description="In tokens.")
    trained_attempts: Count = Field(0, title="Trained attempts", description="Attempts a task that train; 0 means all.")
    top_up: bool = Field(
        False, title="Top-up", description="Stored tasks, never rated, fill the batches of teachers that wrote too few."
    )


class Reward(Group):
    """Who earns what: teacher 1 - s for 0 < s, 0 for s = 0, -1 invalid; student +1, -0.5, -1 on a format error."""

    rule: str = Field("populora", title="Rule", description="populora, azr (-0.5 at the extremes), or path/to/file.py:function.")
    gates: tuple[str, ...] = Field(
        (),
        title="Gates",
        description="Task gates that are on: constant, identity, ignores_input, verbatim_output, quoted_input, telling_message.",
    )


class Learning(Group):
    """The policy gradient: one optimizer step an adapter and generation."""

    estimator: str = Field(
        "reinforce_plus_plus_baseline",
        title="Advantage estimator",
        description="Or trr_plus_plus, grpo, dr_grpo, or path/to/file.py:function.",
    )
    teacher_baseline: Literal["group", "kind", "none"] = Field(
        "group", title="Teachers' baseline", description="Mean reward of the prompt's group, of the kind, or none."
    )
    whiten_shift: bool = Field(
        True, title="Whitening shifts", description="Subtract the token-weighted mean when whitening, as veRL does."
    )
    learning_rate: Amount = Field(1e-5, title="Learning rate")
    frozen: Literal["nobody", "teachers", "students"] = Field(
        "nobody",
        title="Frozen role",
        description="Plays and is rated, but takes no step; of a single agent, its samples in that role.",
    )
    warmup: Count = Field(
        0, title="Warm-up", description="Steps over which an adapter's rate rises from fresh moments on; 0: none."
    )
    betas: tuple[float, float] = Field((0.9, 0.999), title="Betas", description="Of AdamW.")
    weight_decay: Amount = Field(0.0, title="Weight decay")
    max_grad_norm: Above0 = Field(1.0, title="Largest gradient norm", description="Of one adapter; larger ones are scaled down.")
    clip_range: Above0 = Field(0.2, title="Clip range", description="Of the probability ratio.")
    entropy_bonus: float = Field(0.001, title="Entropy bonus")
    kl: Amount = Field(0.0, title="KL weight", description="Against the base model.")
    importance_cap: Amount = Field(
        0.0, title="Importance cap", description="Truncates engine/trainer weights; 0 switches it off."
    )
    micro_batch_tokens: Positive = Field(16384, title="Micro batch", description="Tokens of one backward pass.")
    gradient_checkpointing: bool = Field(False, title="Gradient checkpointing", description="Less memory, more arithmetic.")
    adapters_per_group: Count = Field(0, title="Adapters a pass", description="Adapters in one pass; 0 means all of them.")


class RatingRule(Group):
    """TrueSkill constants and the rule that turns solve rates into results."""

    mu: float = Field(25.0, title="Mu at the start")
    sigma: float = Field(25.0 / 3.0, title="Sigma at the start")
    beta: float = Field(25.0 / 6.0, title="Beta", description="Spread of one performance.")
    tau: float = Field(25.0 / 300.0, title="Tau", description="Growth of sigma between generations.")
    draw_probability: Share = Field(0.1, title="Draw probability")
    draw_margin: Amount = Field(0.02, title="Draw margin", description="A draw when observed and expected rate differ by less.")


class Evolution(Group):
    """Every `every` generations the bottom share `gamma` of each role, by mu - kappa*sigma, is replaced."""

    every: Count = Field(10, title="Generations between events", description="0 switches evolution off.")
    gamma: Share = Field(0.25, title="Share replaced")
    kappa: float = Field(3.0, title="Kappa")
    crossover_share: Share = Field(0.5, title="Share of crossovers", description="The others are mutations.")
    mix: Literal["draw", "alternate"] = Field(
        "draw", title="Mix", description="draw: by chance; alternate: mutation and crossover in turn."
    )
    mutations: tuple[str, ...] = Field(("M1", "M2", "M3", "M4"), title="Mutations")
    crossovers: tuple[str, ...] = Field(("X1", "X2", "X3", "X4"), title="Crossovers")
    space: Literal["delta", "paper"] = Field("delta", title="Space", description="Operators on delta W, or on the factors.")
    child_rating: Literal["inherit", "fresh"] = Field("inherit", title="Ratings of offspring")
    min_age: Count = Field(0, title="Protection", description="Evolution events that a newborn is protected for.")


class SandboxRule(Group):
    """Where model-written programs run, and within which limits."""

    kind: Literal["docker", "local"] = Field("docker", title="Kind")
    image: str = Field(IMAGE, title="Image")
    runtime: str = Field("", title="Runtime", description="Container runtime, such as runsc; empty takes Docker's default.")
    containers: Positive = Field(2, title="Containers")
    cpu_seconds: Above0 = Field(2.0, title="CPU seconds a call")
    wall_seconds: Above0 = Field(10.0, title="Seconds a call")
    memory_mb: Positive = Field(256, title="Memory a program", description="In MB.")
    recycle_after: Positive = Field(2000, title="Programs a container", description="Then it is replaced by a fresh one.")


class EngineRule(Group):
    """What makes completions."""

    kind: Literal["transformers", "vllm"] = Field("transformers", title="Kind")
    python: str = Field("", title="Interpreter", description="Of the rollout worker; empty takes this one (vLLM wants its own).")
    temperature: Above0 = Field(1.0, title="Temperature")
    shards: Positive = Field(
        1, title="Shards", description="Parts of propose, solve and benchmark, which several machines may share; 1: whole."
    )
    batch_tokens: Positive = Field(131072, title="Decoding batch", description="Cache positions of one decoding batch.")
    window: Count = Field(0, title="Window", description="Tokens of a prompt and its completion; 0 takes the model's own.")
    memory_share: Share = Field(0.6, title="Share of the GPU", description="What vLLM sets aside on it.")
    compile: bool = Field(True, title="Compile", description="vLLM: off starts faster and decodes slower.")
    max_drift: Amount = Field(
        0.0,
        title="Largest mean drift",
        description="Mean difference of engine and trainer, in nats a token, above which a run stops; 0: by the arithmetic.",
    )
    max_token_drift: Amount = Field(
        0.0,
        title="Largest drift of a token",
        description="The same for a single token, where the engine is checked before it generates; 0: by the arithmetic.",
    )


class Seeding(Group):
    """The buffers at the start: valid tasks that the base model wrote from the identity function, as AZR does."""

    rows: Positive = Field(256, title="Tasks a kind")
    max_rounds: Positive = Field(40, title="Rounds at most")


class BenchmarkRule(Group):
    """Scores inside the run, on the members as trained."""

    every: Count = Field(0, title="Generations between benchmarks", description="0 means only the last one.")
    suite: str = Field("probe-dev", title="Probe", description="The project's own: probe-dev or probe-test.")
    suites: tuple[str, ...] = Field(
        (), title="Public suites", description="Also scored, such as gsm8k; see docs/benchmarks.md. Their data must be there."
    )
    style: Literal["", "chat", "completion", "azr"] = Field(
        "", title="Style", description="How public suites are asked; empty: as the model's tokenizer says."
    )
    limit: Count = Field(0, title="Problems", description="Problems scored, evenly over kinds and bands; 0 means all.")
    attempts: Count = Field(0, title="Sampled attempts", description="Beside the greedy one, for pass@k.")
    members: Literal["all", "students"] = Field("students", title="Who")
    children_at: tuple[Count, ...] = Field(
        (),
        title="Ages of offspring",
        description="Offspring are also scored after so many generations; 0: at birth, with their parents.",
    )
    max_new_tokens: Positive = Field(1024, title="Longest answer", description="In tokens.")


class Retention(Group):
    """Which adapter files stay after a generation is done; what goes leaves a tombstone with its digest and the reason."""

    on: bool = Field(True, title="On")
    newest: Positive = Field(2, title="Newest", description="Optimizer states of that many newest generations stay.")
    optimizer_every: Positive = Field(
        20, title="Optimizer states every", description="Those of every so-manieth generation stay."
    )
    adapter_every: Positive = Field(
        5, title="Adapters every", description="Of every so-manieth generation, and at births, deaths, benchmarks, stay."
    )
