"""Benches compare equals: in turns that no side always begins, with as many runs and workers, each in a memory of its own."""

import os
from pathlib import Path

import pytest

from flows.bench import evolve_rivals as bench_evolve_rivals
from flows.bench import sandbox as bench_sandbox
from flows.bench import storage as bench_storage
from flows.bench.turns import alone, in_turns, usable_cores


def test_a_machine_that_does_not_say_which_cores_are_usable_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert usable_cores() == os.cpu_count()


def test_every_side_begins_as_often() -> None:
    order: list[str] = []
    found = in_turns(4, {name: lambda name=name: order.append(name) or len(order) for name in "abc"})  # type: ignore[misc, func-returns-value]
    assert "".join(order) == "abccbaabccba"
    assert found == {"a": [1, 6, 7, 12], "b": [2, 5, 8, 11], "c": [3, 4, 9, 10]}


def test_storage_begins_as_often_with_the_rival() -> None:
    order: list[str] = []

    def side(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    line = bench_storage._paired("x", 8_000_000, "disk", lambda: side("ours", 2.0), lambda: side("disk", 4.0), 4)
    assert order == ["ours", "disk", "disk", "ours"] * 2
    assert line == {"name": "x", "value": 4.0, "unit": "MB/s", "bytes": 8_000_000, "against": "disk", "rival": 2.0, "ratio": 2.0}


def test_what_is_measured_alone_holds_nothing_of_this_process() -> None:
    """Half a gigabyte held here is not seen there."""
    before = alone(_resident)
    held = bytearray(b"x") * (1 << 29)
    assert alone(os.getpid) != os.getpid() and _resident() > len(held)  # other tests' memory may go meanwhile
    assert abs(alone(_resident) - before) < 1 << 27 and held[-1] == ord("x")


def _resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("runs", [1, 2])
def test_azr_runs_a_program_as_often_as_ours(runs: int, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    program = f"def f(x):\n    with open({str(seen)!r}, 'a') as file:\n        file.write('x')\n    return x"
    assert bench_sandbox.exec_runs(program, "1", runs) == "1" and len(seen.read_text()) == runs


@pytest.mark.parametrize("runs", [1, 2])
def test_interpreters_run_every_program_as_often_with_as_many_workers(runs: int) -> None:
    asked: list[tuple[int, int, int]] = []

    def run(number: int, seed: int, worker: int) -> bytes:
        asked.append((number, seed, worker))
        return b"1"

    assert bench_sandbox._at_once(9, 2, runs, run) > 0
    assert sorted(asked) == [(number, seed, number % 2) for number in range(9) for seed in range(runs)]
    with pytest.raises(RuntimeError, match="two values"):
        bench_sandbox._at_once(2, 1, 2, lambda number, seed, worker: b"%d" % seed)


@pytest.mark.timeout(300)
def test_the_sandbox_stands_beside_rivals_with_its_own_numbers() -> None:
    lines = list(bench_sandbox.main(["--kind", "local", "--programs", "20", "--containers", "1", "--repeats", "1"]))
    paired = {(line["name"], line["against"]): line for line in lines if "against" in line}
    assert {key: (line["runs_a_program"], line["workers"]) for key, line in paired.items()} == {
        ("programs_per_s", "fork_exit"): (1, 1),
        ("programs_per_s", "azr_exec"): (1, 1),
        ("validated_tasks_per_s", "fork_exit"): (2, 1),
        ("validated_tasks_per_s", "azr_exec"): (2, 1),
    }
    assert set(bench_sandbox.rivals("docker", 1, 1, 1)) == {"fork_exit", "azr_exec", "docker_exec", "container_per_program"}


def test_pefts_merges_are_timed_warm_as_often_as_ours_and_in_turns() -> None:
    order: list[str] = []
    shapes = {"self_attn.k_proj": (8, 16)}
    made = bench_evolve_rivals._beside(
        "C2", lambda: order.append("ours"), "peft-svd", lambda: order.append("peft"), 3.0, repeats=3
    )
    assert order == ["ours", "peft", *["ours", "peft"], *["peft", "ours"], *["ours", "peft"]]
    assert made["against"] == "peft-svd" and set(made) >= {"value", "rival", "ratio", "cpu_ratio"}
    assert bench_evolve_rivals._peft_merge(shapes, "svd", svd_rank=2, svd_full_matrices=False)() is None  # type: ignore[func-returns-value]
