"""The groups of a run's configuration: every setting with its title, description, default, choices and limits.

The same text is the reference for the TOML files in infra/runs/ and the form in the Prefect UI. Defaults are the paper's
(arXiv 2605.16727) or, where it is silent, the decisions of docs/method.md. Imports no Prefect. Longer than other files, so that
one file has every setting.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from stages.core.sandbox.protocol import IMAGE

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Amount = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Below1 = Annotated[float, Field(ge=0.0, lt=1.0)]
USUAL_ROW_TOKENS = 1024
TaskKind = Literal["deduction", "abduction", "induction"]
KINDS: tuple[TaskKind, ...] = ("deduction", "abduction", "induction")
REPLAYS = ("top_up", "easy_share", "mixed_share")
"""The settings of `Solve` by which stored tasks are posed again."""


def _in_order(kinds: tuple[TaskKind, ...]) -> tuple[TaskKind, ...]:
    """Return the kinds in the order of KINDS, so that equal choices are equal runs. Raise ValueError for a repeated one."""
    if len(set(kinds)) < len(kinds):
        raise ValueError("a kind is named twice")
    return tuple(kind for kind in KINDS if kind in kinds)


def _auto_or_bool(value: object, read: ValidatorFunctionWrapHandler) -> object:
    """Say all that the field takes, where pydantic would name one type of the union."""
    try:
        return read(value)
    except ValidationError:
        raise ValueError(f"{value!r} is not true, false or auto") from None


Recomputation = Annotated[
    Annotated[Literal["auto"], Field(title="by the plan", json_schema_extra={"enum": ["auto"]})]
    | Annotated[bool, Field(title="as chosen")],
    WrapValidator(_auto_or_bool),
]
"""Texts come first, and each type has a title: the form of Prefect's UI offers the types by it, and opens with the value's."""


class Group(BaseModel):
    """Settings that belong together. Frozen; an unknown name is an error, and so is a number that is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Model(Group):
    """The frozen base model and the shape of every adapter."""

    name: str = Field(
        "infra/models/seed",
        title="Base model",
        description="Folder, relative to the project, or model name on the Hugging Face hub.",
    )
    revision: str = Field(
        "",
        title="Revision",
        description="Commit of a hub model. Empty uses the newest when the run begins; run.json records it.",
    )
    style: Literal["auto", "compact", "trace", "document", "chat", "azr"] = Field(
        "auto",
        title="Prompt style",
        description="auto (by the model; run.json records it), document (documents to continue: base and small models), chat "
        "(the tokenizer's template), azr (think/answer conversation: 3B and more), compact (the seed model) or trace (a seed "
        "model that shows its steps).",
    )
    rank: Positive = Field(32, title="LoRA rank")
    alpha: Above0 = Field(32.0, title="LoRA alpha", description="Adapters are scaled by alpha / rank.")
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        title="Adapted layers",
        description="Names of the linear layers that get an adapter, in every block.",
        min_length=1,
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16",
        title="Data type",
        description="Data type of the base model. Adapters keep float32 master weights. "
        "A CPU without bfloat16 units computes in float32.",
    )
    device: str = Field(
        "auto",
        title="Device",
        description="cpu, cuda or cuda:1 (vLLM: cpu or cuda). auto uses the first GPU if there is one, else the CPU.",
    )


class Population(Group):
    """How many adapters play each role. With mode = single, one adapter plays both roles."""

    teachers: Count = Field(
        4, title="Teachers", description="0, together with propose.curriculum: the project's generator poses the tasks."
    )
    students: Positive = Field(4, title="Students")
    matchmaker: str = Field(
        "pfsp",
        title="Matchmaker",
        description="pfsp (in proportion to p(1-p)), random, round_robin, or path/to/file.py:function.",
    )


