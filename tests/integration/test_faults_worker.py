"""A stage's worker killed in every phase of it: the step is run again, and the artifacts are those of a run never killed."""

from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import RunConfig, dump, load
from flows.execution.recorded import clock, versions
from flows.execution.session import Session
from flows.execution.stage_process import WorkerLost, Workers
from flows.monitoring.progress import Display
from flows.run.lease import hold
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Store, open_store
from tests.flows.run.test_manifest import tree
from tests.support import kill_hooks

PHASES = ("began", "read", "half-written", "written", "committed")
# A worker kills itself once at each phase of the stages in KILL_STAGES, or at each of KILL_PHASES.
HOOK = """
def doomed(stage, phase):
    chosen = phase in os.environ.get("KILL_PHASES", phase).split(",")
    return chosen and stage in os.environ["KILL_STAGES"].split(",") and first(f"{stage}-{phase}")

def die_in(stage, phase):
    if doomed(stage, phase):
        die()

def watch(module):
    perform = module.perform

    def watched(run, spec, *more):
        store, stage = run.store, spec.stage
        read, create = store.read, store.create
        die_in(stage, "began")

        def reading(uri):
            data = read(uri)
            die_in(stage, "read")
            return data

        def creating(uri, data):
            if uri.endswith(".json") and "/adapters/" not in uri:
                die_in(stage, "written")
                return create(uri, data)
            if doomed(stage, "half-written"):
                temporary = store.root / uri.rpartition("/")[0] / ".tmp-half"
                temporary.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(data[: len(data) // 2])
                die()
            return create(uri, data)

        store.read, store.create = reading, creating
        done = perform(run, spec, *more)
        die_in(stage, "committed")
        return done

    module.perform = watched
"""


def build(store: Store, stages: tuple[str, ...], config: RunConfig) -> int:
    """The start and stages of one generation by their workers, and how often one of them was lost."""
    lost = 0
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
    kill_hooks.install(tmp_path / "hook", HOOK)
    whole, store = open_store(str(tmp_path / "whole")), open_store(str(tmp_path / "store"))
    stages = STAGE_NAMES if len(killed) > 1 else killed
    config = load("chaos", ["generations=1"])
    assert build(whole, stages, config) == 0
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"))
    monkeypatch.setenv("KILL_STAGES", ",".join(killed))
    lost = build(store, stages, config)
    phases = set(kill_hooks.marks(tmp_path / "hook"))
    print(f"{lost} workers were killed, in {len(phases)} phases")
    assert lost == len(phases) and phases >= {f"{stage}-{phase}" for stage in killed for phase in PHASES if stage != "start"}
    assert tree(store) == tree(whole) and fsck(Run(store, "smoke")) == []
    with hold(store, "smoke"):
        debris = [uri for uri in store.list("smoke/", hidden=True) if ".tmp-" in uri]
        # benchmarks may be written by another process without the lease, so nobody sweeps there
        assert [uri for uri in debris if not uri.startswith("smoke/benchmarks/")] == []
