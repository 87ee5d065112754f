"""An engine in another interpreter: vLLM for a process that cannot load it because it has Prefect.

The caller keeps problems, sandbox and graders. A warm worker (flows.worker) in the interpreter of `engine.python` keeps the model
and answers orders. An order names a configuration, a folder of adapters, and requests. Text is tokenized and decoded here.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from flows.backend import Backend
from flows.config import ConfigError, RunConfig, dump, parse
from flows.execution.stage_process import Workers
from flows.monitoring.meter import Reading
from stages.core.engines.protocol import Completion, Ended, Request
from stages.core.lora.adapter import Adapter, Weights
from stages.core.progress import Progress, silent

KEY = "requests"  # distinguishes an order from a step
SLEEP = "sleep"
EXPECTED = "expected"


class EngineElsewhere:
    """Implements `Engine` by orders to a worker. The caller closes it."""

    def __init__(self, config: RunConfig, tokenizer: Any, progress: Progress = silent, expected: int = 0) -> None:
        self._config, self._tokenizer, self._progress, self._expected = config, tokenizer, progress, expected
        self._folder = tempfile.TemporaryDirectory(prefix="populora-engine-")
        self._workers = Workers(config.threads)
        self._turn = 0
        self.set_adapters({})
        told = self._order([], 0.0)
        self.window = int(told["window"])
        self.versions: dict[str, str] = told["versions"]
        self._ends = frozenset(told["ends"])

    def set_adapters(self, adapters: Mapping[str, Weights]) -> None:
        """Serve only these adapters from now on."""
        shutil.rmtree(Path(self._folder.name) / str(self._turn), ignore_errors=True)  # the worker has read it
        self._turn += 1
        self._served = Path(self._folder.name) / str(self._turn)
        self._served.mkdir()
        for number, weights in enumerate(adapters.values()):
            save_file(dict(weights), self._served / f"{number}.safetensors")
        self._names = list(adapters)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        return list(self._tokenizer.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion, without the end-of-sequence token."""
        kept = [token for token in token_ids if token not in self._ends]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        """Return completions in the order of the requests. Raises `EngineUnavailable`, also if the worker has exited.

        The worker answers when all have ended: `ended` is called for each of them then.
        """
        if not requests:
            return []
        found = self._order([asdict(request) for request in requests], temperature)["completions"]
        completions = [Completion(tuple(tokens), tuple(logprobs), truncated) for tokens, logprobs, truncated in found]
        if ended is not None:
            for place, completion in enumerate(completions):
                ended(place, completion)
        return completions

    def sleep(self) -> None:
        """Let the worker's engine free the GPU; it wakes at the next order."""
        self._order([], 0.0, then_sleep=True)

    def _order(self, requests: list[dict[str, Any]], temperature: float, then_sleep: bool = False) -> dict[str, Any]:
        order = {"config": dump(self._config), "folder": str(self._served), "names": self._names, "temperature": temperature}
        order |= {SLEEP: then_sleep, EXPECTED: self._expected}
        return self._workers.ask(order | {KEY: requests}, self._config.engine.python, "the engine", self._told)

    def _told(self, reading: Reading) -> None:
        """Report the worker's counts as our own; its tokens belong to the innermost."""
        for what, done, total in reading.counts:
            self._progress(what, done, total, reading.tokens if what == reading.counts[-1][0] else 0)

    def close(self) -> None:
        """Stop the worker."""
        self._workers.__exit__()
        self._folder.cleanup()


class Served:
    """The worker's side: answers orders in its process."""

    def __init__(self, backend_of: Callable[[RunConfig], Backend]) -> None:
        self._backend_of = backend_of
        self._held: tuple[str, Mapping[str, Adapter]] = ("", {})

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Return the completions of an order's requests; without requests, a description of the engine."""
        backend = self._backend_of(parse(dict(order["config"])))
        if backend.elsewhere:  # it would ask a worker like this one
            raise ConfigError(f"engine.python: {sys.executable} has no vLLM; run make vllm, or give a Python that has it")
        if self._held[0] != order["folder"]:
            files = [Path(order["folder"]) / f"{number}.safetensors" for number in range(len(order["names"]))]
            adapters = {name: Adapter(load_file(file), {}, 0) for name, file in zip(order["names"], files, strict=True)}
            self._held = (order["folder"], adapters)
        if order.get(SLEEP):
            backend.rest()
            return {}
        backend.expect(int(order.get(EXPECTED, 0)))
        engine: Any = backend.engine(self._held[1])
        if not order[KEY]:
            return {"window": engine.window, "ends": sorted(engine.ends), "versions": backend.engine_version()}
        requests = [_request(values) for values in order[KEY]]
        found = engine.generate(requests, order["temperature"])
        return {"completions": [(one.token_ids, one.logprobs, one.truncated) for one in found]}


def _request(values: Mapping[str, Any]) -> Request:
    return Request(**{**values, "prompt_ids": tuple(values["prompt_ids"]), "stops": tuple(values["stops"])})
