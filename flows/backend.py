"""The composition root: from a configuration to the engine, sandbox and trainer that do the work.

The only place with imports inside functions: torch, transformers, vLLM, docker load when a stage needs them, so that the flow
process, a laptop without torch and the tests of storage never do.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flows.choices import choose
from flows.config import PROJECT, ConfigError, RunConfig
from flows.probe_keys import probe_keys
from flows.suite_data import check_suites
from stages import evolve as evolution
from stages.core.engine import Engine
from stages.core.gates import GATES
from stages.core.prompts import PromptStyle
from stages.core.rating import Rating
from stages.core.rewards import RULES
from stages.core.sandbox import Sandbox
from stages.core.trainer import Adapter, Trainer
from stages.match import MATCHMAKERS
from stages.reward import ESTIMATORS, Estimator

SUITES = PROJECT / "infra" / "benchmarks"
PROBE = ("probe-dev", "probe-test")


class Backend:
    """What one configuration needs from the outside world; each part is made once, when first asked for."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._agreed: set[str] = set()

    def check(self) -> None:
        """Fails early where a run would fail late: the model's folder, every named choice, the suite, the sandbox."""
        _ = self.model_path
        self.style()
        self.estimator()
        self.operators()
        choose("reward.rule", self.config.reward.rule, RULES)
        choose("population.matchmaker", self.config.population.matchmaker, MATCHMAKERS)
        for gate in self.config.reward.gates:
            choose("reward.gates", gate, GATES)
        self._suite_file(self.config.benchmark.suite)
        check_suites(self.config.benchmark.suites)
        self.sandbox()

    def close(self) -> None:
        """Ends the sandbox, if one was made."""
        made = self.__dict__.pop("_sandbox", None)
        if made is not None:
            made.close()

    # the model and what works on it -------------------------------------------------------------------------------------

    @cached_property
    def model_path(self) -> str:
        """The model's folder, or its name on the hub. Raises ConfigError for a folder that is not there."""
        name = self.config.model.name
        local = Path(name) if Path(name).is_absolute() else PROJECT / name
        if local.is_dir():
            return str(local)
        if name.count("/") != 1 or name.startswith((".", "/")):
            raise ConfigError(f"model.name: there is no folder {name}")
        return name

    @cached_property
    def _tokenizer(self) -> Any:
        from stages.core.hf_engine import load_tokenizer

        return load_tokenizer(self.model_path)

    @cached_property
    def _lora(self) -> Any:
        """The base model with grouped LoRA layers: engine and trainer share one copy of the frozen weights."""
        from stages.core.cpu import use_cpu
        from stages.core.grouped_lora import attach
        from stages.core.hf_engine import load_model

        use_cpu(self.config.threads)
        rule = self.config.model
        model = load_model(self.model_path, rule.device, rule.dtype)
        return attach(model, rule.targets, rule.rank, rule.alpha, 1)

    @cached_property
    def _engine(self) -> Any:
        if self.config.engine.kind == "vllm":
            return self._vllm_engine()
        from stages.core.hf_engine import HFEngine

        return HFEngine(self._lora, self._tokenizer, {}, self.config.engine.batch_tokens)

    def _vllm_engine(self) -> Any:
        from stages.core.vllm_engine import Limits, VLLMEngine

        rule, model, members = self.config.engine, self.config.model, self.config.population
        limits = Limits(model.rank, model.alpha, members.teachers + members.students, self.window, dtype=model.dtype)
        limits = replace(limits, batch_tokens=max(8192, self.window), memory_share=rule.memory_share, compile=rule.compile)
        return VLLMEngine(self.model_path, limits, {})

    @cached_property
    def window(self) -> int:
        """Tokens that a prompt and its completion may hold together: the configured number, at most the model's."""
        from transformers import AutoConfig

        own = int(AutoConfig.from_pretrained(self.model_path).max_position_embeddings)
        return min(self.config.engine.window or own, own)

    def engine(self, adapters: Mapping[str, Adapter]) -> Engine:
        """The engine, serving these adapters and the base model; awake, see `rest`."""
        if self.config.engine.kind == "vllm":
            self._engine.wake()
        self._engine.set_adapters({adapter_id: adapter.weights for adapter_id, adapter in adapters.items()})
        engine: Engine = self._engine
        return engine

    def rest(self) -> None:
        """After the last rollout of a generation: a vLLM engine leaves the GPU to the update."""
        if self.config.engine.kind == "vllm":
            self._engine.sleep()

    def check_agreement(self, stage: str, adapters: Mapping[str, Adapter]) -> None:
        """At a stage's first turn: engine and trainer give the same log-probabilities for its adapters. Raises Disagreement.

        For an engine that shares a process with the trainer; vLLM's completions are compared in the update.
        """
        from stages.core.agreement import check_agreement

        if stage in self._agreed or self.config.engine.kind == "vllm":
            return
        rule = self.config.engine
        check_agreement(self.engine(adapters), self._trainer, adapters, rule.temperature, rule.max_drift)
        self._agreed.add(stage)

    def engine_version(self) -> dict[str, str]:
        """What made the completions, for manifests."""
        import torch
        import transformers

        versions = {"kind": self.config.engine.kind, "torch": str(torch.__version__), "transformers": transformers.__version__}
        if self.config.engine.kind == "vllm":
            import vllm  # type: ignore[import-not-found,unused-ignore]

            versions["vllm"] = str(vllm.__version__)
        return versions

    def trainer(self) -> Trainer:
        """The trainer, on the same frozen weights as the engine."""
        trainer: Trainer = self._trainer
        return trainer

    @cached_property
    def _trainer(self) -> Any:
        from stages.core.loss import Objective
        from stages.core.torch_trainer import Settings, TorchTrainer

        rule = self.config.learning
        objective = Objective(
            clip_range=rule.clip_range,
            entropy_bonus=rule.entropy_bonus,
            kl=rule.kl,
            importance_cap=rule.importance_cap,
            temperature=self.config.engine.temperature,
        )
        settings = Settings(
            objective=objective,
            learning_rate=rule.learning_rate,
            warmup=rule.warmup,
            betas=rule.betas,
            weight_decay=rule.weight_decay,
            max_grad_norm=rule.max_grad_norm,
            micro_batch_tokens=rule.micro_batch_tokens,
            gradient_checkpointing=rule.gradient_checkpointing,
        )
        return TorchTrainer(self._lora, self._tokenizer.pad_token_id or 0, settings)

    def initial_adapter(self) -> Adapter:
        """A fresh adapter for this model: A from the run's seed, B zero; every member starts with it."""
        from stages.core.adapter_files import initial_adapter

        return initial_adapter(self._lora.shapes(), self.config.model.rank, self.config.seed)

    def model_digest(self) -> str:
        """sha256 over names and bytes of the base model's files; of the name alone for one on the hub."""
        folder = Path(self.model_path)
        if not folder.is_dir():
            return hashlib.sha256(self.model_path.encode()).hexdigest()
        total = hashlib.sha256()
        for file in sorted(folder.iterdir()):
            if file.suffix in (".json", ".safetensors"):
                total.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        return total.hexdigest()

    def style(self) -> PromptStyle:
        """How prompts are written and completions read."""
        if self.config.model.style == "compact":
            from stages.core.compact_prompts import CompactPrompts

            return CompactPrompts()
        from stages.core.chat_prompts import ChatPrompts

        return ChatPrompts()

    def fits(self, max_new_tokens: int) -> Callable[[str], bool]:
        """Whether a prompt leaves room for that many tokens in the model's window."""
        tokenizer, window = self._tokenizer, self.window  # not the engine's: the judge's process need not have one
        return lambda text: len(tokenizer.encode(text)) + max_new_tokens <= window

    # judging -------------------------------------------------------------------------------------------------------------

    @cached_property
    def _sandbox(self) -> Sandbox:
        rule = self.config.sandbox
        return self.sandbox_with(cpu_seconds=rule.cpu_seconds, wall_seconds=rule.wall_seconds, memory_mb=rule.memory_mb)

    def sandbox_with(self, window: int = 64, **chosen: Any) -> Sandbox:
        """A pool of its own, with other limits than the configuration's; to be closed by whoever asked for it."""
        from stages.core.sandbox_pool import Limits

        rule, limits = self.config.sandbox, Limits(**chosen)
        if rule.kind == "local":
            from stages.core.local_sandbox import LocalSandbox

            return LocalSandbox(rule.containers, limits, window, rule.recycle_after)
        from stages.core.docker_sandbox import DockerSandbox

        return DockerSandbox(rule.image, rule.containers, limits, rule.runtime or None, window, rule.recycle_after)

    def sandbox(self) -> Sandbox:
        """The sandbox of the configuration, its pool warm."""
        return self._sandbox

    def walls(self) -> dict[str, object]:
        """What judged, as manifests record it: the part of the attestation that is equal in equal runs."""
        attested = self.sandbox().attestation()
        names = ("kind", "wall", "image", "runner_sha256", "python", "missing", "runtime")
        return {name: attested[name] for name in names if name in attested}

    # choices -------------------------------------------------------------------------------------------------------------

    def estimator(self) -> Estimator:
        """The advantage estimator; the project's own REINFORCE++ takes the configuration's switches."""
        learning = self.config.learning
        chosen = choose("learning.estimator", learning.estimator, ESTIMATORS)
        if learning.estimator == "reinforce_plus_plus_baseline":
            return partial(chosen, lone_by_kind=learning.teacher_baseline == "group", shift=learning.whiten_shift)
        return chosen

    def policy(self) -> evolution.Policy:
        """The evolution policy, as its stage wants it."""
        rule, fresh = self.config.evolution, Rating(self.config.rating.mu, self.config.rating.sigma)
        return evolution.Policy(**rule.model_dump(), fresh=fresh)

    def operators(self) -> dict[str, evolution.Operator]:
        """The operators of the policy's space by name, the user's own included."""
        from stages.core.lora import operators

        rule = self.config.evolution
        if rule.space == "paper":
            from stages.core.lora_paper import PAPER_OPERATORS

            known = operators(known=PAPER_OPERATORS)
        else:
            known = operators()
        return {name: choose("evolution", name, known) for name in (*rule.mutations, *rule.crossovers)}

    # suites --------------------------------------------------------------------------------------------------------------

    def problems(self, suite: str) -> pa.Table:
        """The problems of a suite. Raises ConfigError for one that is not there."""
        return pq.read_table(self._suite_file(suite))

    def suite_digest(self, suite: str) -> str:
        """sha256 of the suite's file."""
        return hashlib.sha256(self._suite_file(suite).read_bytes()).hexdigest()

    def probe_keys(self) -> frozenset[str]:
        """Program keys of both halves of the probe, as the sandbox computes them: what no buffer may hold."""
        return self._probe_keys

    @cached_property
    def _probe_keys(self) -> frozenset[str]:
        return probe_keys(sorted({program for half in PROBE for program in self.problems(half)["program"].to_pylist()}))

    def _suite_file(self, suite: str) -> Path:
        path = SUITES / f"{suite}.parquet"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in SUITES.glob("*.parquet")))
            raise ConfigError(f"benchmark.suite: {suite!r} is none of {known}")
        return path
