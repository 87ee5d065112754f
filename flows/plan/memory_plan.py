"""The memory that a run needs at its largest moments, by arithmetic: `populora run --dry-run` says where they fit.

A moment is what one device holds at once. The transformers engine and the trainer share a process and one copy of the base model.
vLLM has a process of its own; it reserves a share of the card for the rollout and gives it back while the trainer updates. The
trainer's base and adapters stay on the card all the time, so vLLM wakes beside the adapters of the last update.

The terms of the forward and backward passes were counted tensor by tensor, with torch's FakeTensorMode, on this project's own
trainer; tests/flows/plan/test_memory_plan.py counts them again. Those of the optimizer step and of vLLM were added up from
the code. tests/flows/plan/test_memory_moments.py runs two generations with an engine and a trainer that only count what they
hold. What a process needs besides tensors is assumed, not measured on a GPU. On a CPU, processes have needed 1.3 to 1.8 times
their tensors. A line is about one card that engine and trainer share; shards on other cards need no more.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from flows.config import RunConfig
from flows.plan.decoder_shape import DecoderShape, adapter_parameters
from flows.plan.prompt_tokens import prompt_tokens
from flows.plan.update_flops import USUAL_ROW

GIB = 1024**3
CARDS = {"24 GB": 24e9, "80 GB": 80e9}
SPARE = 0.05  # of a card: what fragmentation takes
CONTEXT = 0.5e9  # of each process that uses a GPU
ASLEEP = 1.5e9  # what vLLM keeps of a card while it sleeps: its context and its graphs
GRAPHS = 1e9  # vLLM records its graphs after it has filled its share, beside it
VLLM_PASS = 8192  # positions that vLLM computes at once: EngineLimits.batch_tokens
PROBE = 64  # tokens of an adapter that are scored at once to compare engine and trainer: a round of stages.core.engines.agreement
CHUNK = 2**26  # logits at once: CHUNK_ELEMENTS of stages.core.training.head_loss
REDUCED = 3 * 4  # bytes of a logit while a GPU reduces its chunk: three blocks in fp32, two without an entropy bonus
PASS = 2**29  # of the widest activations while prompts are read: PASS_BYTES of stages.core.engines.decoding
HELD = 16  # bytes of a parameter that a process holds from stage to stage (flows.run.held_adapters): weights twice, moments
STEP = 256  # tokens by which the width of a pass that keeps its activations is found
BACKWARD = 1.3  # a recomputed layer with the gradients inside it, in activations of one layer


@dataclass(frozen=True)
class Moment:
    """What one device holds at once, in bytes by purpose, and what that rests on."""

    name: str
    parts: dict[str, float]
    basis: str

    @property
    def total(self) -> float:
        """The sum of the parts, in bytes."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        shown = ", ".join(f"{purpose} {size / GIB:.1f}" for purpose, size in self.parts.items() if size >= 0.05 * GIB)
        return f"{self.name} {self.total / GIB:.1f} GiB" + (f" ({shown})" if shown else "")


def memory_lines(config: RunConfig, shape: DecoderShape, members: int) -> list[str]:
    """Return the plan's lines about memory: each moment, and the cards on which the largest fits."""
    if config.model.device == "cpu":
        if config.engine.kind == "vllm":
            return ["memory           no estimate for vLLM on a CPU"]
        moments = shared_process(settled_for(config, shape, 0), shape, members)
        kept = "assumed          freed memory returns to the system after each stage; for long runs, keep as much again free"
        return [*(f"memory           {moment}" for moment in moments), *_bases(moments), kept]
    settled = {name: settled_for(config, shape, size) for name, size in CARDS.items()}
    if config.engine.kind == "transformers":
        found = {name: shared_process(own, shape, members) for name, own in settled.items()}
        fitting = [name for name, moments in found.items() if _largest(moments) + CONTEXT <= (1 - SPARE) * CARDS[name]]
        if len(set(settled.values())) == 1:
            found = {"": next(iter(found.values()))}
        lines = [f"memory {name:9} {moment}" for name, moments in found.items() for moment in moments]
        return [*lines, _fits(fitting), *_recomputation(config, settled), *_bases(next(iter(found.values())))]
    lines, fitting, moments = list[str](), list[str](), list[Moment]()
    for name, size in CARDS.items():
        moments = beside_vllm(settled[name], shape, members, size)
        missing = engine_needs(config, shape, members) - config.engine.memory_share * size
        lines += [f"memory {name:9} {moment}" for moment in moments]
        if missing > 0:
            share = f"vLLM's share of {config.engine.memory_share:g}"
            lines.append(f"                 {share} is {missing / GIB:.1f} GiB too small")
        elif _largest(moments) <= (1 - SPARE) * size:
            fitting.append(name)
    return [*lines, _fits(fitting), *_recomputation(config, settled), *_bases(moments)]


