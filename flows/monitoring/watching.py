"""`populora watch`: a run's live state as a table that is redrawn in place on a terminal, elsewhere a line for each change."""

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flows.monitoring import live_text
from flows.monitoring.live import LiveState, Tail
from flows.monitoring.meter import duration
from flows.monitoring.run_state import silent_text
from flows.run.lease import STALE_SECONDS
from flows.storage import StoreUnavailable
from stages.core.highlight import visible

POLL_SECONDS = 2.0  # a heartbeat comes as often
STOPPED_SECONDS = 30.0  # without a process on the run, before watching ends: a retry or a resumed run takes its lease by then
GOOD = ("valid", "correct")

Look = Callable[[], LiveState]


def watch(
    look: Look,
    console: Console,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    named: Callable[[str], str] = str,
) -> int:
    """Show the run until it ends. Returns 0 when all generations are done, 1 when no process has worked on it for a while.

    A store that does not answer is asked again, except at the first look. `named` gives sentences this machine's commands.
    """
    first = look()
    if console.is_terminal:
        with Live(console=console, auto_refresh=True, refresh_per_second=4, transient=False) as shown:
            return _follow(
                first,
                look,
                lambda _, state: shown.update(table(state, named)),
                lambda line: shown.console.print(Text(line)),
                wait,
                clock,
            )

    def lines(before: LiveState | None, state: LiveState) -> None:
        for line in live_text.changes(before, state):
            _say(console, named(line))

    return _follow(first, look, lines, lambda line: _say(console, line), wait, clock)


def _say(console: Console, line: object) -> None:
    console.file.write(f"{line}\n")  # as it is: rich would wrap it at 80 columns
    console.file.flush()


def _follow(
    state: LiveState,
    look: Look,
    show: Callable[[LiveState | None, LiveState], None],
    say: Callable[[str], None],
    wait: Callable[[float], None],
    clock: Callable[[], float],
) -> int:
    before: LiveState | None = None
    since, fault = clock(), ""
    while True:
        show(before, state)
        if before is None or before.condition != state.condition:
            since = clock()
        if state.condition == "finished":
            return 0
        patience = {"stopped": STOPPED_SECONDS, "crashed": STOPPED_SECONDS, "silent": STALE_SECONDS}.get(state.condition)
        if patience is not None and clock() - since >= patience:
            if state.condition == "silent":
                say(f"run {state.run_id} is not finished: {silent_text(state.who)}; once it has ended, resume the run")
            else:
                say(f"run {state.run_id} is not finished and no process works on it; the command that started it resumes it")
            return 1
        before = state
        wait(POLL_SECONDS)
        try:
            state, fault = look(), ""
        except StoreUnavailable as error:
            if not fault:
                fault = (str(error) or type(error).__name__).splitlines()[0]
                say(f"the store does not answer ({visible(fault)}); asking again")


def table(state: LiveState, named: Callable[[str], str] = str) -> RenderableType:
    """Return the live state as a table of the terminal's width. Every text is shown as it is: none is read as markup."""
    head = Text(f"{visible(state.run_id)}  {named(live_text.headline(state))}", "bold", overflow="ellipsis", no_wrap=True)
    parts: list[RenderableType] = [head, _bars(state), _times(state)]
    parts += [Text(live_text.step_text(step), overflow="ellipsis", no_wrap=True) for step in state.steps]
    parts += [Text(visible(line), "yellow") for line in (*state.alarms, *state.faults)]
    if state.done:
        parts.append(_stages(state))
    if state.tasks is not None:
        parts.append(_tail("tasks", state.tasks, "task_id", "teacher_id"))
    if state.verdicts is not None:
        parts.append(_tail("attempts", state.verdicts, "rollout_id", "student_id"))
    return Group(*parts)


def _bars(state: LiveState) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    for width in (10, None, 5):
        grid.add_column(width=width, ratio=None if width else 1)
    for name, share in (("run", state.share), ("stage", state.stage_share)):
        if share is not None:
            grid.add_row(name, ProgressBar(total=1.0, completed=share), f"{share:.0%}")
    return grid


def _times(state: LiveState) -> Text:
    left = state.left
    known = [
        (live_text.about(seconds), what)
        for what, seconds in (("stage", left.stage), ("generation", left.generation), ("run", left.run))
        if seconds is not None
    ]
    said = [f"{seconds} left of the {what}" for seconds, what in known]
    if state.speed is not None:
        said.append(live_text.speed_text(state))
    return Text(" · ".join(said), "dim")


def _stages(state: LiveState) -> Table:
    where = "start" if state.newest is None else f"generation {state.newest}"
    grid = Table(title=f"Done in {where}", title_justify="left", box=None, expand=True, header_style="dim")
    grid.add_column("stage", no_wrap=True)
    grid.add_column("time", justify="right", no_wrap=True)
    grid.add_column("counts", ratio=1, no_wrap=True, overflow="ellipsis")
    for one in state.done:
        grid.add_row(one.stage, duration(one.seconds), Text(live_text.counts_text(one.counts)))
    return grid


def _tail(what: str, tail: Tail, key: str, member: str) -> Table:
    title = Text(f"Newest {what}, generation {tail.generation}: {live_text.statuses_text(tail)}")
    grid = Table(title=title, title_justify="left", box=None, expand=True, show_header=False)
    for _ in range(4):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in tail.rows:
        status = str(row["status"])
        shown = [Text(visible(str(row[name]), 40)) for name in (key, member, "kind")]
        verdict = Text(visible(status, 20), "green" if status in GOOD else "red")
        grid.add_row(*shown, verdict, Text(live_text.program_text(row.get("program", ""))))
    return grid
