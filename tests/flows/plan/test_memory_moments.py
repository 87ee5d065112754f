"""What a card holds at each moment of two generations at 7B shapes, counted behind the stages, is what the plan says of it."""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.backend import Backend
from flows.config import RunConfig, dump, load
from flows.execution.agreement import compared, probed
from flows.execution.recorded import clock, versions
from flows.execution.run_stage import Spec, execute
from flows.execution.session import Session
from flows.execution.stage_process import REST, Workers
from flows.monitoring.progress import Display
from flows.plan.decoder_shape import KNOWN, adapter_parameters
from flows.plan.memory_plan import (
    ASLEEP,
    CONTEXT,
    GRAPHS,
    PROBE,
    REDUCED,
    beside_vllm,
    update_peaks,
)
from flows.run.lease import hold
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import open_store
from stages.core.engines.agreement import PROMPTS, TOKENS
from stages.core.engines.hf_engine import HFEngine
from stages.core.engines.protocol import Completion, Ended, Request
from stages.core.lora.adapter import Adapter, Weights
from stages.core.training.protocol import Drift, Update

SHAPE, BYTES, WIDTH = KNOWN["Qwen2.5-Coder-7B"], 80e9, 2
VLLM = "/its/own/python"
SETTINGS = ["engine.kind=vllm", f"engine.python={VLLM}", "model.dtype=bfloat16", "model.rank=32", "benchmark.every=1"]
SETTINGS += ["sandbox.kind=local", "benchmark.limit=2", "learning.gradient_checkpointing=true", "generations=2"]
ASIDE = ("match", "verify", "grade", "reward", "rate")


class CountedCard:
    """Counts what is held on a card, and the most since it was last asked."""

    def __init__(self) -> None:
        self.held: dict[str, float] = {}
        self._most = 0.0

    def hold(self, name: str, size: float) -> None:
        """Allocate."""
        assert name not in self.held, name
        self.held[name] = size
        self._most = max(self._most, sum(self.held.values()))

    def drop(self, *names: str) -> None:
        """Free."""
        for name in names:
            del self.held[name]

    def most(self) -> float:
        """The peak since the last call."""
        most, self._most = self._most, sum(self.held.values())
        return most


class CountedVLLM:
    """Takes its share of the card and answers as the seed model does; refuses to work while it sleeps."""

    def __init__(self, card: CountedCard, config: RunConfig, answers: HFEngine) -> None:
        self._card, self._share, self._answers = card, config.engine.memory_share * BYTES, answers
        self.window, self.ends = answers.window, answers.ends
        self._take()

    def _take(self) -> None:
        self._card.hold("vLLM", self._share)
        self._card.hold("graphs", GRAPHS)

    def set_adapters(self, adapters: Mapping[str, Weights]) -> None:
        self._answers.set_adapters(adapters)

    def encode(self, text: str) -> list[int]:
        return self._answers.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._answers.decode(token_ids)

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        assert "vLLM" in self._card.held
        return self._answers.generate(requests, temperature, ended)

    def sleep(self) -> None:
        if "vLLM" in self._card.held:
            self._card.drop("vLLM", "graphs")
            self._card.hold("asleep", ASLEEP)

    def wake(self) -> None:
        if "asleep" in self._card.held:
            self._card.drop("asleep")
            self._take()

    def close(self) -> None:
        pass  # it published no adapters


