"""One flow process running one run: its lease and epoch, its warm workers, and its messages to the terminal."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from typing import Any, Protocol

from flows.base_model import hub
from flows.choices import check_sources
from flows.config import ConfigError, RunConfig, differences, dump, identity, priced, with_defaults
from flows.execution import orphan_guard
from flows.execution.code_version import own_version
from flows.execution.parts import parts_of
from flows.execution.places import places_for, spare_places
from flows.execution.ray_cluster import OnNode
from flows.execution.recomputation import settled
from flows.execution.recorded import clock, versions
from flows.execution.run_stage import Reference, Spec, reference
from flows.execution.slots import Slots, Tenant
from flows.execution.stage_process import Told, interpreter
from flows.monitoring.alarms import Alarm
from flows.monitoring.meter import Reading
from flows.monitoring.prices import of_machine
from flows.monitoring.progress import Display, to_stderr
from flows.monitoring.run_tables import RunTables
from flows.monitoring.working import Working
from flows.notes import publish as notes
from flows.plan.estimate import spare_shards, uncorrected
from flows.run import lease, retention
from flows.run.history import PLACEMENT, check_prompts
from flows.run.manifest import manifest_uri
from flows.run.resume import check_base, first_generation
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, open_store
from stages.analysis.summary import generation_line


class RemoteStages(Protocol):
    """Other machines that run steps of a run."""

    def __call__(self, spec: Spec) -> Reference | None:
        """Run a step there. Returns None if it belongs on this machine."""

    def takes(self, stage: str) -> bool:
        """Return whether parts of the stage run there."""

    def leave(self) -> None:
        """Cancel all steps and stop waiting for them."""


class StepRunner(Protocol):
    """What runs steps on this machine: `Slots`, or the workers of one slot."""

    @property
    def parallel(self) -> int:
        """How many steps can run at the same time."""

    def run(self, spec: Spec, python: str = "", told: Told = ...) -> Reference:
        """Run one step and return its small reference."""

    def leave(self) -> None:
        """Kill what is at work."""


_CURRENT: ContextVar["Session"] = ContextVar("session")


class Session:
    """What the tasks of a flow share; see `open_session`."""

    def __init__(
        self,
        config: RunConfig,
        run: Run,
        workers: StepRunner,
        display: Display,
        elsewhere: RemoteStages | None = None,
        on_node: OnNode | None = None,
        working: Working | None = None,
        verdicts: str = "",
    ) -> None:
        self.config, self.run, self.elsewhere = config, run, elsewhere
        self._on_node, self._verdicts = on_node, verdicts
        self._workers, self._display, self._working = workers, display, working or Working()
        self._working.planned = config.generations
        self._began = time.monotonic()
        self._watch = RunTables(run)
        self._adapters: retention.Known = {}
        self._reached = ""

    def reach(self, stage: str) -> None:
        """Note the stage that is next in the order of a generation. Only its steps tell how far the run has come."""
        self._reached = stage

    def run_stage(self, stage: str, generation: int | None, part: str | None = None, joins: bool = False) -> Reference:
        """Return the reference of a step, from its manifest if it is done; otherwise run it in the worker of its stage.

        `joins`: the stage has parts, and they are done.
        """
        if finished := self.done(stage, generation, part):
            return finished
        spec = self.spec(stage, generation, part, joins)
        try:
            return self._performed(spec)
        finally:  # whatever became of the step, another process may have replaced a manifest that was read here
            self.run.history.forget(manifest_uri(stage, generation, part))

    def _performed(self, spec: Spec) -> Reference:
        """Run a step where it belongs, and show and note what it tells."""
        stage, generation, part = spec.stage, spec.generation, spec.part
        share = None if self._early(stage) else share_before(generation, stage, self.config)
        with self._display.step(self._name(spec), share) as shown, self._working.step(stage, generation, part) as noted:

            def told(reading: Reading) -> None:
                if generation is None:  # what is left of one of its parts says nothing about the whole
                    reading = replace(reading, seconds_left=None, left_of="")
                shown(reading)
                noted(reading)
                if not self._early(stage):
                    notes.publish_progress(generation, stage, reading)

            python = interpreter(self.config, stage, part, spec.joins)
            done = self.elsewhere(spec) if self.elsewhere is not None else None
            if done is None and self._on_node is not None:
                done = self._on_node(spec, python)
            return done or self._workers.run(spec, python, told)

    def _early(self, stage: str) -> bool:
        """Return whether a step belongs to an update beside the rollouts, before its turn."""
        return stage == "update" and self._reached not in ("", stage)

    def _name(self, spec: Spec) -> str:
        """Return the name of a step for the progress display."""
        if spec.generation is None:
            return spec.stage
        part = "" if spec.part is None else f" {spec.part}"
        return f"generation {spec.generation} ({spec.generation + 1} of {self.config.generations}) · {spec.stage}{part}"

    def spec(self, stage: str, generation: int | None, part: str | None = None, joins: bool = False) -> Spec:
        """Return the spec that tells another process which step to run."""
        config, cost = self.config, self.config.cost.model_dump()
        run = (self.run.store.url, self.run.run_id)
        return Spec(*run, stage, generation, part, self.run.epoch, config.generations, cost, self._verdicts, joins)

    def done(self, stage: str, generation: int | None, part: str | None = None) -> Reference | None:
        """Return the reference of a step whose manifest and files exist."""
        finished = self.run.finished(stage, generation, part)
        return reference(finished) if finished else None

    def parts(self, stage: str, generation: int) -> list[tuple[str, str]]:
        """Return a stage's parts, each with its members: groups of an update, shards of generation; none if it runs whole."""
        return parts_of(self.run, self.config, stage, generation)

    @property
    def cluster(self) -> bool:
        """Whether nodes of a Ray cluster take the parts of stages."""
        return self._on_node is not None

    def spreads(self, stage: str) -> bool:
        """Return whether a stage's parts run at the same time: on other machines, or in several places of this one."""
        if stage in self.config.engineless:
            return False
        if self.cluster or (self.elsewhere is not None and self.elsewhere.takes(stage)):
            return True
        return self._workers.parallel > 1

    def order(self, stage: str, generation: int, part: str) -> Reference:
        """Return all that a node of a cluster needs for one part."""
        spec = asdict(self.spec(stage, generation, part))
        python = interpreter(self.config, stage, part)
        return {"spec": spec, "python": python, "threads": self.config.threads, "version": own_version()}

    def leave(self) -> None:
        """Stop waiting for parts, here and on other machines, because the run is cancelled."""
        self._workers.leave()
        if self.elsewhere is not None:
            self.elsewhere.leave()

    def first_generation(self) -> int:
        """Return where to resume: the first incomplete generation. Its tables are hashed again, stage by stage."""
        return first_generation(self.run)

    def report_generation(self, generation: int) -> list[Alarm]:
        """Print one line for the generation, and its alarms below. Return the alarms."""
        watch = self._watch.look()
        metrics, ratings, offspring = (watch.of(generation, name) for name in ("metrics", "ratings", "offspring"))
        line = generation_line(metrics, ratings, offspring, watch.times(generation), generation)
        self._display.print(line)
        raised = [alarm for alarm in watch.alarms() if alarm.generation == generation]
        for alarm in raised:
            self._display.print(f"       alarm: {alarm.name}: {alarm.message}")
        return raised

    def retire(self, generation: int) -> None:
        """Remove what the retention rule no longer keeps, now that the generation is done. Each removal leaves a tombstone.

        Gradients, which only their own update needs, go without a rule, too.
        """
        policy = retention.policy_of(self.config)
        divide, shards = self.config.learning.divide, self.config.engine.shards
        if policy is None and (divide == "rows" or (divide == "auto" and shards > 1)):
            policy = retention.EVERYTHING
        if policy is not None:
            retention.retire(self.run, policy, clock(), generation, self._adapters)

    def finish(self) -> str:
        """Return the head of the chain of manifests: one digest for the whole run."""
        return self.run.history.head()


