"""Notes: what Prefect's UI shows of a run, one of each kind per generation. Keys stay the same, so the UI shows their history.

| key | kind | on which flow run | what |
|---|---|---|---|
| `{run}-generation` | Markdown | the generation's | numbers, curves so far, ratings, times, three tasks with answers |
| `{run}-ratings`, `{run}-matches` | table | the generation's | one row per member, one per match |
| `{run}-run` | Markdown | the run's | the line of each generation, and the alarms |
| `{run}-progress` | progress | the run's | share of all stages done, and what is running: a single note, updated |

Alarms and finished generations are also events that automations can act on: `populora.alarm.{name}` and
`populora.generation.completed`, both about the resource `populora.run.{run}`.

A separate process writes notes and a thread publishes them while the next generation runs. They never fail or delay a run: a
fault is logged once. A command with a private server, whose UI nobody can open, writes none (flows.notes.alarm_messages).
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Protocol
from uuid import UUID

import prefect
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, TagsContext
from prefect.events import emit_event

from flows.config import ConfigError, RunConfig
from flows.monitoring.alarms import Alarm
from flows.monitoring.meter import Reading
from flows.notes.alarm_messages import AlarmMessages
from flows.notes.aside import Aside
from flows.notes.end_text import HERE
from flows.notes.news import News
from flows.notes.note_writer import GenerationNotes, NotesNotWritten, Writer
from flows.run.addresses import Addresses
from flows.run.run import Run
from flows.stages import STAGE_NAMES

NEWS = "populora.alarm.news"
"""Label of an alarm's event: whether the generation before had no such alarm."""
PROGRESS_SECONDS = 5.0
ASIDE_SECONDS = 0.5  # delay of a generation's notes: the next generation begins first
PATIENCE, PATIENCE_STOPPED = 30.0, 2.0  # seconds to wait for the last notes at the end of a run

_LOG = logging.getLogger("populora.notes")
_CURRENT: ContextVar["Following | None"] = ContextVar("notes", default=None)


class Following(Protocol):
    """What is told of a run while it runs."""

    def generation_done(self, generation: int, flow_run: UUID | None) -> None:
        """A generation is finished; `flow_run` made it."""

    def alarms_raised(self, generation: int, alarms: Sequence[Alarm]) -> None:
        """These are the alarms of a finished generation."""

    def stage_runs(self, generation: int | None, stage: str, reading: Reading | None) -> None:
        """A stage begins, or has reached `reading`."""

    def close(self, patience: float) -> None:
        """Wait up to this many seconds for what is left to tell."""


@contextmanager
def publishing(run: Run, config: RunConfig, browser: str = "") -> Iterator[None]:
    """Publish notes about the run while the block runs. `browser`: address of the artifact browser that notes link to."""
    base = _checked(browser)
    if os.environ.get(HERE):
        notes: Following = _alarms(run, base)
    else:
        notes = _notes(run, config, base)
    token = _CURRENT.set(notes)
    patience = PATIENCE_STOPPED
    try:
        yield
        patience = PATIENCE
    finally:
        _CURRENT.reset(token)
        notes.close(patience)


@contextmanager
def tagged(run_id: str, mode: str, generation: int | None = None) -> Iterator[None]:
    """Tag the flow runs that begin in the block by run, mode and generation."""
    own = [f"run:{run_id}", f"mode:{mode}", *([] if generation is None else [f"gen:{generation}"])]
    with prefect.tags(*own):
        yield


def untagged() -> TagsContext:
    """Remove tags in the block: before a task with tags, Prefect asks its server for slots, which can take long."""
    return TagsContext(current_tags=set())


def publish_generation(generation: int) -> None:
    """Publish the notes of a finished generation on the flow run that made it."""
    if (notes := _CURRENT.get()) is not None:
        notes.generation_done(generation, _flow_run())


def publish_alarms(generation: int, alarms: Sequence[Alarm]) -> None:
    """Tell of the alarms of a finished generation, where its notes do not."""
    if (notes := _CURRENT.get()) is not None:
        notes.alarms_raised(generation, alarms)


def publish_progress(generation: int | None, stage: str, reading: Reading | None = None) -> None:
    """Publish the run's progress: `stage` of `generation` (None: the start) begins, or has reached `reading`."""
    if (notes := _CURRENT.get()) is not None:
        notes.stage_runs(generation, stage, reading)


