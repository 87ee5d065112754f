"""Engine and trainer on one model: speed, memory against the plan, and whether both compute with the same adapters.

The adapters are random and strong enough to change every distribution: an adapter that is lost, or taken for another one,
shows as drift. The engine is checked as it starts and again after it has slept through an update.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from flows.backend import Backend
from flows.choices import operators_of
from flows.gpu_check.finding import CheckFinding
from flows.gpu_check.machine import GIB, MemoryMeter, synchronize
from flows.gpu_check.strong_adapters import drift_of_neighbours, random_adapters, strong_enough
from flows.gpu_check.update_pace import timed_update
from flows.plan.card_rates import Card, rates_of
from flows.plan.decoder_shape import DecoderShape, shape_of
from flows.plan.memory_plan import Moment, beside_vllm, shared_process
from flows.plan.stage_plan import rollout_seconds
from stages.core import tables
from stages.core.engines.agreement import Disagreement, check_agreement
from stages.core.engines.protocol import Request
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256
from stages.core.training.protocol import Drift

PROMPT, PROMPTS, ATTEMPTS = 96, 2, 8  # tokens of a prompt, prompts of an adapter, completions of a prompt
OVER_PLAN, BESIDE_PLAN = 1.2, 0.75 * GIB
"""A moment may need this much of the plan, or that many bytes more: fragmentation, allocators and cuBLAS are not in it."""


@dataclass(frozen=True)
class PolicyCheck:
    """What the checks share: the backend, the device, and the meter of its memory."""

    backend: Backend
    device: str
    memory: MemoryMeter

    def examine(self) -> Iterator[CheckFinding]:
        """Yield the findings in the order of a generation: start, rollout, check, sleep, update, evolve, wake, check."""
        sizes = self.backend.config.population
        first = random_adapters(self.backend.initial_adapter(), sizes.teachers + sizes.students)
        found = self._start(first)  # as in a run: there is no trainer yet
        yield from found
        self.backend.scorer()  # the trainer's base, which a rollout has beside it
        adapters = strong_enough(first, self._effect)
        engine = self.backend.engine(adapters)
        samples, found = self._rollout(engine, adapters)
        yield from found
        yield self._agreement("drift at start", engine, adapters)
        yield self._lost(engine, adapters)
        self.backend.rest()
        yield from self._asleep()
        trained, found = self._update(adapters, samples)
        yield from found
        yield from self._evolve(trained)
        woken, found = self._wake(trained)
        yield from found
        yield self._agreement("drift after wake", woken, trained)

    def _effect(self, adapters: Mapping[str, Adapter]) -> float:
        """Return the least drift of an adapter taken for its neighbour. The engine serves `adapters` from now on."""
        return min(drift.mean for drift in self._neighbours(self.backend.engine(adapters), adapters).values())

    def _neighbours(self, engine: Any, adapters: Mapping[str, Adapter]) -> dict[str, Drift]:
        return drift_of_neighbours(engine, self.backend.scorer(), adapters, self.backend.config.engine.temperature)

    def _start(self, adapters: Mapping[str, Adapter]) -> list[CheckFinding]:
        began = time.perf_counter()
        with self.memory.watching():
            engine: Any = self.backend.engine(adapters)
            _one_token(engine)
        seconds = time.perf_counter() - began
        started = CheckFinding("engine start", None, f"{seconds:.0f} s, {len(adapters)} adapters", {"seconds": seconds})
        return [started, *self._against_plan("start")]

    def _asleep(self) -> list[CheckFinding]:
        """Compare what the sleeping engine leaves in use with the plan; nothing for an engine that does not sleep."""
        with self.memory.watching():
            synchronize(self.device)
        return self._against_plan("sleep")

    def _wake(self, adapters: Mapping[str, Adapter]) -> tuple[Any, list[CheckFinding]]:
        with self.memory.watching():
            engine: Any = self.backend.engine(adapters)
            _one_token(engine)  # an engine in another process wakes at its first order
            synchronize(self.device)
        return engine, self._against_plan("wake")

    def _evolve(self, adapters: Mapping[str, Adapter]) -> Iterator[CheckFinding]:
        """Breed one offspring with each operator of the configuration, from adapters that were just trained."""
        parents, broken = [dict(adapter.weights) for adapter in adapters.values()], list[str]()
        operators = operators_of(self.backend.config)
        with self.memory.watching():
            began = time.perf_counter()
            for name, operator in operators.items():
                several = name in self.backend.config.evolution.crossovers
                chosen = (parents * 2)[: 2 if several else 1]  # one alone is both parents
                child, _ = operator(chosen, np.random.default_rng(0))
                if not all(np.isfinite(array).all() for array in child.values()):
                    broken.append(name)
            seconds = time.perf_counter() - began
        detail = f"{len(operators)} operators in {seconds:.1f} s"
        bad = f"; weights that are not finite: {', '.join(broken)}" if broken else ""
        yield CheckFinding("operators", not broken, detail + bad, {"seconds": seconds})
        yield from self._against_plan("evolve")

    def _rollout(self, engine: Any, adapters: Mapping[str, Adapter]) -> tuple[pa.Table, list[CheckFinding]]:
        """Complete prompts of all adapters in one call. Return the samples with rewards of both signs, and the findings."""
        config, rng = self.backend.config, np.random.default_rng(0)
        length, size = min(config.solve.max_new_tokens, engine.window - PROMPT), len(self.backend.tokenizer)
        prompts = {name: [tuple(rng.integers(10, size, PROMPT).tolist()) for _ in range(PROMPTS)] for name in adapters}
        requests = [Request(ids, name, seed, length) for name, own in prompts.items() for ids in own for seed in range(ATTEMPTS)]
        with self.memory.watching():
            engine.generate(requests, config.engine.temperature)  # kernels are compiled and loaded when they are first used
            began = time.perf_counter()
            completions = engine.generate(requests, config.engine.temperature)
            seconds = time.perf_counter() - began
        tokens = sum(len(completion.token_ids) for completion in completions)
        figures = {"tokens_per_s": tokens / seconds, "tokens": tokens, "seconds": seconds}
        planned, shape = "", self._shape()
        if shape is not None:
            count = PROMPTS * len(adapters)
            rates = self._rates()
            expected = rollout_seconds(config, shape, rates, len(requests), count, length, PROMPT)
            figures["planned_tokens_per_s"] = len(requests) * length / expected
            planned = f" (the plan says {figures['planned_tokens_per_s']:,.0f} for {rates.name}, at full length)"
        finite = all(np.isfinite(completion.logprobs).all() for completion in completions)
        speed = CheckFinding(
            "rollout",
            finite and tokens > 0,
            f"{tokens / seconds:,.0f} tokens/s{planned}, {len(requests)} completions of {len(adapters)} adapters in one call",
            figures,
        )
        digests = {name: weights_sha256(adapter.weights) for name, adapter in adapters.items()}
        rows = [
            _row(number, request, completion, digests)
            for number, (request, completion) in enumerate(zip(requests, completions, strict=True))
        ]
        return tables.table(rows, tables.SAMPLES), [speed, *self._against_plan("rollout")]

    def _update(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> tuple[dict[str, Adapter], list[CheckFinding]]:
        with self.memory.watching():
            timed = timed_update(self.backend, self.device, self._shape(), self._rates(), adapters, samples)
        updates, figures = timed.updates, timed.figures
        if self.device.startswith("cuda"):
            figures |= {"allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}
        stepped = all(update.stepped and np.isfinite(update.metrics["grad_norm"]) for update in updates.values())
        wrong, wanted = "" if stepped else "; an adapter took no step", self._width()
        if timed.width < wanted:
            wrong += f"; out of memory with passes of {wanted:,} tokens, done with {timed.width:,.0f}: the plan is too low"
        found = [CheckFinding("update", not wrong, timed.detail + wrong, figures)]
        return {name: update.adapter for name, update in updates.items()}, [*found, *self._against_plan("update")]

    def _width(self) -> int:
        """Return the positions of a pass, where the device has room for it."""
        rule = self.backend.config.learning
        keeps = rule.gradient_checkpointing is True and rule.recompute_above > 0
        return min(rule.micro_batch_tokens, rule.recompute_above) if keeps else rule.micro_batch_tokens

    def _against_plan(self, moment: str) -> list[CheckFinding]:
        """Compare the last watched peak with the plan. On a CPU it is stated alone: the plan counts tensors, not processes.

        Nothing for a moment that the engine does not have: one that shares the trainer's process neither sleeps nor wakes.
        """
        if moment in ("sleep", "wake") and self.backend.config.engine.kind == "transformers":
            return []
        used, planned = self.memory.peak, self._planned(moment)
        name, figures = f"memory {moment}", {"bytes": used}
        if planned is None:
            return [CheckFinding(name, None, f"{used / GIB:.2f} GiB; no plan for this model and device", figures)]
        figures["planned_bytes"] = planned.total
        detail = f"{used / GIB:.2f} GiB; the plan says at most {planned.total / GIB:.2f}"
        judged = used <= max(OVER_PLAN * planned.total, planned.total + BESIDE_PLAN) if self.device.startswith("cuda") else None
        return [CheckFinding(name, judged, detail, figures)]

    def _planned(self, moment: str) -> Moment | None:
        config = self.backend.config
        shape, members = self._shape(), config.population.teachers + config.population.students
        if shape is None:
            return None
        if config.engine.kind == "transformers":
            moments = shared_process(config, shape, members)
        elif self.device.startswith("cuda"):
            moments = beside_vllm(config, shape, members, float(torch.cuda.mem_get_info(self.device)[1]))
        else:
            return None
        return next(one for one in moments if one.name == moment)

    def _rates(self) -> Card:
        """Return what the plan assumes of this device."""
        memory = float(torch.cuda.mem_get_info(self.device)[1]) if self.device.startswith("cuda") else None
        return rates_of(memory, self.backend.dtype)

    def _shape(self) -> DecoderShape | None:
        return shape_of(self.backend.model_path)

    def _agreement(self, name: str, engine: Any, adapters: Mapping[str, Adapter]) -> CheckFinding:
        bounds = self.backend.drift_bounds()
        try:
            found = check_agreement(engine, self.backend.scorer(), adapters, self.backend.config.engine.temperature, bounds)
        except Disagreement as error:
            return CheckFinding(name, False, str(error)[:300])
        mean, largest = max(drift.mean for drift in found.values()), max(drift.largest for drift in found.values())
        detail = f"mean {mean:.4f} and largest {largest:.3f} nats a token; allowed {bounds.mean:g} and {bounds.largest:g}"
        return CheckFinding(name, True, detail, {"mean": mean, "largest": largest})

    def _lost(self, engine: Any, adapters: Mapping[str, Adapter]) -> CheckFinding:
        """Claim that the engine served each adapter's neighbour: the comparison must object for every one. One alone has none."""
        if len(adapters) == 1:
            return CheckFinding("a wrong adapter shows", None, "not checked: one adapter alone cannot be taken for another", {})
        found = self._neighbours(engine, adapters)
        bounds, least = self.backend.drift_bounds(), min(drift.mean for drift in found.values())
        good = all(_beyond(drift, bounds) for drift in found.values())
        detail = f"an adapter taken for another drifts by {least:.3f} nats a token or more; allowed {bounds.mean:g}"
        return CheckFinding("a wrong adapter shows", good, detail, {"mean": least})


def _one_token(engine: Any) -> None:
    engine.generate([Request(tuple(engine.encode("def f(x):")), None, 0, 1)], 1.0)


def _beyond(drift: Drift, bounds: Drift) -> bool:
    return drift.mean > bounds.mean or drift.largest > bounds.largest


def _row(number: int, request: Request, completion: Any, digests: Mapping[str, str]) -> dict[str, Any]:
    assert request.adapter_id is not None
    reward = 1.0 if request.seed % 2 else -1.0
    return {
        "sample_id": f"s{number:05d}",
        "member_id": request.adapter_id,
        "role": "student",
        "group_id": f"g{number // ATTEMPTS:05d}",
        "kind": "deduction",
        "adapter_id": request.adapter_id,
        "adapter_sha256": digests[request.adapter_id],
        "prompt_ids": list(request.prompt_ids),
        "completion_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
        "reward": reward,
        "baseline": 0.0,
        "centred": reward,
        "advantage": reward,
    }
