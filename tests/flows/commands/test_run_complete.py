"""A complete run has nothing left to compute: resuming it needs neither cards, vLLM, a sandbox nor pools."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from flows.cli import main
from flows.config import apply, dump
from flows.execution.idle import nothing_left
from flows.run.lease import hold
from flows.run.resume import MARK, _found
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run
from tests.support.cards import machine

CUDA = ["model.device=cuda"]
VLLM = ["engine.kind=vllm", "engine.python=no/python"]
SETTINGS = ["generations=2", "sandbox.kind=docker", "sandbox.image=nobody/has-it"]


def complete(store: Path, settings: Sequence[str]) -> Run:
    """A run of two generations, as a machine with what the settings name has left it."""
    config = apply(dump(example_run.CONFIG), [*SETTINGS, *settings]).recomputing(False)
    with hold(open_store(str(store)), "r") as epoch:
        return example_run.build(Run(open_store(str(store)), "r", epoch), 2, config, complete=True)


def served(folder: Path, monkeypatch: pytest.MonkeyPatch, cards: int, memory_mb: int = 0) -> None:
    """A machine with so many cards, a real interpreter and the tests' server."""
    python = sys.executable
    machine(folder, monkeypatch, cards, memory_mb)
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))


def refused(capsys: pytest.CaptureFixture[str], store: Path, *words: str) -> str:
    assert main(["run", "--resume", "r", "--store", str(store), *words]) == 2
    return capsys.readouterr().err


@pytest.mark.flow
@pytest.mark.parametrize(
    ("settings", "words"), [(CUDA, ()), (VLLM, ()), (CUDA, ("--place", "gpu=gone")), (VLLM, ("--place", "ray=127.0.0.1:1"))]
)
def test_it_needs_nothing_of_the_machine(
    settings: list[str],
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served(tmp_path / "machine", monkeypatch, 0)
    store = tmp_path / "runs"
    run = complete(store, settings)
    assert main(["run", "--resume", "r", "--store", str(store), *words]) == 0
    printed = capsys.readouterr().out
    assert f"head       {run.history.head()}\n" in printed and f"report     {store}/r.html\n" in printed


@pytest.mark.flow
def test_nor_a_card_that_is_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served(tmp_path / "machine", monkeypatch, 1, memory_mb=16)
    complete(tmp_path / "runs", CUDA)
    assert main(["run", "--resume", "r", "--store", str(tmp_path / "runs")]) == 0
    assert "card" in refused(capsys, tmp_path / "runs", "--set", "generations=3")


@pytest.mark.parametrize("settings", [CUDA, VLLM])
def test_what_is_left_to_compute_needs_the_machine(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(tmp_path / "machine", monkeypatch, 0)
    run = complete(tmp_path, settings)
    key = "engine.python: no/python" if settings == VLLM else "model.device: cuda was requested"
    assert key in refused(capsys, tmp_path, "--set", "generations=3")
    (adapter,) = [uri for uri in run.store.list("r/") if uri.endswith("s0-g0000/adapter_model.safetensors")]
    run.store.delete(adapter)
    assert key in refused(capsys, tmp_path), "what an earlier generation made is gone"


LAST = "generation=0001"


@pytest.mark.parametrize(
    "lost",
    [
        f"{LAST}/evolve.json",
        f"{LAST}/benchmark.json",
        f"{LAST}/grades.parquet",
        f"{LAST}/update.parts/00.json",
        "start/seeds.parquet",
    ],
)
def test_a_run_whose_last_generation_or_start_lacks_something_is_not_complete(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(tmp_path / "machine", monkeypatch, 0)
    (complete(tmp_path, CUDA).store.root / "r" / lost).write_bytes(b"")  # type: ignore[attr-defined]
    assert "model.device: cuda was requested" in refused(capsys, tmp_path)


def test_a_run_that_lost_what_its_parts_are_read_from_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(tmp_path / "machine", monkeypatch, 0)
    run = complete(tmp_path, [*CUDA, "learning.off_policy_steps=1", "learning.importance_cap=2"])
    run.store.delete("r/generation=0000/samples.parquet")
    assert "model.device: cuda was requested" in refused(capsys, tmp_path), "not that an artifact is absent"


def test_a_marked_part_leaves_something_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(tmp_path / "machine", monkeypatch, 0)
    run = complete(tmp_path, CUDA)
    assert nothing_left(run, 2)
    (part, *_) = sorted(uri for uri in run.store.list("r/generation=0001/") if ".parts/" in uri and uri.endswith(".json"))
    uri = part.removeprefix("r/")
    run.store.create(f"r/{MARK}", json.dumps({uri: _found(run, uri)}).encode())
    assert not nothing_left(Run(run.store, "r"), 2)