class Propose(Group):
    """What each teacher writes per generation: kinds x groups x group_size proposals."""

    kinds: Annotated[tuple[TaskKind, ...], Field(min_length=1), AfterValidator(_in_order)] = Field(
        KINDS,
        title="Kinds of task",
        description="deduction (predict the output), abduction (find an input), induction (write the program).",
        json_schema_extra={"uniqueItems": True},
    )
    groups: Positive = Field(16, title="Prompts per kind", description="Number of different prompts per task kind.")
    group_size: Positive = Field(
        4, title="Proposals per prompt", description="Proposals sampled from the same prompt. They share a reward baseline."
    )
    references: Annotated[int, Field(ge=0, le=16)] = Field(
        6,
        title="References",
        description="Number of past tasks shown in a prompt for deductions or abductions. "
        "A prompt for inductions shows one program.",
    )
    num_inputs: Annotated[int, Field(ge=2, le=20)] = Field(
        10, title="Inputs per induction task", description="The student sees the first half; all of them decide the grade."
    )
    curriculum: str = Field(
        "",
        title="Curriculum",
        description="Empty: teachers write the tasks. Otherwise, with population.teachers = 0, the project's generator writes as "
        "many programs of 1 to 10 steps, of kinds and depths by uniform, success_variance (in proportion to p(1-p) of recent "
        "attempts) or path/to/file.py:function.",
    )
    max_new_tokens: Positive = Field(1024, title="Maximum proposal length", description="In tokens.")
    references_from: Literal["buffer", "mixed"] = Field(
        "buffer",
        title="Source of references",
        description="buffer: the tasks in the buffer. mixed: stored tasks of the last ten generations that some attempts solved "
        "and others did not; for a kind with fewer of these than propose.references, the buffer.",
    )
    buffer: Literal["shared", "own"] = Field(
        "shared",
        title="Buffer",
        description="shared: one buffer for all teachers. own: "
        "one per teacher, with the seeds and what it wrote first of all; an offspring starts with the seeds alone.",
    )
    buffer_size: Positive = Field(16384, title="Buffer size", description="Number of newest tasks kept per kind.")

    @property
    def mixed_references(self) -> bool:
        """Whether prompts show tasks by the grades of the last generations."""
        return self.references_from == "mixed"


class Solve(Group):
    """How students attempt their teacher's valid tasks."""

    attempts: Annotated[int, Field(ge=2)] = Field(8, title="Attempts per task")
    max_new_tokens: Positive = Field(1024, title="Maximum answer length", description="In tokens.")
    trained_attempts: Count = Field(
        0, title="Trained attempts", description="Attempts per task that are used for training. 0 uses all of them."
    )
    top_up: bool = Field(
        False,
        title="Top-up",
        description="Fill the batches of teachers that wrote too few valid tasks with stored tasks. Those are not rated.",
    )
    easy_share: Below1 = Field(
        0.0,
        title="Share of easy replays",
        description="Share of a student's tasks that are recent ones, posed again because most attempts solved them. "
        "Those are not rated.",
    )
    easy_rate: Share = Field(
        0.8, title="Solve rate of easy tasks", description="Share of correct attempts from which a task counts as easy."
    )

    mixed_share: Below1 = Field(
        0.0,
        title="Share of mixed replays",
        description="Share of a student's tasks that are recent ones, posed again because some attempts solved them and others "
        "did not. Those are not rated.",
    )
    mixed_rate: Share = Field(
        1.0,
        title="Solve rate of mixed tasks",
        description="Largest share of correct attempts with which a task still has mixed results, for replays and for what "
        "teachers are shown. With estimator = pass_at_k, groups that mostly solve a task teach nothing: 0.5 leaves them out.",
    )

    @property
    def replays_per_task(self) -> float:
        """Tasks posed again for each new one, by share. Top-up is not counted: it replaces new tasks that are missing."""
        share = self.easy_share + self.mixed_share
        return share / (1 - share)

    @property
    def replays(self) -> bool:
        """Whether students may be given stored tasks again."""
        return any(getattr(self, name) for name in REPLAYS)