def lacking(config: RunConfig, shape: DecoderShape, members: int, memory: float) -> str:
    """Return the moment that does not fit into a card of that many bytes, even if all of it is free; empty if all do."""
    config = settled_for(config, shape, memory)
    if config.engine.kind == "transformers":
        moments, context = shared_process(config, shape, members), CONTEXT
    else:
        engine, share = engine_needs(config, shape, members), config.engine.memory_share * memory
        if engine > share:
            return f"vLLM needs {engine / GIB:.1f} GiB and its share is {share / GIB:.1f} GiB"
        moments, context = beside_vllm(config, shape, members, memory), 0.0
    largest = max(moments, key=lambda moment: moment.total)
    needed = largest.total + context
    return f"the plan's {largest.name} needs {needed / GIB:.1f} GiB" if needed > memory else ""


def settled_for(config: RunConfig, shape: DecoderShape, memory: float) -> RunConfig:
    """Return the configuration with `learning.gradient_checkpointing` true or false; `auto` is settled for one device.

    On a card of `memory` bytes, `auto` recomputes where an update that keeps all activations does not fit, and there only in
    passes that are too wide: keeping activations is always faster. On a CPU (0) it keeps them.
    """
    if config.learning.gradient_checkpointing != "auto":
        return config
    kept = config.recomputing(False)
    if config.model.device == "cpu" or not memory or _update_fits(kept, shape, memory):
        return kept
    widths = range(STEP, config.learning.micro_batch_tokens + 1, STEP)
    fitting = bisect_left(widths, True, key=lambda width: not _update_fits(config.recomputing(True, width), shape, memory))
    above = widths[fitting - 1] if fitting else 0
    return config.recomputing(True, above if above >= USUAL_ROW else 0)


def _update_fits(config: RunConfig, shape: DecoderShape, memory: float) -> bool:
    alone = config.engine.kind == "transformers"
    moments = shared_process(config, shape, config.adapters) if alone else beside_vllm(config, shape, config.adapters, memory)
    [update] = [moment.total for moment in moments if moment.name == "update"]
    return update + (CONTEXT if alone else 0) <= (1 - SPARE) * memory


def shared_process(config: RunConfig, shape: DecoderShape, members: int) -> list[Moment]:
    """Return the moments of a process that holds the transformers engine and the trainer; nothing sleeps or wakes there.

    bfloat16 counts as such on a CPU, too; one without the units computes in float32, in twice the memory.
    """
    width, parameters = _width(config), adapter_parameters(shape, config.model.targets, config.model.rank)
    base = {"base": float(shape.parameters * width)}
    on_cpu = config.model.device == "cpu"
    if on_cpu and width == 2:
        base["packed base"] = float(shape.parameters * width)  # where the CPU has AVX-512 BF16: packed_weights.py
    cache = config.engine.batch_tokens * cache_bytes(shape, width)
    reading = PASS if on_cpu else 4 * PASS  # a layer has four tensors of that width; a CPU reads prompts in small passes
    held = {"held adapters": float(HELD * parameters * members)} if on_cpu else {}
    bred = {"offspring": 4.0 * parameters * _births(config, members)} if on_cpu else {}
    writing, stack = {"cache": cache, "prompt pass": reading}, {"adapters": 4.0 * parameters * _trained(config, members)}
    serving = 4.0 + (2.0 if width == 2 else 0.0)  # bytes of a parameter: those of the stack, and rounded for the engine
    return [
        Moment("start", base | {"adapters": serving * parameters} | writing, "seeds fill engine.batch_tokens, as rollouts do"),
        Moment(
            "rollout",
            base | {"adapters": serving * parameters * members} | held | writing,
            "one process, no sleep or wake; all adapters; a cache of engine.batch_tokens positions",
        ),
        Moment(
            "update",
            base | stack | held | _update(config, shape, members, 0 if on_cpu else REDUCED),
            "a micro-batch as wide as its limit, or the longest prompt and completion",
        ),
        Moment("evolve", base | stack | held | bred, "operators compute on the host; the stack of the last update stays"),
    ]