@contextmanager
def open_session(
    config: RunConfig,
    run_id: str,
    store_url: str,
    elsewhere: RemoteStages | None = None,
    on_node: OnNode | None = None,
    say: Callable[[str], None] = to_stderr,
    placement: Mapping[str, str] | None = None,
    idle: bool = False,
) -> Iterator[Session]:
    """Hold the run's lease, and write run.json or check that it matches. Workers start when first needed, one a place.

    `say` takes lines about long steps where there is no terminal. run.json of a new run records the `placement`. No card
    is looked for where the run is `idle`: nothing is left to compute.

    Raises ConfigError when the store holds another run under this id, naming the keys that differ.
    """
    of_machine(config.cost)  # a wrong variable is reported before anything is written
    store = open_store(store_url)
    orphan_guard.start()
    gpu_elsewhere = on_node is not None or (elsewhere is not None and elsewhere.takes("solve"))
    places = [] if gpu_elsewhere or idle else places_for(config)
    slots = Slots(places, Tenant(config.threads))
    working = Working()
    judged_here = on_node is None and not (elsewhere is not None and (elsewhere.takes("solve") or elsewhere.takes("verify")))
    with (
        lease.hold(store, run_id, doing=working.record) as epoch,
        Display(say) as display,
        slots as workers,
        _verdicts_folder(judged_here and _may_judge_early(config)) as verdicts,
    ):
        run = Run(store, run_id, epoch)
        known = run.history.description()
        config = settled(priced(hub.pinned(config, known, gpu_elsewhere), known), known, gpu_elsewhere)
        check_resumable(run, config)  # under the lease: before that, another process may still create or change the run
        run.describe(dump(config), versions(config, known), clock() | ({PLACEMENT: dict(placement)} if placement else {}))
        advice = (uncorrected(config), spare_shards(config), "" if gpu_elsewhere or idle else spare_places(config, places))
        for line in filter(None, advice):
            display.print(line)
        with as_current(Session(config, run, workers, display, elsewhere, on_node, working, verdicts)) as current:
            yield current


