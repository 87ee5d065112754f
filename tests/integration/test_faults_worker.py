"""A stage's worker killed in every phase of it: the step is run again, and the artifacts are those of a run never killed."""

from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import dump, load
from flows.execution.session import Session, clock, versions
from flows.execution.stage_process import WorkerLost, Workers
from flows.monitoring.progress import Display
from flows.run.lease import hold
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Store, open_store
from tests.flows.run.test_manifest import tree

PHASES = ("began", "read", "half-written", "written", "committed")
# Loaded by the worker's Python: it kills itself once at a phase of a stage, and a file remembers that it has.
HOOK = """
import importlib.abc, importlib.util, os, signal, sys
from pathlib import Path

def die(stage, phase):
    seen = Path(os.environ["KILLED"]) / f"{stage}-{phase}"
    wanted = os.environ["KILL_STAGES"].split(",")
    if stage in wanted and not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def watch(module):
    perform = module.perform

    def watched(run, spec, *more):
        store, stage = run.store, spec.stage
        read, create = store.read, store.create
        die(stage, "began")

        def reading(uri):
            data = read(uri)
            die(stage, "read")
            return data

        def creating(uri, data):
            if uri.endswith(".json") and "/adapters/" not in uri:
                die(stage, "written")
                return create(uri, data)
            temporary = store.root / uri.rpartition("/")[0] / ".tmp-half"
            if not (Path(os.environ["KILLED"]) / f"{stage}-half-written").exists():
                temporary.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(data[: len(data) // 2])
            die(stage, "half-written")
            return create(uri, data)

        store.read, store.create = reading, creating
        done = perform(run, spec, *more)
        die(stage, "committed")
        return done

    module.perform = watched

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "flows.execution.run_stage":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), watch(module))
        return spec

sys.meta_path.insert(0, Watch())
"""


def build(store: Store, stages: tuple[str, ...]) -> int:
    """The start and stages of one generation by their workers, and how often one of them was lost."""
    config, lost = load("chaos", ["generations=1"]), 0
    with hold(store, "smoke") as epoch, Display(lambda line: None) as display, Workers(config.threads) as workers:
        run = Run(store, "smoke", epoch)
        run.describe(dump(config), versions(config), clock())
        session = Session(config, run, workers, display)
        lost += until_done(session, "start", None, None)
        for stage in stages:
            for part in [part for part, _ in session.parts(stage, 0)]:
                lost += until_done(session, stage, 0, part)
            lost += until_done(session, stage, 0, None)
    return lost


def until_done(session: Session, stage: str, generation: int | None, part: str | None) -> int:
    """Runs a step again as often as its worker is lost; how often that was."""
    for lost in range(2 * len(PHASES)):
        try:
            session.run_stage(stage, generation, part)
            return lost
        except WorkerLost:
            continue
    raise AssertionError(f"{stage} was never done")


@pytest.mark.docker
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(("match",), id="match"),
        pytest.param(("start", *STAGE_NAMES), id="all", marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_a_worker_killed_in_every_phase_of_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: tuple[str, ...]
) -> None:
    for folder in ("hook", "killed", "whole-killed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    whole, store = open_store(str(tmp_path / "whole")), open_store(str(tmp_path / "store"))
    stages = STAGE_NAMES if len(killed) > 1 else killed
    assert build(whole, stages) == 0
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"))
    monkeypatch.setenv("KILLED", str(tmp_path / "killed"))
    monkeypatch.setenv("KILL_STAGES", ",".join(killed))
    lost = build(store, stages)
    phases = {path.name for path in (tmp_path / "killed").iterdir()}
    print(f"{lost} workers were killed, in {len(phases)} phases")
    assert lost == len(phases) and phases >= {f"{stage}-{phase}" for stage in killed for phase in PHASES if stage != "start"}
    assert tree(store) == tree(whole) and fsck(Run(store, "smoke")) == []
    with hold(store, "smoke"):
        debris = [uri for uri in store.list("smoke/", hidden=True) if ".tmp-" in uri]
        # benchmarks may be written by another process without the lease, so nobody sweeps there
        assert [uri for uri in debris if not uri.startswith("smoke/benchmarks/")] == []