class Reward(Group):
    """Who earns what: teacher 1 - s for 0 < s, 0 for s = 0, -1 invalid; student +1, -0.5, -1 on a format error."""

    rule: str = Field(
        "populora",
        title="Reward rule",
        description="populora (a teacher earns 1 - s), azr (-0.5 at the extremes), learnable (4 s (1 - s): most where half of "
        "the attempts succeed), form (what can be read, whatever its verdict), or path/to/file.py:function.",
    )
    gates: tuple[str, ...] = Field(
        (),
        title="Gates",
        description="Enabled task gates: constant, identity, ignores_input, verbatim_output, quoted_input, telling_message, "
        "repeated. Programs of suites that the run keeps out are always stopped (held_out).",
    )
    trace_weight: Below1 = Field(
        0.0,
        title="Weight of the trace",
        description="Added to the reward of a wrong deduction, times the share of the program's steps that the answer's trace "
        "gets right from the first one on. Requires model.style = trace.",
    )
    trailing_text: Below1 = Field(
        0.0,
        title="Penalty for trailing text",
        description="Subtracted from a student's reward if it wrote more behind its answer on the line. Only answers in "
        "model.style = document can have such text.",
    )
    likeness: Below1 = Field(
        0.0,
        title="Penalty for tasks alike",
        description="Subtracted from a teacher's reward for a valid task, times the share of its other valid tasks of the kind "
        "and generation that lie in the same cell of the problem space.",
    )


class Learning(Group):
    """The policy gradient: one optimizer step per adapter and generation."""

    estimator: str = Field(
        "reinforce_plus_plus_baseline",
        title="Advantage estimator",
        description="reinforce_plus_plus_baseline, trr_plus_plus, grpo, dr_grpo, positive_only (supervised training on "
        "what was rewarded), pass_at_k (students: what an answer adds to the best of learning.pass_at), or "
        "path/to/file.py:function.",
    )
    pass_at: Positive = Field(
        4,
        title="Best of",
        description="With estimator = pass_at_k: of how many answers the best counts. Less than the trained attempts at a task.",
    )
    teacher_baseline: Literal["group", "kind", "none"] = Field(
        "group",
        title="Teachers' baseline",
        description="Mean reward over the prompt's group, over the task kind, or none. With group, a sample alone in its group, "
        "of either role, subtracts the mean of its role and kind (default estimator; with pass_at_k, teachers); otherwise it "
        "subtracts nothing.",
    )
    whiten_shift: bool = Field(
        True,
        title="Shift when whitening",
        description="Subtract the token-weighted mean when whitening advantages, as veRL does.",
    )
    learning_rate: Amount = Field(1e-5, title="Learning rate")
    frozen: Literal["nobody", "teachers", "students"] = Field(
        "nobody",
        title="Frozen role",
        description="This role plays and is rated but is not trained. With mode = single, its samples in that role are not used.",
    )
    warmup: Count = Field(
        0,
        title="Warm-up steps",
        description="Steps over which the learning rate rises after optimizer moments are reset. 0 disables warm-up.",
    )
    betas: tuple[Below1, Below1] = Field((0.9, 0.999), title="AdamW betas")
    weight_decay: Amount = Field(0.0, title="Weight decay")
    max_grad_norm: Above0 = Field(
        1.0, title="Maximum gradient norm", description="Per adapter. Larger gradients are scaled down."
    )
    clip_range: Above0 = Field(
        0.2,
        title="Clip range",
        description="Clipping range of the probability ratio. Without effect: with one step per generation, the ratio is 1.",
    )
    entropy_bonus: float = Field(0.001, title="Entropy bonus")
    kl: Amount = Field(0.0, title="KL weight", description="Weight of the KL penalty against the base model.")
    importance_cap: Amount = Field(
        0.0,
        title="Importance cap",
        description="Upper limit of the importance weights between engine and trainer. 0 disables the correction.",
    )
    off_policy_steps: Literal[0, 1] = Field(
        0,
        title="Steps off-policy",
        description="1 trains on the samples of the generation before, so that updates run beside the rollouts on several cards "
        "or machines. Needs importance_cap. The samples of the last generation, and of members that are replaced, train nobody.",
    )
    micro_batch_tokens: Positive = Field(
        16384, title="Micro-batch size", description="Tokens per backward pass. On a CPU, small models are faster with 2048."
    )
    row_tokens: Positive = Field(
        USUAL_ROW_TOKENS,
        title="Row size",
        description="Tokens of a row: a prompt, computed once, and as many of its completions as fit; what several begin with "
        "counts once. One that does not fit begins another row, whatever its length. "
        "At most micro_batch_tokens or the default, whichever is larger.",
    )
    attention: Literal["masked", "flex"] = Field(
        "masked",
        title="Attention of rows",
        description="How rows whose completions part are computed. masked: torch's kernels under a mask. flex: FlexAttention, "
        "which skips what no token sees; needs model.device = cuda, compiles at its first use, and has not been measured.",
    )
    gradient_checkpointing: Recomputation = Field(
        "auto",
        title="Gradient checkpointing",
        description="Recompute activations in the backward pass: less memory, more computation. auto: only where they do not fit "
        "into the card by the plan; never on a CPU. run.json records what auto meant.",
    )
    recompute_above: Count = Field(
        0,
        title="Recompute above",
        description="With gradient checkpointing, passes of at most this many tokens keep their activations, and rows are packed "
        "into passes of that size. 0 recomputes all. auto sets it to what fits into the card.",
    )
    skip_zero_groups: bool = Field(
        False,
        title="Skip groups without an advantage",
        description="Leave groups whose advantages are all 0 out of the update's passes. Their gradient is exactly 0, so steps "
        "stay the same, but drift and entropy are not measured there. Requires entropy_bonus and kl to be 0. With whiten_shift, "
        "the default estimator gives every group an advantage, and nothing is skipped.",
    )
    adapters_per_group: Count = Field(
        0, title="Adapters per pass", description="Number of adapters trained in one pass. 0 trains all of them together."
    )
    divide: Literal["auto", "adapters", "rows"] = Field(
        "auto",
        title="What parts of an update divide",
        description="adapters: a part trains a group of adapters. rows: engine.shards parts compute the gradients of a share of "
        "the samples each, so that one adapter uses several cards. auto: what the plan expects to be faster; adapters if "
        "engine.shards is 1.",
    )