def _may_judge_early(config: RunConfig) -> bool:
    """Return whether a rollout may judge early; for `auto` with a device that is not known yet, its process decides."""
    rule = config.sandbox.early
    return config.model.device != "cpu" if rule == "auto" else rule == "on"


@contextmanager
def _verdicts_folder(wanted: bool) -> Iterator[str]:
    """Yield the folder in which stages on this machine hand on early verdicts; empty if there is none."""
    if not wanted:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="populora-early-", ignore_cleanup_errors=True) as folder:
        yield folder


@contextmanager
def as_current(current: Session) -> Iterator[Session]:
    """Make this the session that the tasks of the running flow use."""
    token = _CURRENT.set(current)
    try:
        yield current
    finally:
        _CURRENT.reset(token)


def session() -> Session:
    """The session of the flow that is running."""
    return _CURRENT.get()


def check_same_settings(run_id: str, description: Mapping[str, Any], config: RunConfig) -> None:
    """Raise ConfigError if the run that `description` describes began with another configuration; see `check_resumable`."""
    old, new = identity(with_defaults(description["config"])), identity(dump(config))
    differing = [key for key in differences(old, new) if key != "generations"]
    if differing:
        raise ConfigError(
            f"run {run_id} exists with another configuration: {', '.join(differing)}; "
            "fork the run, or start another with --run-id"
        )


def check_resumable(run: Run, config: RunConfig) -> None:
    """Raise ConfigError if the store has a run of this id that cannot be resumed with this configuration and model.

    `generations` may grow but not shrink, and `cost` may change. All other keys, the bytes of the base model, and the user's
    files that the configuration names must be those that the run began with.
    """
    description = run.history.description()
    if description is None:
        return
    config = settled(hub.pinned(config, description), description)
    check_same_settings(run.run_id, description, config)
    check_prompts(run.run_id, description)
    planned, done = int(with_defaults(description["config"])["generations"]), _done(run)
    if config.generations < max(planned, done):
        has = f"has {done} generations already" if done > planned else f"was started with generations={planned}"
        raise ConfigError(
            f"run {run.run_id} {has}, which generations={config.generations} would lower; generations can only be raised"
        )
    check_sources(config, description["versions"], run.run_id)
    with suppress(Damaged):  # a resume removes what fsck has marked, and stops at what it has not
        check_base(run, config, "choose another --run-id")


def _done(run: Run) -> int:
    """Return how many generations are complete: more than run.json says, if `generations` was raised."""
    return next((number + 1 for number in reversed(run.history.generations()) if _has_ended(run, number)), 0)


def _has_ended(run: Run, generation: int) -> bool:
    try:
        return run.manifest("evolve", generation) is not None
    except Damaged:
        return True


def share_before(generation: int | None, stage: str, config: RunConfig) -> float:
    """Return the share of all stages of the run that is done when this one begins."""
    return 0.0 if generation is None else (generation + STAGE_NAMES.index(stage) / len(STAGE_NAMES)) / config.generations
