"""`populora bench rollout --model PATH`: the completions of a generation on a real checkpoint, against other engines.

Every adapter has some prompts that begin with the same instructions and end in tokens of their own, several completions of each
prompt, and lengths drawn between LENGTHS. End tokens are disabled, so a length is a limit; no side uses it to choose an order.
All sides get the same requests, adapters and threads at temperature 1, each in a process of its own, in turns; tokens per second
are medians, and memory is the peak of the process. Rivals:

- `model_generate`: transformers' `generate` with PEFT, each adapter set in turn, its requests in one batch padded on the left.
- `vllm`: our vLLM engine, if `--vllm-python` names an interpreter that has it.
- `checkout`: the transformers engine of another checkout of this project, if `--checkout` names one.

A side is this file, run by the interpreter and in the checkout that it belongs to: it uses only what older checkouts have, too.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LENGTHS = (20, 200)  # tokens of a completion
OWN = (20, 100)  # tokens of a prompt after the instructions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that count with `--model`."""
    parser.add_argument("--instructions", type=int, default=400, help="with --model: tokens that all prompts of an adapter share")
    parser.add_argument("--prompts", type=int, default=2, help="with --model: prompts of an adapter")
    parser.add_argument("--attempts", type=int, default=8, help="with --model: completions of a prompt")
    parser.add_argument("--longest", type=int, default=LENGTHS[1], help="with --model: tokens of the longest completion")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="as model.dtype (default: bfloat16; seed: float32)")
    parser.add_argument(
        "--vllm-python", type=existing, default="", help="with --model: an interpreter with vLLM, measured as a rival"
    )
    parser.add_argument(
        "--checkout", type=existing, default="", help="with --model: another checkout, whose engine is measured as a rival"
    )
    parser.add_argument(
        "--no-generate", action="store_true", help="with --model: leave model_generate out; on a CPU it takes most of the time"
    )


def existing(text: str) -> str:
    """Return the path if it exists, for argparse."""
    if text and not Path(text).exists():
        raise argparse.ArgumentTypeError(f"{text!r} does not exist")
    return text


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield tokens per second and memory of our engine against each rival; `ratio` over 1: ours is better."""
    from flows.bench.side import Side
    from flows.bench.turns import in_turns

    spec = {name: getattr(arguments, name) for name in ("instructions", "prompts", "attempts", "longest", "rank", "threads")}
    spec |= {
        "dtype": arguments.dtype or "bfloat16",
        "model": str(Path(arguments.model).resolve()),
        "device": arguments.device,
        "adapters": arguments.against,
    }
    places = {"ours": (sys.executable, PROJECT, "transformers")}
    if not arguments.no_generate:
        places["model_generate"] = (sys.executable, PROJECT, "generate")
    if arguments.vllm_python:
        places["vllm"] = (arguments.vllm_python, PROJECT, "vllm")
    if arguments.checkout:
        places["checkout"] = (sys.executable, Path(arguments.checkout).resolve(), "transformers")
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(Side(__file__, python, checkout, spec | {"kind": kind}))
            for name, (python, checkout, kind) in places.items()
        }
        for side in sides.values():
            side.turn()  # warm-up
        found = in_turns(arguments.repeats, {name: side.turn for name, side in sides.items()})
    rates = {name: statistics.median(turn["tokens"] / turn["seconds"] for turn in turns) for name, turns in found.items()}
    peaks = {name: max(turn["peak"] for turn in turns) / 2**20 for name, turns in found.items()}
    where = {"model": Path(arguments.model).name, "adapters": arguments.against, "rows": found["ours"][0]["requests"]}
    for name in [name for name in sides if name != "ours"]:
        paired = {"against": name, "rival": round(rates[name], 2), "ratio": round(rates["ours"] / rates[name], 3)}
        yield {"name": "rollout.tokens_per_s", "value": round(rates["ours"], 2), "unit": "tokens/s"} | where | paired
        if name != "vllm":  # it computes in other processes
            paired = {"against": name, "rival": round(peaks[name]), "ratio": round(peaks[name] / peaks["ours"], 3)}
            yield {"name": "memory.rollout", "value": round(peaks["ours"]), "unit": "MiB"} | where | paired


def requests(spec: dict[str, Any], vocabulary: int) -> list[Any]:
    """Return the requests of all adapters, the same in every process."""
    import numpy as np

    from stages.core.engines.protocol import Request

    rng, asked = np.random.default_rng(0), []
    instructions = tuple(rng.integers(2, vocabulary, spec["instructions"]).tolist())
    for adapter in range(spec["adapters"]):
        for prompt in range(spec["prompts"]):
            ids = (*instructions, *rng.integers(2, vocabulary, rng.integers(*OWN)).tolist())
            limits = rng.integers(min(LENGTHS[0], spec["longest"]), spec["longest"] + 1, spec["attempts"])
            asked += [Request(ids, f"a{adapter}", 1000 * prompt + attempt, int(limit)) for attempt, limit in enumerate(limits)]
    return asked


class _Endless:
    """A tokenizer without an end-of-sequence token."""

    eos_token_id = None

    def get_added_vocab(self) -> dict[str, int]:
        return {}


def _weights(shapes: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Return adapters whose B is not zero."""
    import numpy as np

    from stages.core.lora.adapter_files import initial_adapter

    found = {}
    for adapter in range(spec["adapters"]):
        rng = np.random.default_rng(adapter)
        fresh = initial_adapter(shapes, spec["rank"], adapter).weights
        found[f"a{adapter}"] = {
            name: rng.normal(0, 0.002, array.shape).astype(np.float32) if "lora_B" in name else array
            for name, array in fresh.items()
        }
    return found


