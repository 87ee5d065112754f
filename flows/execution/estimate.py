"""Estimate a run's tokens, hours, memory and disk before it starts, by arithmetic alone (`populora run --dry-run`)."""

import json
from dataclasses import dataclass
from pathlib import Path

from flows.config import PROJECT, ConfigError, RunConfig
from flows.run.retention import RetentionPolicy, expected_bytes

GIB = 1024**3
TFLOPS = {"24 GB": 60e12, "80 GB": 350e12}  # assumed sustained bfloat16 rates of one GPU of that size
DECODE_SHARE = 0.15  # share of that rate while decoding: bound by memory, not arithmetic
CPU_FLOPS = {"float32": 60e9, "bfloat16": 250e9}  # assumed sustained rates of two cores; bfloat16 with AVX-512 BF16 or AMX
SMALL = 50e6  # parameters of a model for which nobody rents a GPU
TABLE_BYTES = 8  # stored per generated token, in rollouts and samples together


@dataclass(frozen=True)
class DecoderShape:
    """The dimensions of a decoder that determine its cost."""

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    def linears(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each linear layer of one block."""
        key_value = self.head * self.key_value_heads
        return {
            "q_proj": (self.hidden, self.hidden),
            "k_proj": (self.hidden, key_value),
            "v_proj": (self.hidden, key_value),
            "o_proj": (self.hidden, self.hidden),
            "gate_proj": (self.hidden, self.feed_forward),
            "up_proj": (self.hidden, self.feed_forward),
            "down_proj": (self.feed_forward, self.hidden),
        }

    @property
    def parameters(self) -> int:
        """Parameters of the base model."""
        blocks = self.layers * sum(a * b for a, b in self.linears().values())
        return blocks + self.vocabulary * self.hidden * (1 if self.tied else 2)


KNOWN = {
    "Qwen2.5-Coder-0.5B": DecoderShape(896, 24, 4864, 14, 2, 151936, True),
    "Qwen2.5-Coder-1.5B": DecoderShape(1536, 28, 8960, 12, 2, 151936, True),
    "Qwen2.5-Coder-3B": DecoderShape(2048, 36, 11008, 16, 2, 151936, True),
    "Qwen2.5-Coder-7B": DecoderShape(3584, 28, 18944, 28, 4, 152064, False),
}


def shape_of(name: str) -> DecoderShape | None:
    """Return the shape of a model folder or of a known name; None for an unknown name."""
    folder = Path(name) if Path(name).is_absolute() else PROJECT / name
    file = folder / "config.json"
    if file.is_file():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return DecoderShape(
                found["hidden_size"],
                found["num_hidden_layers"],
                found["intermediate_size"],
                found["num_attention_heads"],
                found["num_key_value_heads"],
                found["vocab_size"],
                bool(found.get("tie_word_embeddings")),
            )
        except (ValueError, KeyError) as error:
            raise ConfigError(f"model.name: {file} does not describe a decoder ({error})") from error
    return next((shape for key, shape in KNOWN.items() if name.split("/")[-1].startswith(key)), None)


def plan(config: RunConfig) -> str:
    """Return the plan as lines of text: completions and tokens per generation, memory, disk, hours, and which layout fits."""
    shape = shape_of(config.model.name)
    teachers, students = (1, 1) if config.mode == "single" else (config.population.teachers, config.population.students)
    members = _members(config)
    proposals = teachers * config.proposals_per_teacher
    attempts = proposals * config.solve.attempts
    tokens = proposals * config.propose.max_new_tokens + attempts * config.solve.max_new_tokens
    lines = [
        f"members          {members} ({teachers} teachers, {students} students)"
        if members > 1
        else "members          1, in both roles",
        f"per generation   {proposals} proposals, at most {attempts} attempts, at most {tokens:,} generated tokens",
    ]
    if shape is None:
        return "\n".join([*lines, f"model            {config.model.name} is unknown: no estimate of memory and hours"])
    adapter = shape.layers * sum(
        config.model.rank * sum(shape.linears()[t]) for t in config.model.targets if t in shape.linears()
    )
    lines += _memory(config, shape, adapter, members)
    lines += _disk(config, adapter, members)
    return "\n".join(lines + _hours(config))


def _memory(config: RunConfig, shape: DecoderShape, adapter: int, members: int) -> list[str]:
    width = 2 if config.model.dtype == "bfloat16" else 4
    base, state = shape.parameters * width, adapter * 16 * members
    window = config.learning.micro_batch_tokens
    activations = window * (34 * shape.hidden * (1 if config.learning.gradient_checkpointing else shape.layers)) * width // 2
    cache = 2 * shape.layers * shape.head * shape.key_value_heads * width * config.engine.batch_tokens
    total = base + state + max(activations, cache)
    fits = [name for name, size in (("1 x 24 GB", 24), ("1 x 80 GB", 80)) if total < 0.92 * size * 1e9]
    spread = [] if fits else (["8 x 80 GB, adapters spread over the GPUs"] if total / 8 + base < 0.92 * 80e9 else [])
    return [
        f"memory           {total / GIB:.1f} GiB: base {base / GIB:.2f}, adapters with moments {state / GIB:.2f}, "
        f"activations {activations / GIB:.2f} or cache {cache / GIB:.2f}",
        f"fits             {', '.join(fits + spread) or 'no known layout; lower engine.batch_tokens'}",
    ]


def _disk(config: RunConfig, adapter: int, members: int) -> list[str]:
    a_generation, kept = adapter * 12 * members, "all kept" if not config.retention.on else "after retention"
    return [
        f"disk             {a_generation / GIB:.3f} GiB of adapters per generation ({adapter / 1e6:.2f} M parameters each), "
        f"{stored_bytes(config) / GIB:.1f} GiB at the end ({kept})"
    ]


def stored_bytes(config: RunConfig) -> int:
    """Return the bytes in the store at the end of the run; 0 for an unknown model."""
    shape = shape_of(config.model.name)
    if shape is None:
        return 0
    rule, members = config.retention, _members(config)
    policy = RetentionPolicy(rule.newest, rule.optimizer_every, rule.adapter_every) if rule.on else None
    weights = 4 * _adapter_parameters(config, shape)
    tokens = config.population.teachers * config.proposals_per_teacher * (1 + config.solve.attempts) * config.solve.max_new_tokens
    events = config.generations // config.evolution.every if config.evolution.every and members > 2 else 0
    births = 2 * max(1, int(members // 2 * config.evolution.gamma)) * events
    benchmarks = 1 + (config.generations // config.benchmark.every if config.benchmark.every else 0)
    return expected_bytes(policy, config.generations, members, weights, 2 * weights, tokens * TABLE_BYTES, births, benchmarks)


def _members(config: RunConfig) -> int:
    return 1 if config.mode == "single" else config.population.teachers + config.population.students


def _adapter_parameters(config: RunConfig, shape: DecoderShape) -> int:
    linears = shape.linears()
    return shape.layers * sum(config.model.rank * sum(linears[target]) for target in config.model.targets if target in linears)


def hours(config: RunConfig) -> dict[str, float]:
    """Return hours of arithmetic by machine, with completions at full length; empty for an unknown model."""
    shape = shape_of(config.model.name)
    if shape is None:
        return {}
    teachers = 1 if config.mode == "single" else config.population.teachers
    proposals = teachers * config.proposals_per_teacher
    tokens = proposals * (config.propose.max_new_tokens + config.solve.attempts * config.solve.max_new_tokens)
    decode, train = 2 * shape.parameters * tokens, 6 * shape.parameters * tokens
    if config.model.device == "cpu" or shape.parameters < SMALL:
        return {"two CPU cores": (decode + train) / CPU_FLOPS[config.model.dtype] * config.generations / 3600}
    rates = {f"one {name} GPU": (rate * DECODE_SHARE, rate * 0.4) for name, rate in TFLOPS.items()}
    return {name: (decode / slow + train / fast) * config.generations / 3600 for name, (slow, fast) in rates.items()}


def _hours(config: RunConfig) -> list[str]:
    found = ", ".join(f"{value:,.{2 if value < 10 else 0}f} on {machine}" for machine, value in hours(config).items())
    return [f"hours            {found}: an estimate from arithmetic, completions at full length"]
