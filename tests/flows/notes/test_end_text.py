"""What is said about the end of a run: why, what to do, and nothing that an error's text could turn into markup."""

import pytest

from flows.notes.end_text import KNOWN, OTHER, RunEnd, advice, end_message, end_note, stopped_by_hand

CRASHED = RunEnd("smoke", "/runs", "Crashed", "Flow run process exited with non-zero status code -9.", "solve of generation 3")


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Flow run process exited with non-zero status code -9.", "killed"),
        ("No heartbeat: its process or machine is gone.", "without a word"),
        ("The server was stopped while this run was running. Retry resumes it.", "server was stopped"),
        ("Flow run encountered an exception: OutOfMemoryError: CUDA out of memory", "memory ran out"),
        ("Flow run encountered an exception: OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "OSError: [Errno 28] No space left for vLLM's adapters, 1.3 GB, in /dev/shm: '/dev/shm/x'",
            "vLLM reads adapters is full",
        ),
        ("EngineUnusable: vLLM cannot start on this machine: the NVIDIA driver is too old for it", "vLLM cannot run"),
        ("CardUnusable: vLLM cannot start on this machine: it has no kernels for this card", "vLLM cannot run"),
        ("Flow run encountered an exception: SandboxUnavailable: Docker does not answer", "sandboxes"),
        ("Flow run encountered an exception: StoreUnavailable: s3://x: timed out", "store did not answer"),
        ("Flow run encountered an exception: Damaged: smoke/generation=0001/grades.parquet", "damaged"),
        ("Flow run encountered an exception: LeaseHeld: run smoke is in use by process 7 on host a", "another process"),
        ("Execution was aborted by a termination signal.", "stopped it"),
        ("Flow run encountered an exception: ConfigError: model.name: nothing there", "setting"),
        ("Flow run received invalid parameters:\n - config.sandbox.kind: Input should be 'docker'", "a setting does not fit"),
        ("Flow run encountered an exception: ZeroDivisionError: division by zero", OTHER.cause),
        ("", OTHER.cause),
    ],
)
def test_a_cause_is_known_by_the_message(message: str, cause: str) -> None:
    assert cause in advice(message).cause


def test_what_killed_a_process_is_not_guessed() -> None:
    """Prefect knows the signal only: a person's `kill -9` and the kernel's are the same to it."""
    cause = advice(CRASHED.message).cause
    assert "by a person or a program, or by the system" in cause and "most often" not in cause
    assert advice("MemoryError").cause == "memory ran out"


def test_each_cause_has_a_remedy() -> None:
    assert all(one.remedy and one.cause for one in (*KNOWN, OTHER))


def test_the_note_says_why_what_to_do_and_where_it_goes_on() -> None:
    note = end_note(CRASHED)
    for said in (
        "# smoke: crashed",
        "**Why**: its process was killed",
        "status code -9",
        "**What to do**: resume; if memory ran out",
    ):
        assert said in note
    assert "populora run --store /runs --resume smoke" in note and "It resumes at: solve of generation 3." in note


def test_a_run_that_never_began_is_not_to_be_resumed() -> None:
    refused = RunEnd("w1", "/runs", "Failed", "Flow run received invalid parameters:\n - config: Value error, no", begun=False)
    note, (_, text) = end_note(refused), end_message(refused)
    for said in (note, text):
        assert "a setting does not fit" in said and "there is nothing to resume" in said and "--resume" not in said


def test_what_had_not_begun_is_started_again_once_its_cause_is_gone() -> None:
    for message in ("AccessRefused: 403", "nobody knows"):
        refused = RunEnd("w1", "/runs", "Failed", message, begun=False)
        for said in (end_note(refused), end_message(refused)[1]):
            assert "start it again" in said and said.count("resume") == 1, "nothing to resume"


def test_an_errors_text_stays_text() -> None:
    nasty = "```\n</pre><script>alert(1)</script>\n# x\u202e\x1b[31m" + "y" * 9000
    note = end_note(RunEnd("smoke", "/runs", "Failed", nasty))
    before, _, rest = note.partition("````text\n")
    inside, _, after = rest.partition("\n````")
    assert "<script>" in inside and "<script>" not in before + after
    assert "\u202e" not in note and "\x1b" not in note and len(note) < 4000


def test_messages_are_short() -> None:
    subject, text = end_message(CRASHED)
    assert subject == "populora: run smoke crashed"
    assert text.splitlines()[1].startswith("What to do: resume; if memory ran out, free some first") and "--resume smoke" in text
    assert end_message(RunEnd("smoke", "/runs", "Completed")) == (
        "populora: run smoke completed",
        "Run smoke in /runs: completed.",
    )


def test_who_pressed_ctrl_c_knows() -> None:
    assert stopped_by_hand("Execution was aborted by an interrupt signal.") and not stopped_by_hand(CRASHED.message)


def test_a_run_that_was_refused_is_started_again_with_another_value() -> None:
    refused = RunEnd("r", "/s", "Failed", "Flow run received invalid parameters: - config.seed", "", False)
    assert "What to do: the message names it; start it again with another value." in end_message(refused)[1].splitlines()
    killed = RunEnd("r", "/s", "Crashed", "exited with status code -9", "", False)
    assert "if it comes again, start it with a smaller `engine.batch_tokens`" in end_message(killed)[1]
