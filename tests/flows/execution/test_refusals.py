"""Machines that cannot take a step: what they say, how long they keep out of the way, and how long the run asks others."""

import os
import re
import socket
import threading
from pathlib import Path

import pytest

from flows import cards, worker
from flows.base_model.hub import local_folder
from flows.config import ConfigError, dump, load
from flows.execution import pools
from flows.execution.refusals import HOLD_SECONDS, PATIENCE_SECONDS, Patience, hold_if_unsuited, naming_this_machine
from flows.execution.run_stage import Spec
from flows.execution.stage_process import StageFailed, result_of
from flows.run.run import Run
from flows.storage import open_store
from stages.core.engines.protocol import EngineUnusable
from stages.core.unavailable import Unavailable, Unsuited
from tests.support.cards import machine, step

HERE = f"the worker on {socket.gethostname()}"
SOLVE = Spec("file:///nowhere", "r", "solve", 0, "00", 1, 3)


def test_a_machine_of_a_pool_with_a_card_that_is_too_small_is_unsuited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path / "machine", monkeypatch, 1, memory_mb=8192)
    store = tmp_path / "store"
    Run(open_store(str(store)), "r", 1).describe(dump(load("paper-8gpu", [])), {}, {})
    with pytest.raises(Unsuited, match=rf"^{re.escape(HERE)}: card 0 of this machine has 8\.0 GiB, but "):
        pools.perform_here(Spec(str(store), "r", "solve", 0, "00", 1, 3), lambda reading: None)


def test_so_is_one_whose_cards_others_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path / "machine", monkeypatch, 1)
    store = tmp_path / "store"
    Run(open_store(str(store)), "r", 1).describe(dump(load("chaos", ["model.device=cuda"])), {}, {})
    held = cards.claim(cards.cards()[0])
    assert held is not None
    with pytest.raises(Unsuited, match=rf"^{re.escape(HERE)}: in use: card 0 by process {os.getpid()}; "):
        pools.perform_here(Spec(str(store), "r", "solve", 0, "00", 1, 3), lambda reading: None)
    held.release()


def test_a_model_that_a_stage_process_does_not_find_is_a_mistake_here_and_unsuited_in_a_pool() -> None:
    answer, code = worker._answer(lambda: {"folder": local_folder("/models/none")})
    assert code == 2
    with pytest.raises(ConfigError, match=r"^model\.name: folder /models/none does not exist$"):
        result_of(answer)
    with pytest.raises(Unsuited, match=rf"^{re.escape(HERE)}: model\.name: folder"), naming_this_machine():
        result_of(answer)
    with pytest.raises(ConfigError, match=r"^seed: no"), naming_this_machine():
        raise ConfigError("seed: no")


def test_an_engine_that_cannot_run_here_is_retried_nowhere_but_on_other_machines_of_a_pool() -> None:
    def start() -> dict[str, object]:
        raise EngineUnusable("the driver is too old")

    answer, code = worker._answer(start)
    assert code == 3
    with pytest.raises(EngineUnusable, match=r"^the driver is too old$") as raised:
        result_of(answer)
    assert not isinstance(raised.value, Unavailable)  # which a step's task retries
    with pytest.raises(Unsuited, match=rf"^{re.escape(HERE)}: the driver is too old$"), naming_this_machine():
        result_of(answer)


def test_faults_of_a_card_are_no_faults_of_the_code() -> None:
    def fails(message: str) -> str:
        def work() -> dict[str, object]:
            raise RuntimeError(message)

        return str(worker._answer(work)[0]["error"])

    for fault in ("CUDA error: unspecified launch failure", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "NVML: Unknown Error"):
        assert fails(fault) == "EngineUnavailable"
    assert fails("CUDA out of memory. Tried to allocate 2 GiB") == fails("shapes differ") == "RuntimeError"


def test_only_a_machine_that_is_unsuited_holds_its_place() -> None:
    slept: list[float] = []
    hold_if_unsuited("Flow run encountered an exception: Unsuited: the worker on m: no card", slept.append)
    hold_if_unsuited("Flow run encountered an exception: WorkerLost: gone", slept.append)
    hold_if_unsuited("Flow run encountered an exception: KeyError: 'a'", slept.append)
    assert slept == [HOLD_SECONDS]
    assert pools.stage.on_failure_hooks == [pools.hold_place]


def test_each_refusal_is_told_of_once_and_a_step_has_patience_of_its_own() -> None:
    said, now, left = list[str](), [0.0], threading.Event()
    patience = Patience(said.append, lambda: now[0])
    refusal, never = Unsuited("the worker on m: no card"), Never()
    patience.wait(SOLVE, "gpu", refusal, never)
    now[0] = PATIENCE_SECONDS - 1
    patience.wait(SOLVE, "gpu", refusal, never)
    now[0] = PATIENCE_SECONDS
    patience.wait(step("update", 0, "00"), "gpu", refusal, never)
    for _ in range(2):  # also when the task tries it again
        with pytest.raises(Unsuited, match="no card"):
            patience.wait(SOLVE, "gpu", refusal, never)
    patience.forget(SOLVE)  # a machine took it, and was lost
    patience.wait(SOLVE, "gpu", refusal, never)
    assert said == [
        "pool gpu: the worker on m: no card; steps that it refuses are offered to the pool's other machines for 30 min"
    ]
    left.set()
    with pytest.raises(StageFailed, match="was cancelled"):
        patience.wait(step("update", 1, "00"), "gpu", refusal, left)


class Never(threading.Event):
    """An event that is never set and makes nobody wait."""

    def wait(self, timeout: float | None = None) -> bool:
        return False
