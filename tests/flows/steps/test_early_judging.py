"""Judging while completions are written, with the seed model and real programs: equal artifacts, faults that cost only time."""

import json
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.backend import Backend
from flows.config import ConfigError, RunConfig, dump, load
from flows.execution.parts import part_names
from flows.execution.pools import parameters_of, stage
from flows.execution.run_stage import Reference, Spec, perform
from flows.execution.session import open_session
from flows.run.history import KEPT_OUT
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.steps.early_judging import early_verdicts_of, judged_early
from flows.storage import Store, open_store
from stages.core.engines.protocol import Completion, Request
from stages.core.judging.judge import TaskItem, judge_tasks
from stages.core.sandbox.protocol import IDLE, TICK, Job, Sandbox, SandboxUnavailable, Verdict
from tests.support import example_run

SETTINGS = ["sandbox.kind=local", "sandbox.cpu_seconds=0.5", "engine.max_drift=1e9", "engine.shards=2"]
STAGES = ("match", "propose", "verify", "solve", "grade", "reward", "update", "rate", "evolve")
THREAD = "early judging"


class Watched:
    """A sandbox that notes its jobs: those of the thread beside decoding, and those of stages."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._inner = sandbox
        self.early: list[Job] = []
        self.asked: list[Job] = []
        self.answered = threading.Semaphore(0)
        """Released for each early verdict."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        beside = threading.current_thread().name == THREAD

        def noted() -> Iterator[Job]:
            for job in jobs:
                if job is not IDLE:
                    (self.early if beside else self.asked).append(job)
                yield job

        for verdict in self._inner.run(noted()):
            yield verdict
            if beside and verdict is not TICK:
                self.answered.release()

    def attestation(self) -> dict[str, object]:
        return self._inner.attestation()

    def close(self) -> None:
        self._inner.close()


class Gone(Watched):
    """A sandbox that nobody reaches while completions are written."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        if threading.current_thread().name == THREAD:
            next(iter(jobs))
            raise SandboxUnavailable("Docker does not answer")
        return super().run(jobs)


class Watching(Backend):
    """A backend whose sandbox is watched."""

    def __init__(self, config: RunConfig, kind: type[Watched] = Watched) -> None:
        super().__init__(config)
        self.watched = kind(super().sandbox())

    def sandbox(self) -> Sandbox:
        return self.watched


def config_of(*settings: str) -> RunConfig:
    return load("chaos", [*SETTINGS, *settings])


def started(folder: Path, config: RunConfig, backend: Backend) -> None:
    """A run at its start, with the seed model's adapters and a seed task of each kind."""
    with hold(open_store(str(folder)), "r") as epoch:
        run = Run(open_store(str(folder)), "r", epoch)
        run.describe(dump(config), {KEPT_OUT: []}, example_run.CLOCK)
        example_run.start(run, backend.initial_adapter())


def played(store: Store, backend: Backend, stages: tuple[str, ...], verdicts: Path | None, generations: int = 1) -> None:
    """Performs stages part by part, as a session does."""
    config = backend.config
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        for generation in range(generations):
            for stage in stages:
                io = StageIO(run, stage, generation, None, config.model.name, config.model.alpha)
                for part in (*part_names(io, config), None):
                    place = (store.url, "r", stage, generation, part, epoch, generations)
                    perform(run, Spec(*place, verdicts=str(verdicts or "")), config, backend)


def artifacts(store: Store) -> dict[str, bytes]:
    """All tables and weights, and the manifests without their clocks and their chain, which begins with run.json."""
    found = {}
    for uri in store.list("r/"):
        data = store.read(uri)
        if uri.endswith(".json") and "/adapters/" not in uri and not uri.endswith("run.json"):
            kept = {key: value for key, value in json.loads(data).items() if key not in ("clock", "previous")}
            data = json.dumps(kept).encode()
        if not uri.endswith("run.json") and "/." not in uri:
            found[uri] = data
    return found


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, backend = tmp_path_factory.mktemp("beginning"), Backend(config_of())
    started(folder, backend.config, backend)
    backend.close()
    return folder


@pytest.fixture(scope="module")
def plain(beginning: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Watching]]:
    """Two generations that were judged after they were written."""
    folder, backend = tmp_path_factory.mktemp("plain") / "store", Watching(config_of("sandbox.early=off"))
    shutil.copytree(beginning, folder)
    store = open_store(str(folder))
    played(store, backend, STAGES, folder.parent, 2)
    yield store, backend
    backend.close()