class Notes:
    """The publisher of one run. Call `close` at the end."""

    def __init__(self, run: Run, config: RunConfig, browser: str = "") -> None:
        self._run_id, self._store, self._planned, self._mode = run.run_id, run.store.url, config.generations, config.mode
        self._writer = Writer(run, config.generations, browser)
        self._owner = _flow_run()
        self._progress: UUID | None = None
        self._said = 0.0
        self._news = News()
        self._aside = Aside(run.run_id, "notes are not published", lambda: get_client(sync_client=True))
        self._aside.put(self._tag_owner)

    def generation_done(self, generation: int, flow_run: UUID | None) -> None:
        """Queue the notes of a generation."""
        context = copy_context()  # events name their flow run
        self._aside.put(lambda client: context.run(self._publish, client, generation, flow_run))

    def alarms_raised(self, generation: int, alarms: Sequence[Alarm]) -> None:
        """Do nothing: the notes of the generation contain its alarms, and their events."""

    def stage_runs(self, generation: int | None, stage: str, reading: Reading | None) -> None:
        """Queue an update of the progress note, unless one was just written."""
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECONDS:
            self._said = now
            share, what = progress_of(generation, stage, reading, self._planned)
            self._aside.put(lambda client: self._say_progress(client, share, what))

    def close(self, patience: float) -> None:
        """Wait up to this many seconds for what is queued."""
        self._aside.close(patience)
        self._writer.close()

    # in the thread ------------------------------------------------------------------------------------------------------------

    def _tag_owner(self, client: SyncPrefectClient) -> None:
        """Add tags to the run's own flow run, which was created before its mode was known."""
        if self._owner is not None:
            tags = set(client.read_flow_run(self._owner).tags)
            client.update_flow_run(self._owner, tags=sorted(tags | {f"run:{self._run_id}", f"mode:{self._mode}"}))

    def _publish(self, client: SyncPrefectClient, generation: int, flow_run: UUID | None) -> None:
        if generation + 1 < self._planned:
            time.sleep(ASIDE_SECONDS)
        written = self._writer.write(generation)
        self._emit(generation, written)
        ratings, matches = json.dumps(written.ratings), json.dumps(written.matches)
        self._write(client, "generation", "markdown", written.generation, f"Generation {generation}", flow_run)
        self._write(client, "ratings", "table", ratings, f"Ratings after generation {generation}", flow_run)
        self._write(client, "matches", "table", matches, f"Matches of generation {generation}", flow_run)
        self._write(client, "run", "markdown", written.run, f"After generation {generation}", self._owner)
        self._say_progress(client, (generation + 1) / self._planned, f"{generation + 1} of {self._planned} generations")

    def _write(self, client: SyncPrefectClient, name: str, kind: str, data: Any, description: str, flow_run: UUID | None) -> UUID:
        note = ArtifactCreate(key=f"{self._run_id}-{name}", type=kind, data=data, description=description, flow_run_id=flow_run)
        return client.create_artifact(note).id

    def _say_progress(self, client: SyncPrefectClient, share: float, what: str) -> None:
        percent = round(100 * min(1.0, share), 1)
        if self._progress is None:
            self._progress = self._write(client, "progress", "progress", percent, what, self._owner)
        else:
            client.update_artifact(self._progress, ArtifactUpdate(data=percent, description=what))

    def _emit(self, generation: int, written: GenerationNotes) -> None:
        """Emit an event that an automation can act on, with the values for its message."""
        resource = {
            "prefect.resource.id": f"populora.run.{self._run_id}",
            "prefect.resource.name": self._run_id,
            "populora.mode": self._mode,
        }
        said = {"run": self._run_id, "generation": generation, "link": written.link, "store": self._store}
        for alarm, news in zip(written.alarms, self._news.of(written.alarms), strict=True):
            own = {"alarm": alarm.name, "subject": alarm.subject, "message": alarm.message}
            label = {NEWS: "true" if news else "false"}  # an alarm that lasts is told of once
            emit_event(f"populora.alarm.{alarm.name}", resource | label, payload=said | own)
        done = {"planned": self._planned, "alarms": [str(alarm) for alarm in written.alarms]}
        emit_event("populora.generation.completed", resource, payload=said | done)


def _notes(run: Run, config: RunConfig, browser: str) -> Following:
    """Return the publisher of a run; of alarms alone, with a warning, if the process that writes its notes cannot be started."""
    try:
        return Notes(run, config, browser)
    except NotesNotWritten as error:
        _LOG.warning("run %s: notes are not published (%s); the run continues", run.run_id, error)
        return _alarms(run, browser)


def _alarms(run: Run, browser: str) -> AlarmMessages:
    return AlarmMessages(run.run_id, Addresses(browser) if browser else None)


def progress_of(generation: int | None, stage: str, reading: Reading | None, planned: int) -> tuple[float, str]:
    """Return the progress while a stage runs: the share of all stages done, and what is running."""
    within = "" if reading is None else f": {reading}"
    if generation is None:
        return 0.0, f"{stage}{within}"
    stages = STAGE_NAMES.index(stage) + (0.0 if reading is None else reading.share)
    return (
        generation + stages / len(STAGE_NAMES)
    ) / planned, f"{stage} of generation {generation} ({generation + 1} of {planned}){within}"


def _checked(browser: str) -> str:
    """Return the browser's address. An invalid one gives a warning and an empty string."""
    try:
        Addresses(browser)
    except ConfigError as error:
        _LOG.warning("%s; notes contain no links", error)
        return ""
    return browser


def _flow_run() -> UUID | None:
    """Return the current flow run."""
    context = FlowRunContext.get()
    return context.flow_run.id if context is not None and context.flow_run is not None else None
