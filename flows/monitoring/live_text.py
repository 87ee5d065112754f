"""A run's live state in words: one sentence of where it is, lines about what changed, and short texts of its tables."""

from collections.abc import Iterator, Mapping

from flows.monitoring.live import LiveState, Tail
from flows.monitoring.meter import duration
from flows.monitoring.run_state import silent_text
from flows.monitoring.working import Step
from flows.run.lease import STALE_SECONDS
from stages.core.highlight import visible

PROGRAM = 100  # characters of a program
COUNTS = 6  # counts of a stage


def headline(state: LiveState) -> str:
    """Return where the run is, in one sentence."""
    done = f"{state.complete} of {state.planned} generations done"
    if state.condition == "finished":
        return f"finished: {done}"
    if not state.stage:
        return f"{done}; the run is ending"
    place = place_of(state)
    if state.condition == "stopped":
        return f"stopped: no process works on the run; populora run --resume {state.run_id} continues at {place}; {done}"
    if state.condition == "crashed":
        again = f"Retry in Prefect or populora run --resume {state.run_id}"
        why = "its process was killed" if state.killed else f"no heartbeat of its process for more than {duration(STALE_SECONDS)}"
        return f"crashed: {why}; {again} continues at {place}; {done}"
    if state.condition == "silent":
        return f"{silent_text(state.who)}; at {place}; {done}"
    return f"running {place}; {done}"


def place_of(state: LiveState) -> str:
    """Return the running or next stage with its generation."""
    return state.stage if state.generation is None else f"{state.stage} of generation {state.generation}"


def about(seconds: float | None) -> str:
    """Return a time left, or a dash."""
    return "–" if seconds is None else f"about {duration(seconds)}"


def speed_text(state: LiveState) -> str:
    """Return tokens per second and where they were measured, or a dash."""
    if state.speed is None:
        return "–"
    rate, where = state.speed
    return f"{rate:,.0f} tokens/s" + ("" if where == "now" else f" ({where})")


def step_text(step: Step) -> str:
    """Return one running step: its part, its time so far, and its newest reading."""
    name = step.stage if step.part is None else f"{step.stage} {step.part}"
    so_far = f"{name}: {duration(step.seconds)} so far"
    return visible(so_far if step.reading is None else f"{so_far} · {step.reading}")


def counts_text(counts: Mapping[str, object]) -> str:
    """Return the counts of a stage's manifest or the statuses of a table, as `valid 40, error 8`."""
    shown = [f"{visible(str(name))} {value}" for name, value in list(counts.items())[:COUNTS]]
    return ", ".join(shown) + (", …" if len(counts) > COUNTS else "")


def program_text(program: str) -> str:
    """Return a program in one line of at most `PROGRAM` characters; hidden characters, written out, may lengthen it."""
    text = " ⏎ ".join(line for line in program.splitlines() if line.strip())
    return visible(text if len(text) <= PROGRAM else f"{text[: PROGRAM - 2]} …")


def changes(before: LiveState | None, state: LiveState) -> Iterator[str]:
    """Yield one line for each thing that is new since `before` (None: at the beginning, where one line says where the run is)."""
    if before is not None:
        yield from _finished(before, state)
    if before is None or before.condition != state.condition:
        yield f"{visible(state.run_id)}: {headline(state)}"
    elif _place(before) != _place(state) and state.condition == "running" and state.stage:
        left = "" if state.left.run is None else f"; {about(state.left.run)} left of the run"
        yield f"{place_of(state)}: running{left}"
    for name, shown, earlier in (
        ("tasks", state.tasks, None if before is None else before.tasks),
        ("attempts", state.verdicts, None if before is None else before.verdicts),
    ):
        if shown is not None and shown is not earlier and shown.statuses:
            yield f"{name} of generation {shown.generation}: {counts_text(shown.statuses)}"
    for alarm in state.alarms:
        if before is None or alarm not in before.alarms:
            yield f"alarm: {visible(alarm)}"
    for fault in state.faults:
        if before is None or fault not in before.faults:
            yield f"fault: {visible(fault)}"


def statuses_text(tail: Tail | None) -> str:
    """Return the counts by status of a table, or a dash."""
    return "–" if tail is None or not tail.statuses else counts_text(tail.statuses)


def _place(state: LiveState) -> tuple[str, int | None]:
    return state.stage, state.generation


def _finished(before: LiveState, state: LiveState) -> Iterator[str]:
    """Yield the stages that have finished, then that their generation is done: in the order in which things happened.

    Between two looks a generation may end and the next begin; of the first, its stages are then no longer known.
    """
    whole = []
    if state.complete > before.complete:
        whole = [f"generation {state.complete - 1} done: {state.complete} of {state.planned}"]
    if before.newest != state.newest:
        yield from whole
        whole = []
    known = {one.stage for one in before.done} if before.newest == state.newest else set()
    for one in state.done:
        if one.stage not in known:
            counts = f"; {counts_text(one.counts)}" if one.counts else ""
            where = one.stage if state.newest is None else f"{one.stage} of generation {state.newest}"
            yield f"{where}: done in {duration(one.seconds)}{counts}"
    yield from whole