def test_a_run_that_is_judged_early_has_the_artifacts_of_one_that_is_not(
    plain: tuple[Store, Watching], beginning: Path, tmp_path: Path
) -> None:
    theirs, without = plain
    assert not without.watched.early and list((Path(theirs.url.removeprefix("file://")).parent).iterdir()) != []
    shutil.copytree(beginning, tmp_path / "store")
    verdicts = tmp_path / "verdicts"
    verdicts.mkdir()
    store, backend = open_store(str(tmp_path / "store")), Watching(config_of("sandbox.early=on"))
    backend.walls()  # its container is warm, as in every generation but the first
    try:
        played(store, backend, STAGES, verdicts, 2)
    finally:
        backend.close()
    found, wanted = artifacts(store), artifacts(theirs)
    assert found == wanted
    assert sum(uri.endswith((".parquet", ".safetensors")) for uri in found) >= 40
    assert backend.watched.early, "programs ran beside decoding"
    assert len(backend.watched.asked) < len(without.watched.asked), "the stages did not run them again"
    assert all(file.name.startswith("0001-solve-") for file in verdicts.iterdir()), "older verdicts are removed"


def test_a_rollout_survives_a_sandbox_that_is_gone(
    plain: tuple[Store, Watching], beginning: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(beginning, tmp_path / "store")
    verdicts = tmp_path / "verdicts"
    verdicts.mkdir()
    store, backend = open_store(str(tmp_path / "store")), Watching(config_of("sandbox.early=on"), Gone)
    try:
        played(store, backend, STAGES[:3], verdicts)
    finally:
        backend.close()
    said = "early judging failed; the stage judges what has no early verdict: Docker does not answer\n"
    assert capsys.readouterr().err.count(said) == 2, "once for each part of propose"
    assert list(verdicts.iterdir()) == []
    wanted = artifacts(plain[0])
    assert {uri: data for uri, data in artifacts(store).items() if "tasks" in uri or "proposals" in uri} == {
        uri: data for uri, data in wanted.items() if "generation=0000" in uri and ("tasks" in uri or "proposals" in uri)
    }


GOOD = [TaskItem(f"def f(x):\n    return x + {number}", ("1", "2")) for number in range(3)]
ENDLESS = TaskItem("def f(x):\n    while True:\n        x += 1", ("1",))


class Handed:
    """A rollout without an engine: hands items on, waits for their verdicts, and ends."""

    def __init__(self, folder: Path, backend: Watching) -> None:
        run = Run(open_store(str(folder)), "r")
        self.rollout, self.judge = (StageIO(run, stage, 0, None, "seed", 4.0, folder) for stage in ("propose", "verify"))
        self.backend = backend

    def over(self, items: Iterable[TaskItem], verdicts: int) -> Mapping[Job, Verdict]:
        with judged_early(self.rollout, self.backend, judge_tasks) as early:
            assert early is not None
            for item in items:
                early(lambda item=item: item)  # type: ignore[misc]
            for _ in range(verdicts):
                assert self.backend.watched.answered.acquire(timeout=120)
        return early_verdicts_of(self.judge, self.backend)


@pytest.fixture
def backend() -> Iterator[Watching]:
    made = Watching(config_of("sandbox.early=on"))
    yield made
    made.close()


def test_a_time_out_beside_decoding_is_judged_again(tmp_path: Path, backend: Watching) -> None:
    items = [*GOOD, ENDLESS]
    known = Handed(tmp_path, backend).over(items, 7)
    assert len(known) == 6 and ENDLESS.program not in {job.program for job in known}
    found = [verdict.status for verdict in judge_tasks(backend.sandbox(), items, known)]
    assert found == ["valid", "valid", "valid", "timeout"]
    assert backend.watched.asked == [Job(ENDLESS.program, "1", True)]


def test_a_killed_worker_is_replaced_and_its_programs_run_again(tmp_path: Path, backend: Watching) -> None:
    backend.walls()
    pool: Any = backend.watched._inner
    [before] = pool.workers
    before.link.process.kill()
    known = Handed(tmp_path, backend).over(GOOD, 6)
    assert {verdict.status for verdict in known.values()} == {"valid"} and len(known) == 6
    assert before not in pool.workers


def test_an_error_of_the_rollout_is_its_own(tmp_path: Path, backend: Watching) -> None:
    handed = Handed(tmp_path, backend)
    with pytest.raises(RuntimeError, match="the engine"), judged_early(handed.rollout, backend, judge_tasks):
        raise RuntimeError("the engine")
    assert early_verdicts_of(handed.judge, backend) == {} and list(backend.sandbox().run([])) == []


def test_a_completion_that_cannot_be_read_ends_only_the_early_judging(
    tmp_path: Path, backend: Watching, capsys: pytest.CaptureFixture[str]
) -> None:
    handed, read = Handed(tmp_path, backend), threading.Event()

    def unreadable() -> TaskItem:
        read.set()
        return TaskItem("p", (str(1 // 0),))

    with judged_early(handed.rollout, backend, judge_tasks) as early:
        assert early is not None
        early(unreadable)
        assert read.wait(60)
    assert "integer division" in capsys.readouterr().err and early_verdicts_of(handed.judge, backend) == {}


def test_verdicts_of_another_sandbox_and_broken_files_are_not_used(
    tmp_path: Path, backend: Watching, capsys: pytest.CaptureFixture[str]
) -> None:
    handed = Handed(tmp_path, backend)
    assert len(handed.over(GOOD, 6)) == 6
    other = Watching(config_of("sandbox.early=on", "sandbox.memory_mb=300"))
    try:
        assert early_verdicts_of(handed.judge, other) == {}
    finally:
        other.close()
    [file] = tmp_path.glob("0000-propose-*")
    file.write_text(file.read_text()[:-5])
    assert early_verdicts_of(handed.judge, backend) == {} and "early judging failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "early"),
    [
        ([], False),
        (["sandbox.early=auto", "model.device=auto"], None),
        (["sandbox.early=on"], True),
        (["sandbox.early=off", "model.device=cuda:1"], False),
        (["model.device=cuda:1"], True),
    ],
)
def test_auto_judges_early_only_beside_a_gpu(settings: list[str], early: bool | None) -> None:
    import torch

    config = load("chaos", settings)
    assert Backend(config).judges_early == (torch.cuda.is_available() if early is None else early)


def test_another_word_is_no_value_of_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"^sandbox\.early: Input should be 'auto', 'on' or 'off'$"):
        load("chaos", ["sandbox.early=sometimes"])


class Elsewhere:
    """Another machine that takes one stage."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def __call__(self, spec: Spec) -> Reference | None:
        return None

    def takes(self, stage: str) -> bool:
        return stage == self.stage

    def leave(self) -> None:
        return None


def test_verdicts_are_handed_on_only_where_one_machine_writes_and_judges(tmp_path: Path) -> None:
    def folder(*settings: str, elsewhere: Elsewhere | None = None) -> Path | None:
        with open_session(load("chaos", settings), f"r{len(list(tmp_path.iterdir()))}", str(tmp_path), elsewhere) as current:
            found = current.spec("propose", 0).verdicts
            assert found == current.spec("verify", 0).verdicts and (not found or Path(found).stat().st_mode & 0o77 == 0)
            return Path(found) if found else None

    shared = folder("sandbox.early=on")
    assert shared is not None and not shared.exists(), "the folder ends with the session"
    assert folder("sandbox.early=off") is None and folder() is None, "chaos computes on the CPU"
    assert folder("model.device=auto", "engine.shards=1") is not None
    assert folder("sandbox.early=on", elsewhere=Elsewhere("verify")) is None
    assert folder("sandbox.early=on", elsewhere=Elsewhere("solve")) is None
    assert folder("sandbox.early=on", elsewhere=Elsewhere("update")) is not None


def test_a_step_in_a_pool_is_told_no_folder_of_this_machine() -> None:
    spec = Spec("file:///runs", "r", "solve", 3, None, 1, 4, verdicts="/tmp/here")
    taken = set(stage.fn.__annotations__) - {"return"}
    assert set(parameters_of(spec)) == taken - {"joins"}, "an older worker knows no joins, and no first step has it"
    assert set(parameters_of(replace(spec, joins=True))) == taken and "verdicts" not in taken


def test_the_seed_model_reports_each_completion_when_it_ends(backend: Watching) -> None:
    engine = backend.engine({})
    prompt = tuple(engine.encode("def f(x):\n    return"))
    asked = [Request(prompt, None, seed, 4 + seed % 5) for seed in range(12)]
    heard: list[tuple[int, Completion]] = []
    found = engine.generate(asked, 1.0, lambda *ended: heard.append(ended))
    assert sorted(place for place, _ in heard) == list(range(12)) and all(found[place] == one for place, one in heard)
    lengths = [len(one.token_ids) for _, one in heard]
    assert lengths == sorted(lengths) and found == engine.generate(asked, 1.0)
