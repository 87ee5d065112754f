"""The composition root: build the engine, sandbox and trainer of a configuration.

Imports inside functions: torch, transformers, vLLM and docker load when a stage needs them. The flow process, a laptop without
torch and the storage tests never load them. Longer than other files because nearly every part of a configuration is built here,
so that few other files need such imports.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flows.added_rewards import check_added_rewards
from flows.base_model import hub
from flows.base_model.folder import ModelFolder, check_lengths, check_style, check_weights, read_folder
from flows.choices import check_curriculum, choose, estimator_of, gates_of, operators_of, training_settings
from flows.config import PROJECT, ConfigError, RunConfig
from flows.run.earlier_reader import EarlierReader
from flows.run.held_adapters import HeldAdapters, held_by_process
from flows.suites.own_suites import OwnSuites
from flows.suites.suite_data import check_suites, suite_of
from stages.core.engines.agreement import BOUNDS, Scorer, check_agreement
from stages.core.engines.counted import CountedEngine, TokenCount
from stages.core.engines.protocol import Engine
from stages.core.lora.adapter import Adapter
from stages.core.method.rewards import RULES
from stages.core.method.rewards import Rule as RewardRule
from stages.core.progress import Progress, silent
from stages.core.prompts.azr import AzrPrompts
from stages.core.prompts.chat import ChatPrompts
from stages.core.prompts.chat_template import templated
from stages.core.prompts.compact import CompactPrompts
from stages.core.prompts.document import DocumentPrompts
from stages.core.prompts.styles import PromptStyle, Proposed
from stages.core.prompts.trace import TracePrompts
from stages.core.sandbox.protocol import Sandbox
from stages.core.training.protocol import Drift, Stepper, Trainer
from stages.match import MATCHMAKERS

SEED_ROWS = PROJECT / "stages" / "core" / "method" / "seed_rows.jsonl"
MAX_BATCH = 256
STYLES: dict[str, type[PromptStyle]] = {
    "azr": AzrPrompts,
    "compact": CompactPrompts,
    "document": DocumentPrompts,
    "trace": TracePrompts,
}
"""The prompt styles that need no tokenizer."""


class Backend:
    """What one configuration needs from the outside world. Each part is created once, on first use."""

    def __init__(self, config: RunConfig, progress: Progress = silent) -> None:
        self.config, self.progress = config, progress
        self.earlier, self.tokens, self.suites = EarlierReader(), TokenCount(), OwnSuites()
        self._agreed: set[str] = set()
        self._expected = 0

    def check(self) -> None:
        """Check the model's folder, every named choice, the suite and the sandbox, so that a run fails early rather than late."""
        self.model_folder()
        self.style()
        rule = self.check_names()
        check_added_rewards(self.config, hub.style_of(self.config), rule)
        check_suites(self.config.benchmark.suites)
        self.sandbox()

    def check_names(self) -> RewardRule:
        """Check what the configuration names, without the model and the sandbox, and return its reward rule."""
        estimator_of(self.config)
        operators_of(self.config)
        rule = choose("reward.rule", self.config.reward.rule, RULES)
        choose("population.matchmaker", self.config.population.matchmaker, MATCHMAKERS)
        if self.config.propose.curriculum:
            check_curriculum(self.config)
        gates_of(self.config)
        self.suites.file(self.config.benchmark.suite)
        for suite in self.config.benchmark.suites:
            suite_of(suite)
        return rule

    def check_model(self) -> None:
        """Check that the model can be trained, that completions leave room for a prompt, and that its style fits."""
        found = self.model_folder()
        check_lengths(self.config, found)
        check_style(self.config, found)
        self._target_shapes()

    def check_run(self) -> None:
        """Check all that a run needs of model and sandbox: as `check` and `check_model`."""
        self.check_model()
        self.check()

    def close(self) -> None:
        """Close the sandbox, if one was created, and a vLLM engine."""
        made = [self.__dict__.pop("_sandbox", None)]
        if self.config.engine.kind == "vllm":
            made.append(self.__dict__.pop("_engine", None))
        for one in made:
            if one is not None:
                one.close()

    @cached_property
    def held(self) -> HeldAdapters:
        """The adapters that this process holds in memory between stages. Raises ConfigError for a wrong limit."""
        return held_by_process()

    # the model and what works on it -------------------------------------------------------------------------------------

    @cached_property
    def model_path(self) -> str:
        """The model's folder. A hub model is fetched once. Raises ConfigError if the folder does not exist."""
        return str(hub.folder_of(self.config))

    def model_folder(self) -> ModelFolder:
        """Return what the model's files say about it. Raises ConfigError for a model that cannot be trained."""
        found = read_folder(hub.described(self.config), self.config.engine.window)  # before weights are fetched
        check_weights(Path(self.model_path))
        return found

    @cached_property
    def dtype(self) -> str:
        """The type in which this machine computes the base model: float32 on a CPU without bfloat16 units."""
        from stages.core.engines.precision import compute_dtype

        return compute_dtype(self.config.model.device, self.config.model.dtype)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's own tokenizer."""
        from stages.core.engines.hf_engine import load_tokenizer

        return load_tokenizer(self.model_path)

    @cached_property
    def _lora(self) -> Any:
        """The base model with grouped LoRA layers: engine and trainer share one copy of the frozen weights."""
        from stages.core.engines.hf_engine import load_model
        from stages.core.training.cpu import use_cpu
        from stages.core.training.grouped_lora import attach

        use_cpu(self.config.threads)
        rule = self.config.model
        model = load_model(self.model_path, rule.device, rule.dtype)
        return attach(model, rule.targets, rule.rank, rule.alpha, 1, self.window)

    @cached_property
    def _engine(self) -> Any:
        if self.elsewhere:
            from flows.execution.remote_engine import EngineElsewhere

            return EngineElsewhere(self.config, self.tokenizer, self.progress, self._expected)
        if self.config.engine.kind == "vllm":
            return self._vllm_engine()
        from stages.core.engines.hf_engine import HFEngine

        return HFEngine(self._lora, self.tokenizer, {}, self.config.engine.batch_tokens, self.progress, window=self.window)

    @property
    def elsewhere(self) -> bool:
        """Whether the engine is vLLM and this interpreter does not have it. It then runs in a worker of the one that does."""
        return self.config.engine.kind == "vllm" and find_spec("vllm") is None

    def _vllm_engine(self) -> Any:
        from flows import cards
        from stages.core.engines.vllm_engine import EngineLimits, VLLMEngine, on_cuda

        rule, model = self.config.engine, self.config.model
        if cards.usable(model.device) and not on_cuda():
            raise ConfigError("engine.python: its vLLM was built for a CPU and leaves the GPU unused; VLLM_BUILD=cuda make vllm")
        most = max(self.config.served, self._expected)
        limits = EngineLimits(model.rank, model.alpha, most, self.window, dtype=self.dtype)
        limits = replace(limits, max_rows=rule.rows, memory_share=rule.memory_share, compile=rule.compile)
        return VLLMEngine(self.model_path, limits, {}, self.progress)

    @cached_property
    def window(self) -> int:
        """Maximum tokens of a prompt plus its completion: the configured number, at most the model's."""
        from transformers import AutoConfig

        own = int(AutoConfig.from_pretrained(self.model_path, trust_remote_code=False).max_position_embeddings)
        return min(self.config.engine.window or own, own)

    def expect(self, adapters: int) -> None:
        """Let an engine that has not started make room for so many adapters: a benchmark may ask for more than a run does."""
        self._expected = max(self._expected, adapters)

    def engine(self, adapters: Mapping[str, Adapter]) -> Engine:
        """Return the engine, awake (see `rest`), serving these adapters and the base model. `tokens` counts what it does."""
        return CountedEngine(self._serving(adapters), self.tokens)

    def _serving(self, adapters: Mapping[str, Adapter]) -> Engine:
        self.expect(len(adapters))
        if self.config.engine.kind == "vllm" and not self.elsewhere:
            self._engine.wake()
        self._engine.set_adapters({adapter_id: adapter.weights for adapter_id, adapter in adapters.items()})
        return self._engine

    def rest(self) -> None:
        """Put a vLLM engine to sleep, which frees the GPU for the update."""
        if self.config.engine.kind == "vllm" and "_engine" in self.__dict__:
            self._engine.sleep()

    def check_agreement(self, stage: str, adapters: Mapping[str, Adapter]) -> None:
        """Check, once per stage, that engine and trainer give the same log-probabilities for its adapters. Raises Disagreement.

        Applies to an engine that shares a process with the trainer. For vLLM, see flows.execution.agreement.
        """
        if not adapters or stage in self._agreed or self.config.engine.kind == "vllm":  # an empty shard compares nothing
            return
        engine = self._serving(adapters)
        self.progress("engine and trainer compared", 0, 1)
        check_agreement(engine, self._trainer, adapters, self.config.engine.temperature, self.drift_bounds())
        self.progress("engine and trainer compared", 1, 1)
        self._agreed.add(stage)

    def drift_bounds(self, dtype: str = "") -> Drift:
        """Return how far engine and trainer may differ: as configured, or what arithmetic in `dtype` (ours if empty) explains."""
        rule, usual = self.config.engine, BOUNDS[dtype or self.dtype]
        return Drift(rule.max_drift or usual.mean, rule.max_token_drift or usual.largest)

    def engine_version(self) -> dict[str, str]:
        """Return what generated the completions, for manifests."""
        if self.elsewhere:
            return self._engine.versions
        import torch
        import transformers

        versions = {"kind": self.config.engine.kind, "dtype": self.dtype}
        versions |= {"torch": str(torch.__version__), "transformers": transformers.__version__}
        if self.config.engine.kind == "vllm":
            versions |= self._engine.versions
        return versions

    def trainer(self) -> Trainer:
        """Return the trainer, on the same frozen weights as the engine."""
        return self._trainer

    def scorer(self) -> Scorer:
        """Return the trainer, for measurements without a step."""
        return self._trainer

    @cached_property
    def _trainer(self) -> Any:
        from stages.core.training.torch_trainer import TorchTrainer

        return TorchTrainer(self._lora, self.tokenizer.pad_token_id or 0, training_settings(self.config), progress=self.progress)

    def stepper(self) -> Stepper:
        """Return what steps on summed gradients, on the CPU: it needs neither the base model nor a GPU."""
        return self._stepper

    @cached_property
    def _stepper(self) -> Any:
        from stages.core.training.cpu import use_cpu
        from stages.core.training.step import SumStepper

        use_cpu(self.config.threads)
        return SumStepper(training_settings(self.config))

    def initial_adapter(self) -> Adapter:
        """Return a fresh adapter for this model: A from the run's seed, B zero. Every member starts with it."""
        from stages.core.lora.adapter_files import initial_adapter

        return initial_adapter(self._target_shapes(), self.config.model.rank, self.config.seed)

    def _target_shapes(self) -> dict[str, tuple[int, int]]:
        """Module path -> (O, I) of each adapted layer, without loading the model for it: vLLM may have the GPU.

        Raises ConfigError for targets that the model has not.
        """
        if "_lora" in self.__dict__:
            return self._lora.shapes()
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from stages.core.training.grouped_lora import target_shapes

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self.model_path, trust_remote_code=False))
        try:
            return target_shapes(model, self.config.model.targets)
        except ValueError as error:
            raise ConfigError(f"model.targets: {self.config.model.name}: {error}") from error

    def model_digest(self) -> str:
        """Identify the base model: a digest of its folder's files, or of a hub model's name and commit."""
        return hub.digest(self.config)

    def style(self) -> PromptStyle:
        """Return how prompts are written and completions are read. Raises ConfigError for `chat` without a chat template."""
        return self.style_named(hub.style_of(self.config))

    def style_named(self, name: str) -> PromptStyle:
        """Return the prompt style of that name. Raises ConfigError."""
        if name in STYLES:
            return STYLES[name]()
        assert name == "chat", name
        try:
            return ChatPrompts(templated(self.tokenizer))
        except ValueError as error:
            raise ConfigError(f"model.style: chat: {self.config.model.name}: {error}; use document instead") from error

    def batch_rows(self) -> int:
        """Return how many proposals the engine completes in one batch, with prompts about as long as the proposals."""
        if self.config.engine.kind == "vllm":
            return MAX_BATCH
        return min(MAX_BATCH, max(32, self.config.engine.batch_tokens // (2 * self.config.propose.max_new_tokens)))

    def shipped_tasks(self) -> list[Proposed]:
        """Return the tasks that the project ships to top up the seed: with one input, or with many and a message."""
        rows = [json.loads(line) for line in SEED_ROWS.read_text(encoding="utf-8").splitlines()]
        return [Proposed(row["program"], tuple(row["inputs"]), row["message"]) for row in rows]

    def fits(self, max_new_tokens: int) -> Callable[[str], bool]:
        """Return a check of whether a prompt leaves room for that many tokens in the model's window."""
        tokenizer, window = self.tokenizer, self.window  # not the engine's: the judge's process may not have one
        return lambda text: len(tokenizer.encode(text)) + max_new_tokens <= window

    def answerable(self, max_new_tokens: int) -> Callable[[str], bool]:
        """Return a check of whether a text has at most that many tokens."""
        tokenizer = self.tokenizer
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False)) <= max_new_tokens

    # judging -------------------------------------------------------------------------------------------------------------

    @cached_property
    def _sandbox(self) -> Sandbox:
        rule = self.config.sandbox
        return self.sandbox_with(cpu_seconds=rule.cpu_seconds, wall_seconds=rule.wall_seconds, memory_mb=rule.memory_mb)

    def sandbox_with(self, window: int = 64, **chosen: Any) -> Sandbox:
        """Return a separate pool with limits other than the configuration's. The caller closes it."""
        from stages.core.sandbox.link import RunLimits

        rule, limits = self.config.sandbox, RunLimits(**chosen)
        if rule.kind == "local":
            from stages.core.sandbox.local import LocalSandbox

            return LocalSandbox(rule.containers, limits, window, rule.recycle_after)
        from stages.core.sandbox.docker import DockerSandbox

        return DockerSandbox(rule.image, rule.containers, limits, rule.runtime or None, window, rule.recycle_after)

    @property
    def judges_early(self) -> bool:
        """Whether completions are judged while others are written (flows.steps.early_judging)."""
        from stages.core.engines.precision import on_gpu

        rule = self.config.sandbox.early
        return on_gpu(self.config.model.device) if rule == "auto" else rule == "on"

    def sandbox(self) -> Sandbox:
        """Return the configuration's sandbox with a warm pool."""
        return self._sandbox

    def walls(self) -> dict[str, object]:
        """Return what judged, as manifests record it: the part of the attestation that is equal in equal runs."""
        attested = self.sandbox().attestation()
        names = ("kind", "wall", "image", "runner_sha256", "python", "missing", "runtime")
        return {name: attested[name] for name in names if name in attested}
