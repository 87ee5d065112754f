"""Who waits for vLLM's engine process hears of its end, on a process that sleeps; test_vllm_engine kills that of vLLM."""

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from stages.core.engines.vllm_watch import exit_codes, watch


class Died(Exception):
    """Stands for vLLM's EngineDeadError."""


@dataclass
class Resources:
    """What vLLM's client holds for its process, and its engine manager."""

    process: BaseProcess
    engine_dead: bool = False

    @property
    def engine_manager(self) -> "Resources":
        return self

    def sentinels(self) -> list[int]:
        return [self.process.sentinel]

    def finished_procs(self) -> dict[str, int]:
        return {} if self.process.exitcode is None else {self.process.name: self.process.exitcode}


@dataclass
class Client:
    """vLLM's client in another process than its engine: where it waits for outputs and for replies."""

    resources: Resources
    outputs_queue: "Queue[Any]" = field(default_factory=Queue)
    utility_results: dict[int, "Future[Any]"] = field(default_factory=dict)


@pytest.fixture
def client() -> Iterator[Client]:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), name="EngineCore")
    process.start()
    yield Client(Resources(process))
    process.kill()
    process.join()


def test_a_call_that_waits_raises_when_the_process_is_killed(client: Client) -> None:
    answered: Future[int] = Future()
    answered.set_result(3)
    client.utility_results |= {1: Future(), 2: answered}
    watch(client, Died)
    assert exit_codes(client) == ""
    client.resources.process.kill()
    assert isinstance(client.outputs_queue.get(timeout=20), Died)
    with pytest.raises(Died):
        client.utility_results[1].result(timeout=20)
    assert answered.result() == 3
    assert client.resources.engine_dead
    client.resources.process.join()
    assert exit_codes(client) == " (EngineCore exited with code -9)"


def test_an_engine_in_this_process_needs_no_watch() -> None:
    client = SimpleNamespace()
    watch(client, Died)
    assert exit_codes(client) == ""