def _transformers(spec: dict[str, Any]) -> Callable[[], tuple[int, int]]:
    from stages.core.engines.hf_engine import HFEngine, load_model
    from stages.core.training.grouped_lora import attach

    model: Any = load_model(spec["model"], spec["device"], spec["dtype"])
    model.generation_config.eos_token_id = None
    lora = attach(model, TARGETS, spec["rank"], spec["rank"], 1)
    engine = HFEngine(lora, _Endless(), _weights(lora.shapes(), spec))
    asked = requests(spec, model.config.vocab_size)
    return lambda: (sum(len(one.token_ids) for one in engine.generate(asked, 1.0)), len(asked))


def _generate(spec: dict[str, Any]) -> Callable[[], tuple[int, int]]:
    import torch
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    from stages.core.engines.hf_engine import load_model
    from stages.core.training.grouped_lora import target_shapes

    model: Any = load_model(spec["model"], spec["device"], spec["dtype"])
    model.generation_config.eos_token_id = None
    weights, asked = _weights(target_shapes(model, TARGETS), spec), requests(spec, model.config.vocab_size)
    config = LoraConfig(r=spec["rank"], lora_alpha=spec["rank"], target_modules=list(TARGETS))
    peft: Any = get_peft_model(model, config, adapter_name="a0")
    for name, arrays in weights.items():
        if name != "a0":
            peft.add_adapter(name, config)
        set_peft_model_state_dict(peft, {key: torch.from_numpy(array) for key, array in arrays.items()}, adapter_name=name)

    def turn() -> tuple[int, int]:
        written = 0
        for name in weights:
            peft.set_adapter(name)
            own = [request for request in asked if request.adapter_id == name]
            longest = max(len(request.prompt_ids) for request in own)
            ids = torch.tensor([[0] * (longest - len(request.prompt_ids)) + list(request.prompt_ids) for request in own])
            mask = torch.tensor([[int(place >= longest - len(r.prompt_ids)) for place in range(longest)] for r in own])
            limit = max(request.max_new_tokens for request in own)
            with torch.inference_mode():
                device = next(model.parameters()).device
                peft.generate(
                    input_ids=ids.to(device),
                    attention_mask=mask.to(device),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=limit,
                    pad_token_id=0,
                )
            written += sum(request.max_new_tokens for request in own)  # what is beyond a row's own length is not asked for
        return written, len(asked)

    return turn


def _vllm(spec: dict[str, Any]) -> Callable[[], tuple[int, int]]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from stages.core.engines.precision import compute_dtype
    from stages.core.engines.vllm_engine import EngineLimits, VLLMEngine
    from stages.core.training.grouped_lora import target_shapes

    config = AutoConfig.from_pretrained(spec["model"], trust_remote_code=False)
    with torch.device("meta"):
        shapes = target_shapes(AutoModelForCausalLM.from_config(config), TARGETS)
    asked, weights = requests(spec, config.vocab_size), _weights(shapes, spec)
    window = max(len(request.prompt_ids) + request.max_new_tokens for request in asked)
    rank = spec["rank"]
    limits = EngineLimits(rank, rank, len(weights), window, dtype=compute_dtype(spec["device"], spec["dtype"]), compile=False)
    engine = VLLMEngine(spec["model"], limits, weights)
    engine.ends = frozenset()
    return lambda: (sum(len(one.token_ids) for one in engine.generate(asked, 1.0)), len(asked))


def serve(spec: dict[str, Any]) -> None:
    """Build one side, then answer each line of standard input with one turn."""
    if spec["kind"] != "vllm":
        from stages.core.training.cpu import use_cpu

        use_cpu(spec["threads"])
    turn = {"transformers": _transformers, "generate": _generate, "vllm": _vllm}[spec["kind"]](spec)
    for _ in sys.stdin:
        started = time.perf_counter()
        tokens, asked = turn()
        seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer = {"seconds": seconds, "tokens": tokens, "requests": asked, "peak": peak}
        print(f"\nside: {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