class StrategyRule(Group):
    """An evolution strategy in the policy gradient's place. Of learning.*, only frozen and adapters_per_group then apply."""

    population: Count = Field(
        0,
        title="Copies",
        description="Perturbed copies per adapter: an even number that divides solve.attempts and, where teachers are trained, "
        "propose.group_size. 0: off.",
    )
    sigma: Above0 = Field(0.02, title="Sigma", description="Standard deviation of the noise on every entry of both LoRA factors.")
    learning_rate: Amount = Field(
        2e-4, title="Learning rate", description="A step is learning_rate / (copies x sigma) x the sum of fitness x unit noise."
    )


class RatingRule(Group):
    """TrueSkill constants and the rule that turns solve rates into results."""

    mu: float = Field(25.0, title="Initial mu")
    sigma: Above0 = Field(25.0 / 3.0, title="Initial sigma")
    beta: Above0 = Field(25.0 / 6.0, title="Beta", description="Standard deviation of a single performance.")
    tau: Amount = Field(25.0 / 300.0, title="Tau", description="Amount added to sigma (in quadrature) before each match.")
    draw_probability: Below1 = Field(0.1, title="Draw probability")
    draw_margin: Amount = Field(
        0.02,
        title="Draw margin",
        description="A match is a draw if the observed and expected solve rates differ by this or less.",
    )