def beside_vllm(config: RunConfig, shape: DecoderShape, members: int, card: float) -> list[Moment]:
    """Return the moments of a card of that many bytes that vLLM and the trainer share, in the order of a generation.

    The trainer's stack has as many rows as the adapters that it saw last: those of an update, or of one role when it was compared
    with the engine. A stack of another size is made before the old one goes.
    """
    one = 4.0 * adapter_parameters(shape, config.model.targets, config.model.rank)
    trainer = {"trainer's base": float(shape.parameters * _width(config)), "context": CONTEXT}
    vllm = {"vLLM": config.engine.memory_share * card} | ({"graphs": GRAPHS} if config.engine.compile else {})
    asleep = {"vLLM asleep": ASLEEP}
    trained, role = _trained(config, members), max(1, members // 2)
    compared = (_width(config) + REDUCED) * float(min(CHUNK, role * PROBE * shape.vocabulary))
    loading, comparing = (
        {"adapters": one * (role if role == trained else trained + role)},
        {"adapters": one * role, "logits": compared},
    )
    awake_late = config.benchmark.every > 0
    return [
        Moment("start", vllm, "vLLM takes engine.memory_share of the card and 1 GB for graphs; there is no trainer yet"),
        Moment(
            "wake",
            vllm | trainer | max(loading, comparing, key=lambda parts: sum(parts.values())),
            "the trainer still has the adapters of its update, and loads those of one role to be compared",
        ),
        Moment("rollout", vllm | trainer | {"adapters": one * role}, "adapters that vLLM serves are within its share"),
        Moment("sleep", asleep | trainer | {"adapters": one * role}, "vLLM asleep keeps 1.5 GB; its weights are on the host"),
        Moment(
            "update",
            asleep | trainer | {"adapters": one * trained} | _update(config, shape, members, REDUCED),
            "a micro-batch as wide as its limit, or the longest prompt and completion; the cache goes back to the card after it",
        ),
        Moment(
            "evolve",
            (vllm if awake_late else asleep) | trainer | {"adapters": one * trained},
            "operators compute on the host; "
            + ("a benchmark has woken vLLM" if awake_late else "vLLM sleeps, but after a benchmark"),
        ),
    ]


def engine_needs(config: RunConfig, shape: DecoderShape, members: int) -> float:
    """Return the bytes without which vLLM does not start: weights, adapters, the widest pass, one text as long as the window."""
    width, parameters = _width(config), adapter_parameters(shape, config.model.targets, config.model.rank)
    window = min(config.engine.window or shape.window, shape.window)
    passing = VLLM_PASS * width * (3.0 * shape.feed_forward + 2 * shape.hidden + 2 * shape.attention)
    return (shape.parameters + members * parameters) * width + passing + window * cache_bytes(shape, width)


def cache_bytes(shape: DecoderShape, width: int) -> float:
    """Return the bytes of keys and values at one position."""
    return 2.0 * shape.layers * shape.head * shape.key_value_heads * width


def update_peaks(
    shape: DecoderShape,
    parameters: int,
    adapters: int,
    positions: int,
    width: int,
    checkpointing: bool,
    reduced: int,
    row_tokens: int = 0,
) -> dict[str, dict[str, float]]:
    """Return what an update of that many adapters holds besides base and adapters, at each point that may be its largest.

    `positions` are those of a micro-batch. A layer keeps four tensors of the feed-forward width, four of the heads' (queries,
    repeated keys and values, what attention gives), two of the hidden width and two more in fp32, and its keys and values; with
    checkpointing it keeps its input alone, and the backward pass computes it again. A chunk of logits has `reduced` bytes a logit
    beside itself: REDUCED on a GPU, none on a CPU, a few rows at a time. Rows that share a prompt, of up to
    `row_tokens` positions, have a mask from each position to each. From the second micro-batch on, the gradients of
    all adapters are there from the start.
    """
    key_value = shape.head * shape.key_value_heads
    matrices = 4 * shape.feed_forward + 4 * shape.attention + 2 * shape.hidden + 4 * key_value
    layer = positions * (width * matrices + 8.0 * shape.hidden)
    gradients, again = 4.0 * adapters * parameters, BACKWARD * layer if checkpointing else 0.0
    if checkpointing:
        kept = positions * shape.layers * width * float(shape.hidden)
    else:
        rounded = adapters * parameters * width if width < 4 else 0  # factors in the activations' type
        kept = shape.layers * layer + rounded
    head = float((width + reduced) * min(CHUNK, positions * shape.vocabulary))
    mask = float(width * positions * min(row_tokens, positions))
    return {
        "loss": {"gradients": gradients, "activations": kept, "output head": head, "mask": mask},
        "backward begins": {"gradients": gradients, "activations": kept, "recomputed layer": again, "mask": mask},
        "backward ends": {"gradients": gradients, "recomputed layer": again, "mask": mask},
        "step": {"gradients": 2 * gradients, "optimizer step": 28.0 * parameters},
    }


def _update(config: RunConfig, shape: DecoderShape, members: int, reduced: int) -> dict[str, float]:
    rule, parameters = config.learning, adapter_parameters(shape, config.model.targets, config.model.rank)
    limits = (config.propose.max_new_tokens, config.solve.max_new_tokens)
    longest = max(prompt + limit for prompt, limit in zip(prompt_tokens(config), limits, strict=True))
    recomputes, trained, widest = rule.gradient_checkpointing is True, _trained(config, members), max(rule.row_tokens, longest)
    above = min(rule.recompute_above, rule.micro_batch_tokens) if recomputes else 0
    passes = {max(above or rule.micro_batch_tokens, 0 if above else widest): recomputes and not above}
    if 0 < above < widest:
        passes[widest] = True
    peaks = list[dict[str, float]]()
    for positions, again in passes.items():
        # a longer row may be in one micro-batch with rows that share a prompt
        row = max(rule.row_tokens, min(longest, (above or rule.micro_batch_tokens) // 2))
        peaks += update_peaks(shape, parameters, trained, positions, _width(config), again, reduced, row).values()
    return max(peaks, key=lambda parts: sum(parts.values()))


def _births(config: RunConfig, members: int) -> int:
    """Return how many members one event of evolution replaces."""
    return 2 * max(1, int(members // 2 * config.evolution.gamma)) if config.evolution.every and members > 2 else 0


def _trained(config: RunConfig, members: int) -> int:
    """Return how many adapters one pass trains: the larger number of the two cuts, where the run decides in each generation.

    Of an update cut by rows, a share has the rows of at most so many adapters: shares are contiguous, with equal tokens.
    """
    rule, shards = config.learning, config.engine.shards
    grouped, shared = min(members, rule.adapters_per_group or members), min(members, ceil(members / shards) + 1)
    if rule.divide == "rows":
        return shared
    return grouped if rule.divide == "adapters" or shards == 1 else max(grouped, shared)


def _width(config: RunConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def _largest(moments: list[Moment]) -> float:
    return max(moment.total for moment in moments)


def _bases(moments: list[Moment]) -> list[str]:
    return [f"assumed          {moment.name}: {moment.basis}" for moment in moments]


def _recomputation(config: RunConfig, settled: Mapping[str, RunConfig]) -> list[str]:
    """Return the line that says what `auto` means for each card; none without `auto`."""
    if config.learning.gradient_checkpointing != "auto":
        return []
    found = (f"{_recomputed(own)} on {name}" for name, own in settled.items())
    return [f"recomputation    {', '.join(found)}: learning.gradient_checkpointing is auto"]


def _recomputed(config: RunConfig) -> str:
    if not config.learning.gradient_checkpointing:
        return "no"
    return f"above {config.learning.recompute_above:,} tokens" if config.learning.recompute_above else "yes"


def _fits(cards: list[str]) -> str:
    return f"fits             {', '.join(f'1 x {name}' for name in cards) or 'no card of ' + ' or '.join(CARDS)}"
