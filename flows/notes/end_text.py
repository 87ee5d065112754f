"""What is said about the end of a run, as plain text: why it stopped, what is kept, and what to do now.

The reason is Prefect's own message about the state, which contains the error's type and text. Known errors have advice; the text
of an error is shown as it is, and never interpreted.
"""

from dataclasses import dataclass
from functools import reduce

from flows.notes.note_text import fence
from stages.core.highlight import visible

HERE = "POPULORA_TELLS"
"""Set in the processes of a command with a private server, whose automations would never run: they send messages themselves."""
LONGEST = 2_000
REFUSED = "invalid parameters"
"""In the message of a flow run whose parameters Prefect refused before our code began."""
NOT_BEGUN = "The run had not begun: nothing of it is stored, and there is nothing to resume."
FEWER = "fork with a smaller `engine.batch_tokens`, `learning.micro_batch_tokens` or `learning.recompute_above`"
SMALLER = f"free memory, then resume; if it comes again, {FEWER}"


@dataclass(frozen=True)
class Advice:
    """A cause that the message of a state gives away by one of `signs`, and what to do about it."""

    signs: tuple[str, ...]
    cause: str
    remedy: str


KNOWN = (
    Advice((REFUSED,), "a setting does not fit", "the message names it; start or fork a run with another value"),
    Advice(
        ("status code: -9", "status code -9", "SIGKILL"),
        "its process was killed: by a person or a program, or by the system because memory ran out (`dmesg` says so then)",
        f"resume; if memory ran out, free some first, and if it comes again, {FEWER}",
    ),
    Advice(
        ("No heartbeat", "stopped reporting"),
        "its process, worker or machine is gone without a word",
        "look at that machine (`populora doctor`), then resume, there or on another one",
    ),
    Advice(("server was stopped",), "the server was stopped while the run was at work", "resume"),
    Advice(
        ("OutOfMemory", "out of memory", "MemoryError", "Cannot allocate memory"),
        "memory ran out",
        SMALLER,
    ),
    Advice(
        ("No space left for vLLM's adapters",),
        "the folder through which vLLM reads adapters is full",
        "make room in the folder that the message names, or give the container more shared memory (`--shm-size`); then resume",
    ),
    Advice(("No space left", "ENOSPC"), "the disk is full", "make room (`populora gc RUN`), then resume"),
    Advice(
        ("EngineUnusable", "CardUnusable"),
        "vLLM cannot run on that machine",
        "do what the message says; `populora doctor` looks at the driver; then resume",
    ),
    Advice(
        ("SandboxUnavailable", "Docker", "docker"),
        "sandboxes could not be started",
        "`populora doctor` says what Docker lacks; then resume",
    ),
    Advice(("StoreUnavailable",), "the store did not answer", "check the store's address, keys and network, then resume"),
    Advice(("Damaged",), "an artifact is damaged", "`populora fsck RUN` says which, and how to restore it; then resume"),
    Advice(
        ("is in use by process",), "another process is working on this run", "stop it, or wait until its lease ends, then resume"
    ),
    Advice(
        ("engine and trainer differ",),
        "engine and trainer disagree on the weights",
        "see `drift` in docs/metrics.md; the same versions and types on both sides, then resume",
    ),
    Advice(
        ("no worker takes work",),
        "nobody takes work from that pool",
        "start a worker there (`populora worker POOL`), then resume",
    ),
    Advice(
        ("interrupt signal", "termination signal", "system exit call", "status code: -15", "status code: 143"),
        "somebody or something stopped it",
        "resume when it suits you",
    ),
    Advice(
        ("ConfigError", "ModelMissing", "CardTooSmall"),
        "a setting does not fit",
        "the message names it; start or fork a run with another value",
    ),
    Advice(
        ("Unsuited",), "no machine of the pool could take the step", "give it what the message says that it lacks, then resume"
    ),
    Advice(
        ("AccessRefused", "StoreRefused"), "the store refused", "check credentials, rights and room of the store, then resume"
    ),
    Advice(("Fenced",), "another process has the run", "nothing: it continues there"),
    Advice(
        ("RowFailed",),
        "our own code failed at one row",
        "look at the row that the message names; resume after the code is mended",
    ),
)
OTHER = Advice(
    (), "an error that is not among the known ones", "read the end of its log; resume, and report it if it comes again"
)


@dataclass(frozen=True)
class RunEnd:
    """The end of a run: Prefect's name of its `state`, Prefect's `message`, and the `place` where the run resumes (or empty).

    `begun`: whether the store may have a run of that name; one that was refused at once has left nothing to resume.
    """

    run_id: str
    store: str
    state: str
    message: str = ""
    place: str = ""
    begun: bool = True

    @property
    def bad(self) -> bool:
        """Whether somebody has to do something."""
        return self.state in ("Crashed", "Failed")

    @property
    def resume(self) -> str:
        """The command that resumes the run."""
        return f"populora run --store {self.store} --resume {self.run_id}"


def advice(message: str) -> Advice:
    """Return the known cause that the message gives away."""
    return next((one for one in KNOWN if any(sign in message for sign in one.signs)), OTHER)


def stopped_by_hand(message: str) -> bool:
    """Return whether the person at the terminal stopped the run, and knows."""
    return "interrupt signal" in message


def end_note(end: RunEnd) -> str:
    """Return the note of a run that crashed or failed, as Markdown."""
    found = advice(end.message)
    said = visible(end.message, LONGEST)
    parts = [
        f"# {end.run_id}: {end.state.lower()}",
        f"**Why**: {found.cause}. Prefect says:",
        fence(said or "nothing", "text"),
        f"**What to do**: {_remedy(found, end)}.",
        *(_resuming(end) if end.begun else [NOT_BEGUN]),
    ]
    return "\n\n".join(part for part in parts if part)


def _remedy(found: Advice, end: RunEnd) -> str:
    """Return what to do. A run that had not begun is started again, not resumed."""
    if end.begun:
        return found.remedy
    fresh = {"start or fork a run with": "start it again with", "fork with": "start it with", "resume": "start it again"}
    return reduce(lambda text, words: text.replace(*words), fresh.items(), found.remedy)


def _resuming(end: RunEnd) -> list[str]:
    return [
        "To resume: *Retry* in this flow run's menu (a run of a deployment), or",
        fence(end.resume),
        f"It resumes at: {end.place}." if end.place else "",
        "Everything that is committed is kept, and the bytes are those of a run that was never interrupted.",
    ]


def end_message(end: RunEnd) -> tuple[str, str]:
    """Return subject and text of a message about the end of a run."""
    subject = f"populora: run {end.run_id} {end.state.lower()}"
    if not end.bad:
        return subject, f"Run {end.run_id} in {end.store}: {end.state.lower()}."
    found = advice(end.message)
    lines = [f"Why: {found.cause}. {visible(end.message, 300)}", f"What to do: {_remedy(found, end)}."]
    lines.append(f"To resume: {end.resume}" if end.begun else NOT_BEGUN)
    return subject, "\n".join(lines + ([f"It resumes at: {end.place}"] if end.place else []))