class Evolution(Group):
    """Every `every` generations, the lowest share `gamma` of each role, by mu - kappa*sigma, is replaced by offspring."""

    every: Count = Field(10, title="Generations between events", description="0 disables evolution.")
    gamma: Share = Field(0.25, title="Replaced share", description="Share of each role that an event replaces.")
    kappa: float = Field(3.0, title="Kappa", description="Fitness is mu - kappa * sigma.")
    crossover_share: Share = Field(
        0.5,
        title="Crossover share",
        description="Share of offspring made by crossover with mix = draw. The others are mutations, "
        "as are all offspring of a role with one survivor.",
    )
    mix: Literal["draw", "alternate"] = Field(
        "draw", title="Mix", description="draw: choose mutation or crossover at random. alternate: take turns."
    )
    mutations: tuple[str, ...] = Field(("M1", "M2", "M3", "M4"), title="Mutations")
    crossovers: tuple[str, ...] = Field(("X1", "X2", "X3", "X4"), title="Crossovers")
    space: Literal["delta", "paper"] = Field(
        "delta", title="Operator space", description="delta: operators act on delta W. paper: operators act on the LoRA factors."
    )
    child_rating: Literal["inherit", "fresh"] = Field(
        "inherit", title="Ratings of offspring", description="inherit: the parents' rating. fresh: the initial rating."
    )
    min_age: Count = Field(
        0, title="Protected age", description="Number of evolution events during which offspring cannot be replaced."
    )
    copies_at: tuple[Count, ...] = Field(
        (),
        title="Events that copy",
        description="Generations whose offspring are copies of their parent (the better one), as a control. "
        "Everything else about the event stays. populora clones sets it.",
    )


class SandboxRule(Group):
    """Where model-written programs run, and their limits."""

    kind: Literal["docker", "local"] = Field("docker", title="Kind")
    image: str = Field(IMAGE, title="Image")
    runtime: str = Field("", title="Container runtime", description="For example runsc. Empty uses Docker's default.")
    containers: Positive = Field(2, title="Containers")
    cpu_seconds: Above0 = Field(2.0, title="CPU seconds per call")
    wall_seconds: Above0 = Field(10.0, title="Wall-clock seconds per call")
    memory_mb: Positive = Field(256, title="Memory per program", description="In MB.")
    recycle_after: Positive = Field(
        2000, title="Programs per container", description="A container is replaced after this many programs."
    )
    early: Literal["auto", "on", "off"] = Field(
        "auto",
        title="Early judging",
        description="on: run programs while completions are written; the tables are the same. auto: on if the engine has a GPU.",
    )


class EngineRule(Group):
    """What generates completions."""

    kind: Literal["transformers", "vllm"] = Field("transformers", title="Kind")
    python: str = Field(
        "",
        title="Python interpreter",
        description="Interpreter of the rollout worker. vLLM requires its own; empty uses this one.",
    )
    temperature: Above0 = Field(1.0, title="Temperature")
    shards: Positive = Field(
        1,
        title="Shards",
        description="Propose and solve divide their completions into this many parts, benchmark its members, "
        "update its samples where learning.divide says so. Parts run at the same time on several cards, or on a CPU in "
        "POPULORA_PROCESSES processes. 1: no parts.",
    )
    batch_tokens: Positive = Field(
        131072, title="Decoding batch", description="transformers only: number of KV-cache positions in one decoding batch."
    )
    window: Count = Field(
        0, title="Context window", description="Maximum tokens of a prompt and its completion. 0 uses the model's own limit."
    )
    rows: Positive = Field(
        256,
        le=8192,
        title="Rows at once",
        description="vLLM only: completions written at once. More take memory for keys and values; what does not fit waits.",
    )
    memory_share: Share = Field(0.6, title="GPU memory share", description="Share of GPU memory that vLLM reserves.")
    compile: bool = Field(
        True, title="Compile", description="vLLM only. Without compilation, it starts faster and decodes more slowly."
    )
    max_drift: Amount = Field(
        0.0,
        title="Maximum mean drift",
        description="Mean difference of engine and trainer log-probabilities, in nats per token, above which a run stops. "
        "0 uses the default of the data type.",
    )
    max_token_drift: Amount = Field(
        0.0,
        title="Maximum drift of a token",
        description="The same for a single token, checked before the engine generates. 0 uses the default of the data type.",
    )


