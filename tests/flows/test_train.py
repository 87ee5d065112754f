"""A whole run on real parts: Prefect, engine, trainer, Docker sandbox, storage. Equal runs give equal bytes, killed or not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT, load
from flows.run.manifest import digest
from flows.run.run import Run
from flows.storage import open_store
from stages.core.tables import GENERATION_TABLES

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


def command(store: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--run-id", "r", "--store", str(store), *more]


def run_to_its_end(store: Path, *more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(store, *more), cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def killed_once_made(store: Path, made: str, *more: str) -> None:
    """Start the run and kill it as soon as it has made a file."""
    running = subprocess.Popen(command(store, *more), cwd=PROJECT, stdout=subprocess.DEVNULL, start_new_session=True)
    while not (store / "r" / made).exists():
        assert running.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def generation_lines(printed: str) -> list[str]:
    """Which generations were told of; their alarms stand below them."""
    return [line[:5] for line in printed.splitlines() if line.startswith("g0")]


def tree(store: Path, run_id: str = "r") -> dict[str, bytes]:
    """Every committed file of the run, clocks taken out of the JSON ones."""
    found = {}
    for path in sorted((store / run_id).rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            data = path.read_bytes()
            if path.suffix == ".json" and "adapters" not in path.parts:
                values = json.loads(data)
                values.pop("clock")
                data = json.dumps(values, sort_keys=True).encode()
            found[str(path.relative_to(store))] = data
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    store = tmp_path_factory.mktemp("finished")
    return store, run_to_its_end(store).stdout


def test_the_run_prints_a_line_a_generation_and_where_everything_is(finished: tuple[Path, str]) -> None:
    store, printed = finished
    lines = printed.splitlines()
    assert generation_lines(printed) == ["g0000", "g0001"]
    assert f"artifacts  {store}/r" in printed
    assert Path(printed.split("report     ")[1].splitlines()[0]).is_file()
    assert lines[-2].split() == ["head", Run(open_store(str(store)), "r").history.head()]


def test_every_table_of_every_generation_reads_back_and_fsck_finds_nothing(finished: tuple[Path, str]) -> None:
    run = Run(open_store(str(finished[0])), "r")
    for generation in range(load("chaos").generations):
        for name in GENERATION_TABLES:
            table = run.read_table(generation, name)
            assert table.num_rows or name == "offspring", name
    assert run.read_table(0, "offspring")["operator_kind"].to_pylist() == ["mutation", "mutation"]
    assert run.read_table(1, "offspring").num_rows == 0
    assert list(fsck(run)) == []


def test_rewards_recomputed_from_the_tables_are_the_stored_ones(finished: tuple[Path, str]) -> None:
    run = Run(open_store(str(finished[0])), "r")
    for generation in range(2):
        tables = {name: run.read_table(generation, name).to_pylist() for name in ("tasks", "rollouts", "grades", "samples")}
        correct: dict[str, list[bool]] = {}
        for grade in tables["grades"]:
            correct.setdefault(grade["task_id"], []).append(grade["correct"])
        expected = {row["task_id"]: -1.0 for row in tables["tasks"]}
        for task, outcomes in correct.items():
            rate = sum(outcomes) / len(outcomes)
            expected[task] = 1 - rate if rate else 0.0
        expected |= {row["rollout_id"]: {"correct": 1.0, "format": -1.0}.get(row["status"], -0.5) for row in tables["grades"]}
        assert {row["sample_id"]: row["reward"] for row in tables["samples"]} == expected


def test_a_killed_run_resumes_to_the_same_bytes(finished: tuple[Path, str], tmp_path: Path) -> None:
    for kill_at in ("generation=0000/solve.json", "generation=0000/update.parts/00.json"):
        running = subprocess.Popen(command(tmp_path), cwd=PROJECT, stdout=subprocess.DEVNULL, start_new_session=True)
        while not (tmp_path / "r" / kill_at).exists():
            assert running.poll() is None, "the run ended before it could be killed"
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    again = run_to_its_end(tmp_path)
    assert generation_lines(again.stdout) == ["g0000", "g0001"]
    assert tree(tmp_path) == tree(finished[0])


@pytest.mark.flow
def test_a_restart_from_the_form_and_one_from_the_command_line_give_the_same_bytes(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    """And both those of the parent, since no setting differs: the shared stages are shared, the others are computed again."""
    from flows.prefect_ops.flows import restart

    form, typed = tmp_path / "form", tmp_path / "typed"
    for store in (form, typed):
        shutil.copytree(finished[0], store)
    assert restart("r", "again", 1, "solve", str(form), go_on=False) == "again"
    words = ["fork", "r", "--generation", "1", "--stage", "solve", "--run-id", "again", "--store", str(typed)]
    assert subprocess.run([sys.executable, "-m", "flows.cli", *words], cwd=PROJECT).returncode == 0
    assert tree(form, "again") == tree(typed, "again")
    words = ["run", "--resume", "again", "--store", str(form)]
    done = subprocess.run([sys.executable, "-m", "flows.cli", *words], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    own = {name: data for name, data in tree(form, "again").items() if name.endswith((".parquet", ".safetensors"))}
    parents = {name.replace("r/", "again/", 1): data for name, data in tree(form).items()}
    made = {"rollouts", "grades", "samples", "groups", "metrics", "ratings", "offspring"}
    assert {Path(name).stem for name in own if "/generation=0001/" in name and ".parts" not in name} >= made - {"groups"}
    assert not [name for name in own if name.endswith(("matches.parquet", "proposals.parquet", "tasks.parquet"))]
    assert own == {name: parents[name] for name in own}
    assert tree(form) == tree(finished[0]), "nothing of the parent has changed"
    assert fsck(Run(open_store(str(form)), "again")) == []


def test_a_finished_run_is_not_run_again_and_another_configuration_is_refused(finished: tuple[Path, str]) -> None:
    store = finished[0]
    before = {path: path.stat().st_mtime_ns for path in (store / "r").rglob("*.parquet")}
    refused = subprocess.run(command(store, "--set", "seed=1"), cwd=PROJECT, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "seed" in refused.stderr
    run_to_its_end(store)
    assert {path: path.stat().st_mtime_ns for path in (store / "r").rglob("*.parquet")} == before


def test_manifests_chain(finished: tuple[Path, str]) -> None:
    run = Run(open_store(str(finished[0])), "r")
    manifests = list(run.history.walk())
    assert [m.stage for m in manifests[:4]] == ["start", "match", "propose", "verify"]
    assert all(later.previous == digest(earlier) for earlier, later in pairwise(manifests))
