"""Why vLLM's process did not start: what it and its children wrote, and whether another try can help."""

import os
import subprocess
import sys

import pytest

from stages.core.engines.protocol import CardUnusable, EngineUnavailable, EngineUnusable
from stages.core.engines.vllm_start import Overheard, start_error
from stages.core.unavailable import Unavailable

TRACE = [
    "Process EngineCore:",
    "Traceback (most recent call last):",
    '  File "core.py", line 1400, in run_engine_core',
    "    raise e",
]
PERMANENT = [
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020).", "driver is too old"),
    ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", "gcc"),
    ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "no kernels for this card"),
    ("RuntimeError: No CUDA GPUs are available", "finds no GPU"),
]


@pytest.mark.parametrize(("line", "cause"), PERMANENT)
@pytest.mark.parametrize("prefix", ["", "(EngineCore pid=123) ", "(EngineCore pid=7) ERROR 12-01 01:02:03 [core.py:1478] "])
def test_what_no_retry_changes_is_said_in_one_line_and_not_retried(line: str, cause: str, prefix: str) -> None:
    error = start_error([prefix + one for one in (*TRACE, line, "", "[rank0]: see above")])
    assert isinstance(error, EngineUnusable) and not isinstance(error, Unavailable)
    assert cause in str(error) and line in str(error) and "\n" not in str(error)
    assert isinstance(error, CardUnusable) == ("this card" in cause)


def test_anything_else_is_retried_and_says_what_the_process_said_last() -> None:
    full = "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization"
    for lines in ([*TRACE, full], [PERMANENT[1][0], *TRACE, full]):  # a warning before it does not make it permanent
        error = start_error(lines)
        assert isinstance(error, EngineUnavailable) and f"vLLM did not start: {full}. Another process" in str(error)
    assert "its messages say why" in str(start_error(["INFO loading", "Killed"]))


IGNORED = [
    "Exception ignored in: <function LLM.__del__ at 0x7f>",
    "Traceback (most recent call last):",
    '  File "llm.py", line 9, in __del__',
    "AttributeError: 'LLM' object has no attribute 'engine'",
]
IN_THREAD = ["Exception in thread Thread-1 (monitor):", *IGNORED[1:3], "KeyError: 7"]
CHAIN = ["", "The above exception was the direct cause of the following exception:", ""]
NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NO_LINK = "RuntimeError: NCCL error: unhandled system error"


@pytest.mark.parametrize("after", [IGNORED, [*IN_THREAD, *IGNORED], [IGNORED[0].partition(" <")[0], IGNORED[3]]])
def test_what_python_says_of_errors_that_end_nothing_is_not_the_error(after: list[str]) -> None:
    for line, cause in PERMANENT:
        assert f"{cause}" in (text := str(start_error([*TRACE, line, *after]))) and line in text
    error = start_error([*TRACE, NO_LINK, *after])
    assert isinstance(error, EngineUnavailable) and NO_LINK in str(error)


@pytest.mark.parametrize("last", [NO_MEMORY, NO_LINK])
@pytest.mark.parametrize("line", [line for line, _ in PERMANENT])
def test_a_cause_elsewhere_is_not_that_of_the_last_error(line: str, last: str) -> None:
    for before in ([f"UserWarning: {line}"], [*TRACE, line, "", "it tries again"], [f"[W1201 c10: {line}"]):
        error = start_error([*before, *TRACE, last])
        assert isinstance(error, EngineUnavailable) and last in str(error)


def test_a_cause_may_be_in_an_error_that_the_last_one_is_chained_to_or_below_its_name() -> None:
    (line, cause), last = PERMANENT[2], "RuntimeError: Worker failed"
    hints = ["CUDA kernel errors might be reported later", "Compile with TORCH_USE_CUDA_DSA"]
    chained = start_error([*TRACE, line, *hints, *CHAIN, *TRACE[1:], last])
    below = start_error([*TRACE, "AssertionError:", "Found no NVIDIA driver on your system. Please check that"])
    for error, said in ((chained, cause), (below, "finds no GPU")):
        assert isinstance(error, EngineUnusable) and said in str(error)


def test_a_compiler_says_why_before_its_caller_fails() -> None:
    gcc = "/tmp/main.c:5:10: fatal error: Python.h: No such file or directory"
    failed = "subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'main.c']' returned non-zero exit status 1."
    error = start_error([gcc, "compilation terminated.", *TRACE, failed])
    assert isinstance(error, EngineUnusable) and "gcc" in str(error)
    assert isinstance(start_error([gcc, *TRACE, NO_LINK]), EngineUnavailable)


def test_standard_error_is_noted_and_passed_on_also_that_of_children(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys, time; print('first', file=sys.stderr, flush=True); time.sleep(0.5); sys.exit('RuntimeError: late')"
    heard = Overheard()
    with heard:
        os.write(2, b"our own\n")
        child = subprocess.Popen([sys.executable, "-c", program])
    os.write(2, b"not noted\n")
    assert heard.lines() == ["our own", "first", "RuntimeError: late"], "it waits for a process that is about to end"
    child.wait()
    assert sorted(capfd.readouterr().err.splitlines()) == sorted(["our own", "first", "RuntimeError: late", "not noted"])


UNREAD = """
import os
from stages.core.engines.vllm_start import Overheard
reading, writing = os.pipe()
os.dup2(writing, 2)
os.close(writing)
os.close(reading)  # nobody reads our standard error any more
heard = Overheard()
with heard:
    for number in range(5000):
        os.write(2, b"%063d\\n" % number)
print(len(heard.lines()), int(heard.lines()[-1]), len(os.listdir("/proc/self/fd")))
"""


def test_writers_do_not_wait_where_standard_error_takes_nothing_more() -> None:
    """A pipe holds 64 KiB: what is written after that waits until somebody reads."""
    done = subprocess.run([sys.executable, "-c", UNREAD], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["400", "4999", "4"], "all is noted, and both ends are closed"
