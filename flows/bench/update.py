"""`populora bench update`: many adapters in one pass against PEFT with `set_adapter` in turn, on the same samples and loss.

Both sides run forward, loss and backward in micro-batches of at most `--micro-batch-tokens` and take the gradient norms. With
`--group-size`, a prompt has several completions, as in a run: the grouped pass computes it once, PEFT once per completion, and
tokens per second count it once per completion on both sides. The sides take turns, and medians are compared; memory is measured
in a process of its own. Weights are random except with `--model` and for the shape `seed` when the shipped model is there.
Where the base computes in bfloat16, float32 is a second rival; `product_ratio` is how many times as fast one large product is
in bfloat16, which no update can much exceed. `update.share_of_peak` is the share of that product's rate, measured next. The last
line is arithmetic: what shared prompts save of the published setting. With `--samples FILE`, see flows.bench.update_samples.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.bench import update_samples
from flows.bench.memory import peak_memory, resident
from flows.bench.turns import alone, in_turns, usable_cores
from flows.commands.arguments import OneLineParser

SEED_MODEL = Path(__file__).resolve().parents[2] / "infra" / "models" / "seed"
SHAPES = {  # width, MLP width, layers, heads, key-value heads, vocabulary: of the published configurations
    "seed": (256, 768, 4, 4, 4, 216),
    "qwen2.5-0.5b": (896, 4864, 24, 14, 2, 151936),
    "qwen2.5-1.5b": (1536, 8960, 28, 12, 2, 151936),
    "qwen2.5-7b": (3584, 18944, 28, 28, 4, 152064),
}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
USUAL_TOKENS = "64,256,640,2560"
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bfloat16, from the data sheets


def main(options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per figure; `ratio` over 1 means that one pass is faster."""
    from stages.core.training.cpu import use_cpu

    arguments = _asked(options)
    if arguments.samples:
        yield from update_samples.measure(arguments)
        return
    use_cpu(arguments.threads)
    for num_adapters in arguments.adapters:
        yield from _paired(arguments, num_adapters, arguments.total // num_adapters, "equal_total")
    for tokens in arguments.tokens:
        yield from _paired(arguments, arguments.against, tokens, "equal_each")
    yield prompts_shared()


def _asked(options: Sequence[str]) -> argparse.Namespace:
    """Return the options, --total and --tokens with room for a group of each adapter; exit with a line if one given lacks it."""
    asked = _rows_of(parser("update", ""))
    update_samples.add_options(asked)
    asked.set_defaults(total=None, tokens=None)
    arguments = asked.parse_args(options)
    if arguments.samples and not arguments.model:
        asked.error("--samples needs --model: the folder of the model that wrote them")
    for option in ("checkout", "rival"):
        if getattr(arguments, option) and not arguments.samples:
            asked.error(f"--{option} needs --samples")
    group = arguments.group_size * _positions(arguments)
    most = max(arguments.adapters, default=1)
    if arguments.total is None:
        arguments.total = max(8192, group * most)
    if arguments.tokens is None:
        arguments.tokens = sorted({max(tokens, group) for tokens in _numbers(USUAL_TOKENS)})
    if arguments.total // most < group:
        asked.error(f"--total {arguments.total}: {most} adapters need {group * most}, {group} tokens each for one group")
    if short := [tokens for tokens in arguments.tokens if tokens < group]:
        asked.error(f"--tokens {short[0]}: a group has {group} tokens")
    return arguments


def prompts_shared() -> dict[str, Any]:
    """Return the FLOP of an update of `paper`, as the plan counts them, against those with a prompt for each completion."""
    from flows.config import load
    from flows.plan.card_rates import CARDS
    from flows.plan.decoder_shape import KNOWN
    from flows.plan.estimate import MEAN
    from flows.plan.memory_plan import settled_for
    from flows.plan.stage_plan import update_rows, workload
    from flows.plan.update_flops import update_flops

    shape, found = KNOWN["Qwen2.5-Coder-7B"], []
    for settings in ([], ["learning.row_tokens=1"]):
        config = settled_for(load("paper", settings), shape, CARDS[-1].memory)
        found.append(update_flops(config, shape, update_rows(config, workload(config, MEAN))).total / 1e15)
    where = {"shape": "qwen2.5-7b", "layout": "paper", "row_tokens": load("paper").learning.row_tokens}
    return figure("update.flops", found[0], "PFLOP", where) | against("prompt_per_completion", found[1], found[1] / found[0])


def parser(name: str, tokens: str) -> argparse.ArgumentParser:
    """Return a parser with the options of both training benches."""
    made = OneLineParser(prog=f"populora bench {name}")
    made.add_argument("--shape", choices=tuple(SHAPES), default="seed", help="shapes of the base, with random weights")
    made.add_argument("--model", type=_checkpoint, default="", help="a checkpoint's folder, instead of --shape")
    made.add_argument("--device", default="auto", help="cpu, auto or a torch device")
    made.add_argument("--rank", type=int, default=16, help="rank of the adapters")
    made.add_argument("--adapters", type=_numbers, default="1,2,4,8,16,32", help="counts, at --total tokens in all")
    made.add_argument(
        "--total",
        type=int,
        default=8192,
        help="tokens of all --adapters together (default: 8192; update: more if groups need it)",
    )
    made.add_argument(
        "--tokens",
        type=_numbers,
        default=tokens,
        help=f"tokens of each of --against adapters (default: {tokens or USUAL_TOKENS})",
    )
    made.add_argument("--against", type=int, default=8, help="adapters for --tokens")
    made.add_argument("--micro-batch-tokens", type=int, default=2048, help="as learning.micro_batch_tokens")
    made.add_argument("--repeats", type=int, default=5, help="measurements; the median counts")
    made.add_argument("--threads", type=int, default=usable_cores(), help="threads of torch")
    return made


def _rows_of(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("--group-size", type=_positive, default=1, help="completions of a prompt")
    made.add_argument("--prompt-tokens", type=_positive, default=21, help="tokens of a prompt")
    made.add_argument("--response-tokens", type=_positive, default=44, help="tokens of a completion")
    return made


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _checkpoint(text: str) -> str:
    if text and not (Path(text) / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder with a model's config.json")
    return text


def _numbers(text: str) -> list[int]:
    return [_positive(part.strip()) for part in text.split(",") if part.strip()]


def model_of(arguments: argparse.Namespace, dtype: str = "bfloat16") -> Any:
    """Return the model of `--model`, or one of the shape: the seed checkpoint if it is shipped, otherwise random weights.

    It computes in bfloat16 where that is fast, unless `dtype` says otherwise.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from stages.core.engines.hf_engine import load_model
    from stages.core.engines.precision import compute_dtype

    shape, device = arguments.shape, arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.model:
        return load_model(arguments.model, device, dtype)
    if shape == "seed" and (SEED_MODEL / "model.safetensors").is_file():
        return load_model(str(SEED_MODEL), device, dtype)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    config = Qwen2Config(**dict(zip(names, SHAPES[shape], strict=True)), max_position_embeddings=4096, tie_word_embeddings=True)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    model.config._attn_implementation = "sdpa"
    return model.to(getattr(torch, compute_dtype(device, dtype))).eval()


def figure(name: str, value: float, unit: str, where: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the bench; `where` names the shape and load."""
    return {"name": name, "value": round(value, 4), "unit": unit} | where


def against(rival: str, value: float, ratio: float) -> dict[str, Any]:
    """Return what the same run measured for a rival; ratio over 1: ours is better."""
    return {"against": rival, "rival": round(value, 4), "ratio": round(ratio, 3)}


def timed(repeats: int, ours: Callable[[], Any], rival: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of both, in turns, after one call of each to warm up."""
    import torch

    def seconds(work: Callable[[], Any]) -> float:
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds(ours), seconds(rival)
    found = in_turns(repeats, {"ours": partial(seconds, ours), "rival": partial(seconds, rival)})
    return statistics.median(found["ours"]), statistics.median(found["rival"])


def _paired(arguments: argparse.Namespace, num_adapters: int, tokens: int, layout: str) -> Iterator[dict[str, Any]]:
    import torch

    from flows.gpu_check.machine import product_rate

    row = _positions(arguments)
    group = arguments.group_size
    rows = group * (tokens // (group * row))
    memory = {
        kind: alone(side_memory, kind, arguments, num_adapters, rows) for kind in ("ours", "rival")
    }  # before it is held here
    ours, rival = _Grouped(arguments, num_adapters, rows), _Peft(arguments, num_adapters, rows)
    our_seconds, rival_seconds = timed(arguments.repeats, ours.run, rival.run)
    done = float(num_adapters * rows * row)
    name = Path(arguments.model).name if arguments.model else arguments.shape
    where = {"shape": name, "layout": layout, "adapters": num_adapters, "tokens_per_adapter": rows * row}
    where |= {"group_size": group, "prompt_tokens": arguments.prompt_tokens, "response_tokens": arguments.response_tokens}
    yield figure("update.tokens_per_s", done / our_seconds, "tokens/s", where) | against(
        "peft_set_adapter", done / rival_seconds, rival_seconds / our_seconds
    )
    yield figure("memory.update", memory["ours"] / 2**20, "MiB", where) | against(
        "peft_set_adapter", memory["rival"] / 2**20, memory["rival"] / max(1.0, memory["ours"])
    )
    if ours.model.dtype != torch.float32:
        del rival
        rival_dtype = _Grouped(arguments, num_adapters, rows, "float32")
        seconds, rival_seconds = timed(arguments.repeats, ours.run, rival_dtype.run)
        most = product_rate(str(ours.model.device), "bfloat16") / product_rate(str(ours.model.device), "float32")
        yield (
            figure("update.tokens_per_s", done / seconds, "tokens/s", where)
            | against("float32", done / rival_seconds, rival_seconds / seconds)
            | {"product_ratio": round(most, 3)}
        )
    yield from _shares_of_peak(ours.model, _flops(ours.model, arguments, num_adapters * rows) / our_seconds, where)


def _positions(arguments: argparse.Namespace) -> int:
    """Return the positions of a row with one completion, whose last token is predicted but not read."""
    return int(arguments.prompt_tokens + arguments.response_tokens - 1)


def _flops(model: Any, arguments: argparse.Namespace, completions: int) -> float:
    """Return the FLOP of an update with that many completions of `_samples`, as the plan counts them."""
    from flows.config import RunConfig
    from flows.plan.decoder_shape import DecoderShape
    from flows.plan.update_flops import packed, update_flops
    from flows.settings import Model
    from stages.core.training.settings import Settings

    has = model.config
    sizes = (has.hidden_size, has.num_hidden_layers, has.intermediate_size, has.num_attention_heads, has.num_key_value_heads)
    head_dim = getattr(has, "head_dim", None) or 0
    shape = DecoderShape(*sizes, has.vocab_size, has.tie_word_embeddings, head_dim=head_dim)
    group, lengths = arguments.group_size, (arguments.prompt_tokens, arguments.response_tokens)
    rows = packed(completions / group, lengths[0], group, lengths[1], Settings().row_tokens)
    return update_flops(RunConfig(model=Model(rank=arguments.rank, targets=TARGETS)), shape, rows).total


def _shares_of_peak(model: Any, flops: float, where: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the share of the rate of one large product, measured now, and on known GPUs of the published rate."""
    from flows.gpu_check.machine import product_rate

    rate = product_rate(str(model.device), str(model.dtype).removeprefix("torch."))
    yield figure("update.share_of_peak", flops / rate, "1", where) | {"peak_tflops": round(rate / 1e12, 3)}
    if published := _published_flops():
        yield figure("update.model_flop_utilisation", flops / published, "1", where)


def side_memory(kind: str, arguments: argparse.Namespace, num_adapters: int, rows: int) -> float:
    """Bytes at the peak of building one side and running it twice, beyond what this process held before: nothing of the other."""
    from stages.core.training.cpu import use_cpu

    use_cpu(arguments.threads)
    before = resident()

    def whole() -> None:
        side = _Grouped(arguments, num_adapters, rows) if kind == "ours" else _Peft(arguments, num_adapters, rows)
        side.run()
        side.run()

    return peak_memory(whole) - before


def _published_flops() -> float | None:
    import torch

    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


class _Grouped:
    """Ours: the trainer's own accumulation over one model with stacked adapters."""

    def __init__(self, arguments: argparse.Namespace, num_adapters: int, rows: int, dtype: str = "bfloat16") -> None:
        from stages.core.training.grouped_lora import attach
        from stages.core.training.settings import Settings
        from stages.core.training.torch_trainer import TorchTrainer

        self.model, self.budget = model_of(arguments, dtype), arguments.micro_batch_tokens
        self.lora = attach(self.model, TARGETS, arguments.rank, arguments.rank, num_adapters)
        self.lora.load(update_samples.new_adapters(self.lora.shapes(), arguments.rank, num_adapters))
        self.trainer = TorchTrainer(self.lora, 0, Settings(micro_batch_tokens=self.budget))
        self.samples = _samples(arguments, num_adapters, rows, self.model.config.vocab_size)

    def run(self) -> list[float]:
        """Compute gradients of all adapters in shared passes, and return their norms."""
        self.trainer.accumulate(self.samples, self.budget)
        norms: list[float] = self.lora.gradients_NP.norm(dim=1).tolist()
        self.lora.clear_gradients()
        return norms


class _Peft:
    """The rival: PEFT adapters in one model, made active in turn, over the same samples and loss."""

    def __init__(self, arguments: argparse.Namespace, num_adapters: int, rows: int) -> None:
        from flows.bench.peft_rival import PeftInTurn
        from stages.core.training.grouped_lora import target_shapes
        from stages.core.training.loss import Objective

        model, self.budget = model_of(arguments), arguments.micro_batch_tokens
        self.samples = _samples(arguments, num_adapters, rows, model.config.vocab_size)
        stack = update_samples.new_adapters(target_shapes(model, TARGETS), arguments.rank, num_adapters)
        self.peft = PeftInTurn(model, TARGETS, arguments.rank, stack, Objective())

    def run(self) -> list[float]:
        """Compute gradients of each adapter in separate passes, and return their norms."""
        return self.peft.gradient_norms(self.samples, self.budget)


def _samples(arguments: argparse.Namespace, num_adapters: int, rows: int, vocabulary: int) -> Any:
    """Return `rows` completions of the given lengths for each adapter, as many in a row of one prompt as the group size says."""
    import numpy as np

    from stages.core.training.packing import Samples

    rng, count, group = np.random.default_rng(0), num_adapters * rows, arguments.group_size
    prompts = rng.integers(2, vocabulary, (count // group, arguments.prompt_tokens)).tolist()
    completions = rng.integers(2, vocabulary, (count, arguments.response_tokens)).tolist()
    return Samples(
        names=tuple(f"a{n}" for n in range(num_adapters)),
        slots_S=np.arange(count) // group % num_adapters,
        prompts=[prompts[index // group] for index in range(count)],
        completions=completions,
        engine_logprobs=[np.zeros(arguments.response_tokens)] * count,
        advantages_S=rng.normal(size=count),
        tokens_N=np.full(num_adapters, float(rows * arguments.response_tokens)),
    )
