"""`populora bench rollout`: completions of many adapters in one call against one engine call per adapter.

Both sides use the same engine, prompts and seeds, so the bench measures the mixed batch. The end-of-sequence token is disabled,
so that every completion has its full length. Turns alternate and medians are compared. vLLM is measured in its own
environment: `.venv-vllm/bin/python -m flows.bench.rollout --engine vllm`. With `--model PATH`, see flows.bench.rollout_model.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from flows.bench import rollout_model
from flows.bench.memory import peak_memory
from flows.bench.update import SEED_MODEL, TARGETS, against, figure, model_of, parser, timed

PROMPT = 96  # tokens
ATTEMPTS = 8  # completions of one prompt
LENGTH = 32  # tokens of a completion


def main(options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per figure; `ratio` over 1: the mixed call is faster than one per adapter, or a single adapter's."""
    from stages.core.training.cpu import use_cpu

    options_of_rollout = parser("rollout", "256,1024")
    options_of_rollout.add_argument(
        "--engine", choices=("transformers", "vllm"), default="transformers", help="engine that is measured"
    )
    rollout_model.add_options(options_of_rollout)
    arguments = options_of_rollout.parse_args(options)
    if arguments.model:
        yield from rollout_model.measure(arguments)
        return
    use_cpu(arguments.threads)
    bench = _Bench(arguments, max([*arguments.adapters, arguments.against]))
    plans = [("equal_total", num, arguments.total // num) for num in arguments.adapters]
    plans += [("equal_each", arguments.against, tokens) for tokens in arguments.tokens]
    for layout, num_adapters, tokens in plans:
        prompts = max(1, tokens // (ATTEMPTS * LENGTH))
        where = {
            "shape": arguments.shape,
            "layout": layout,
            "adapters": num_adapters,
            "tokens_per_adapter": prompts * ATTEMPTS * LENGTH,
        }
        yield from bench.paired(num_adapters, prompts, arguments.repeats, where)


class _Endless:
    """A tokenizer without an end-of-sequence token: completions run to their limit."""

    eos_token_id = None

    def get_added_vocab(self) -> dict[str, int]:
        return {}


def _transformers(model: Any, rank: int, _: int) -> Any:
    from stages.core.engines.hf_engine import HFEngine
    from stages.core.training.grouped_lora import attach

    model.generation_config.eos_token_id = None
    return HFEngine(attach(model, TARGETS, rank, rank, 1), _Endless(), {})


def _vllm(model: Any, rank: int, num_adapters: int) -> Any:
    """Return a vLLM engine. Requires the interpreter of .venv-vllm and, for its tokenizer, the seed model."""
    from stages.core.engines.vllm_engine import EngineLimits, VLLMEngine

    limits = EngineLimits(rank, rank, num_adapters, window=256, compile=False, dtype=str(model.dtype).removeprefix("torch."))
    engine = VLLMEngine(str(SEED_MODEL), limits, {})
    engine.ends = frozenset()
    return engine


class _Bench:
    """One engine and its adapters; calls that serve requests together or one adapter at a time."""

    def __init__(self, arguments: Any, num_adapters: int) -> None:
        import numpy as np

        from stages.core.lora.adapter_files import initial_adapter
        from stages.core.training.grouped_lora import target_shapes

        # every configuration of the seed model computes in float32
        dtype = arguments.dtype or ("float32" if arguments.shape == "seed" else "bfloat16")
        model, rank = model_of(arguments, dtype), arguments.rank
        shapes = target_shapes(model, TARGETS)
        self.adapters = {f"a{n}": initial_adapter(shapes, rank, n).weights for n in range(num_adapters)}
        self.engine: Any = (_vllm if arguments.engine == "vllm" else _transformers)(model, rank, num_adapters)
        self.vocabulary = int(model.config.vocab_size)
        self.rng: Any = np.random.default_rng(0)

    def requests(self, num_adapters: int, prompts: int) -> list[Any]:
        """Return requests for ATTEMPTS completions of each prompt; all prompts differ."""
        from stages.core.engines.protocol import Request

        names = list(self.adapters)[:num_adapters]
        drawn = [(name, tuple(self.rng.integers(2, self.vocabulary, PROMPT).tolist())) for name in names for _ in range(prompts)]
        return [Request(ids, name, seed, LENGTH) for name, ids in drawn for seed in range(ATTEMPTS)]

    def paired(self, num_adapters: int, prompts: int, repeats: int, where: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Compare the mixed call with one call per adapter, and with one adapter and as many requests."""
        mixed, single = self.requests(num_adapters, prompts), self.requests(1, num_adapters * prompts)
        done, together = float(len(mixed) * LENGTH), partial(self.together, mixed)
        rivals = {"one_call_per_adapter": partial(self.apart, mixed), "single_adapter": partial(self.together, single)}
        for name, rival in rivals.items():
            seconds, rival_seconds = timed(repeats, together, rival)
            yield figure("rollout.tokens_per_s", done / seconds, "tokens/s", where) | against(
                name, done / rival_seconds, rival_seconds / seconds
            )
        yield figure("memory.rollout", peak_memory(together) / 2**20, "MiB", where)

    def together(self, requests: list[Any]) -> None:
        """Serve all adapters in one call."""
        self._serve({request.adapter_id: self.adapters[request.adapter_id] for request in requests})
        self.engine.generate(requests, 1.0)

    def apart(self, requests: list[Any]) -> None:
        """Serve each adapter in its own call."""
        for name in dict.fromkeys(request.adapter_id for request in requests):
            self._serve({name: self.adapters[name]})
            self.engine.generate([request for request in requests if request.adapter_id == name], 1.0)

    def _serve(self, adapters: Mapping[str, Any]) -> None:
        self.engine.set_adapters(adapters)


if __name__ == "__main__":
    for _line in main(sys.argv[1:]):
        print(json.dumps(_line), flush=True)
