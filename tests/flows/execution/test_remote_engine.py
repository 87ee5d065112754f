"""An engine in another interpreter answers as one in this process: adapters, stop sequences, errors, and a worker that dies."""

import os
import signal
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from flows.backend import Backend
from flows.config import ConfigError, apply
from flows.execution.preflight import check_machine
from flows.execution.remote_engine import EngineElsewhere, Served
from flows.execution.stage_process import Workers
from stages.core.engines.protocol import Request
from stages.core.lora.adapter import Adapter
from stages.core.unavailable import Unsuited

CONFIG = apply({"model": {"rank": 4}, "engine": {"python": sys.executable}, "threads": 1}, [])


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(CONFIG)


def adapter(backend: Backend, seed: int) -> Adapter:
    """Strong enough to change what is said."""
    rng = np.random.default_rng(seed)
    first = backend.initial_adapter().weights
    return Adapter({name: rng.normal(0, 0.1, array.shape).astype(np.float32) for name, array in first.items()}, {}, 0)


def test_it_answers_as_an_engine_in_this_process(backend: Backend) -> None:
    adapters = {name: adapter(backend, number) for number, name in enumerate(("s0-start", "s1-start"))}
    here = backend.engine(adapters)
    prompt = tuple(here.encode("def f(x):\n    return x"))
    asked = [Request(prompt, name, 7, 12) for name in ("s0-start", "s1-start", None)]
    wanted = here.generate(asked, 1.0)
    text = here.decode(wanted[0].token_ids)
    stopping = [Request(prompt, "s0-start", 7, 12, (text[2:4],))]
    wanted_stopped = here.generate(stopping, 1.0)
    there = EngineElsewhere(CONFIG, backend.tokenizer)
    try:
        there.set_adapters({name: one.weights for name, one in adapters.items()})
        assert there.generate([], 1.0) == []
        assert there.generate(asked, 1.0) == wanted and len({one.token_ids for one in wanted}) == 3
        assert there.generate(stopping, 1.0) == wanted_stopped
        assert (there.encode(text), there.window) == (here.encode(text), here.window)
        assert [there.decode(one.token_ids) for one in wanted] == [here.decode(one.token_ids) for one in wanted]
        there.set_adapters({"s0-start": adapters["s1-start"].weights})  # other weights under an old name
        assert there.generate([asked[0]], 1.0)[0].token_ids == wanted[1].token_ids
        assert there.versions["kind"] == "transformers"
        with pytest.raises(RuntimeError, match="adapter 's1-start' is not loaded"):
            there.generate([asked[1]], 1.0)
        (worker,) = there._workers._running.values()
        os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        assert there.generate([asked[2]], 1.0)[0].token_ids == wanted[2].token_ids  # a new worker has taken over
    finally:
        there.close()


def test_an_engine_elsewhere_makes_room_for_what_a_benchmark_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first order, which describes the engine, names no adapters and starts it."""
    started: list[int] = []
    vllm = SimpleNamespace(
        EngineLimits=Limits, VLLMEngine=lambda path, limits, *_: started.append(limits.max_adapters) or Standing(), on_cuda=bool
    )
    monkeypatch.setitem(sys.modules, "stages.core.engines.vllm_engine", vllm)  # the real one needs vLLM
    monkeypatch.setattr("flows.backend.find_spec", lambda name: object())
    monkeypatch.setattr(Backend, "engine_version", lambda self: {})
    config = apply({"model": {"rank": 4}, "engine": {"kind": "vllm", "python": sys.executable}, "threads": 1}, [])
    served = Served(Backend)
    monkeypatch.setattr(Workers, "ask", lambda self, order, *_: served.answer(order))
    EngineElsewhere(config, Backend(CONFIG).tokenizer, expected=11).close()
    assert started == [11] and config.served == 8


@dataclass(frozen=True)
class Limits:
    """What vLLM reserves."""

    rank: int
    alpha: float
    max_adapters: int
    window: int
    max_rows: int = 0
    memory_share: float = 0.0
    dtype: str = ""
    compile: bool = True


class Standing:
    """In the place of vLLM's engine."""

    window, ends = 8, frozenset[int]()

    def wake(self) -> None: ...

    def set_adapters(self, adapters: object) -> None: ...


def test_a_python_without_vllm_says_so_and_asks_no_further_one(backend: Backend) -> None:
    config = apply({"model": {"rank": 4}, "engine": {"kind": "vllm", "python": sys.executable}, "threads": 1}, [])
    with pytest.raises(ConfigError, match=r"engine\.python: .* has no vLLM; run make vllm, or give a Python that has it"):
        EngineElsewhere(config, backend.tokenizer)


def test_a_run_of_vllm_without_its_python_is_refused_where_it_would_run() -> None:
    config = apply({"engine": {"kind": "vllm", "python": "no/python"}}, [])
    with pytest.raises(ConfigError, match=r"engine\.python: no/python is not a program on this machine; run make vllm"):
        check_machine(config)
    check_machine(config, gpu_elsewhere=True)


def test_a_python_that_does_not_start_is_left_to_another_machine() -> None:
    with Workers(1) as workers, pytest.raises(Unsuited, match=r"engine\.python: /no/python does not start: No such file"):
        workers.ask({}, "/no/python", "the engine")