class Seeding(Group):
    """The initial buffers: valid tasks that the base model writes, from the identity function on, as AZR does."""

    rows: Positive = Field(256, title="Seed tasks per kind")
    max_rounds: Positive = Field(
        40, title="Maximum rounds", description="Rounds of each buffer before rows that the project ships fill the rest."
    )
    round: Count = Field(32, title="Proposals per round", description="0 uses as many as the engine completes in one batch.")


class BenchmarkRule(Group):
    """Benchmarks inside the run, on the members as trained."""

    every: Count = Field(0, title="Generations between benchmarks", description="0 benchmarks only the last generation.")
    start: bool = Field(
        False,
        title="Score the start",
        description="Also score what every member starts with, so that the run can say at its end what was learned.",
    )
    suite: str = Field(
        "probe-dev",
        title="Probe",
        description="The project's own suite: probe-dev, probe-test, staircase-dev or staircase-test; or one kind of it, such as "
        "staircase-dev-deduction.",
    )
    suites: tuple[str, ...] = Field(
        (),
        title="Public suites",
        description="Suites to score as well, such as gsm8k. Their data must be available; see docs/benchmarks.md.",
    )
    style: Literal["", "chat", "completion", "azr"] = Field(
        "", title="Style", description="How public suites are asked. Empty follows the model's tokenizer."
    )
    limit: Count = Field(
        0, title="Problems", description="Number of problems, spread evenly over kinds and bands. 0 uses all of them."
    )
    attempts: Count = Field(0, title="Sampled attempts", description="In addition to the greedy attempt, for pass@k.")
    members: Literal["all", "students"] = Field("students", title="Members", description="Which members are scored.")
    children_at: tuple[Count, ...] = Field(
        (),
        title="Ages of offspring",
        description="Also score offspring at these ages, in generations. 0 scores them at birth, together with their parents.",
    )
    max_new_tokens: Positive = Field(
        1024, title="Maximum answer length", description="In tokens. Public suites have limits of their own."
    )


class Retention(Group):
    """Which adapter files are kept after a generation. A removed file leaves a tombstone with its digest and the reason."""

    on: bool = Field(True, title="Enabled")
    newest: Positive = Field(2, title="Newest generations", description="Keep optimizer states of this many newest generations.")
    optimizer_every: Positive = Field(20, title="Optimizer states", description="Keep optimizer states every N generations.")
    adapter_every: Positive = Field(
        5, title="Adapters", description="Keep adapters every N generations, and at births, deaths and benchmarks."
    )


class ExperimentRule(Group):
    """Faults that an experiment introduces on purpose. A run with any of them is no ordinary run, and says so everywhere."""

    leak: Share = Field(
        0.0,
        title="Leak",
        description="Share of wrong verdicts that pass: invalid tasks that are posed and paid, rejected answers that are paid "
        "as correct. For the gate experiment only.",
    )


class Cost(Group):
    """What the machines cost, for the cost of a run. Not part of the run: it may change at any time and changes no artifact."""

    machine_hour: Amount = Field(
        0.0,
        title="Price of a machine hour",
        description="Counted while a stage runs, once per machine. 0: no price. "
        "A machine's own POPULORA_COST_MACHINE_HOUR comes first.",
    )
    kwh: Amount = Field(
        0.0,
        title="Price of a kWh",
        description="Added for the energy that is measured or estimated. 0 if the hour includes it. "
        "A machine's own POPULORA_COST_KWH comes first.",
    )
    currency: Annotated[str, Field(max_length=12)] = Field(
        "", title="Currency", description="Label of both prices, such as EUR. A machine's own POPULORA_COST_CURRENCY comes first."
    )
    watts: Amount = Field(
        0.0,
        title="Watts for an estimate",
        description="Power of a machine that cannot measure its processor's energy, without the cards that it measures. "
        "0: no estimate. A machine's own POPULORA_COST_WATTS comes first.",
    )