class CountedTrainer:
    """Holds a 7B base and the stack of adapters that it saw last, as GroupedLoRA and TorchTrainer do; its steps are invented."""

    def __init__(self, card: CountedCard, config: RunConfig) -> None:
        self._card, self._config, self._rows = card, config, 1
        self._parameters = adapter_parameters(SHAPE, config.model.targets, config.model.rank)
        card.hold("base", float(SHAPE.parameters * WIDTH))
        card.hold("context", CONTEXT)
        card.hold("stack", 4.0 * self._parameters)

    def _load(self, rows: int) -> None:
        if rows != self._rows:
            self._card.hold("new stack", 4.0 * self._parameters * rows)
            self._card.drop("stack", "new stack")
            self._card.hold("stack", 4.0 * self._parameters * rows)
            self._rows = rows

    def drift(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Drift]:
        self._load(len(adapters))
        tokens = sum(map(len, samples["completion_ids"].to_pylist()))
        self._card.hold("logits", float((WIDTH + REDUCED) * tokens * SHAPE.vocabulary))
        self._card.drop("logits")
        return dict.fromkeys(adapters, Drift(0.0, 0.0))

    def update(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
        self._load(len(adapters))
        rule, count = self._config.learning, len(adapters)
        peaks = update_peaks(SHAPE, self._parameters, count, rule.micro_batch_tokens, WIDTH, True, REDUCED, rule.row_tokens)
        for point, parts in peaks.items():  # in the order of a micro-batch; what is not named at a point has gone by then
            for purpose, size in parts.items():
                self._card.hold(f"{point} {purpose}", size)
            self._card.drop(*(f"{point} {purpose}" for purpose in parts))
        return {name: Update(_stepped(adapter), True, {"drift_mean": 0.0}) for name, adapter in adapters.items()}


def _stepped(adapter: Adapter) -> Adapter:
    weights = {name: values + adapter.step + 1 for name, values in adapter.weights.items()}
    moments = {f"{kind}.{name}": values for kind in ("exp_avg", "exp_avg_sq") for name, values in weights.items()}
    return replace(adapter, weights=weights, moments=moments, step=adapter.step + 1)


class CountedBackend(Backend):
    """One process's parts: the engine's or the trainer's."""

    def __init__(self, config: RunConfig, card: CountedCard) -> None:
        super().__init__(config)
        self.card = card

    elsewhere = False

    @cached_property
    def _engine(self) -> CountedVLLM:
        answers = HFEngine(self._lora, self.tokenizer, {}, self.config.engine.batch_tokens, self.progress)
        return CountedVLLM(self.card, self.config, answers)

    @cached_property
    def _trainer(self) -> CountedTrainer:
        return CountedTrainer(self.card, self.config)

    def engine_version(self) -> dict[str, str]:
        return {"kind": "vllm"}


class Living:
    """What stands for a process that is running."""

    running = True


class TwoProcesses(Workers):
    """The workers of a card, whose two processes are this one; notes the most that the card holds at each moment."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(1)
        self.counted = CountedCard()
        self.sides = {python: CountedBackend(config, self.counted) for python in (VLLM, sys.executable)}
        self.most = defaultdict[str, list[float]](list)

    def ask(self, order: dict[str, Any], python: str, what: str, told: Any = None) -> dict[str, Any]:
        backend = self.sides[python or sys.executable]
        self._running[python or sys.executable] = Living()  # type: ignore[assignment]
        if REST in order:
            backend.rest()
            done: dict[str, Any] = {}
            if not self.most["sleep"]:
                self.most["sleep"].append(sum(self.counted.held.values()))
        elif "compare" in order:
            done = compared(Spec(**order["compare"]), order["probe"], lambda _: backend, order["again"])
        elif "probe" in order:
            done = probed(Spec(**order["probe"]), lambda _: backend, order["again"])
        else:
            done = execute(Spec(**order), lambda _: backend)
        self.most[_moment(order)].append(self.counted.most())
        return done

    def close(self) -> None:
        for backend in self.sides.values():
            backend.close()


def _moment(order: Mapping[str, Any]) -> str:
    if REST in order:
        return "rest"
    if "probe" in order or "compare" in order:
        return "wake"
    stage = str(order["stage"])
    if stage == "update":
        return "update" if order["part"] else "join"
    return {"propose": "rollout", "solve": "rollout", **dict.fromkeys(ASIDE, "between")}.get(stage, stage)


@pytest.fixture
def config() -> RunConfig:
    return load("chaos", SETTINGS)


@pytest.mark.timeout(900)
def test_the_plan_is_the_most_that_a_card_holds_at_each_moment(tmp_path: Path, config: RunConfig) -> None:
    """The attempts of the second generation are written on another card, so this one's engine sleeps for the update alone."""
    workers, other, store = TwoProcesses(config), TwoProcesses(config), open_store(str(tmp_path))
    try:
        with hold(store, "r") as epoch, Display(lambda line: None) as display:
            run = Run(store, "r", epoch)
            run.describe(dump(config), versions(config), clock())
            here, there = (Session(config, run, card, display) for card in (workers, other))
            here.run_stage("start", None)
            for generation in range(2):
                for stage in STAGE_NAMES:
                    session = there if (generation, stage) == (1, "solve") else here
                    parts = [part for part, _ in session.parts(stage, generation)]
                    for part in parts:
                        session.run_stage(stage, generation, part)
                    session.run_stage(stage, generation, joins=bool(parts))
                    if stage == "solve":
                        assert "vLLM" in workers.counted.held, "it sleeps for the update alone"
    finally:
        workers.close()
        other.close()
    planned = {moment.name: moment.total for moment in beside_vllm(config, SHAPE, 4, BYTES)}
    assert {name: max(workers.most[name]) for name in planned} == pytest.approx(planned)
    assert max(max(sizes) for sizes in workers.most.values()) == max(planned.values()) == planned["wake"]
    assert workers.most["start"] == [planned["start"]]


def test_the_probe_of_the_plan_is_a_round_that_is_compared() -> None:
    assert len(PROMPTS) * TOKENS == PROBE
