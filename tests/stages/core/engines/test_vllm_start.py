"""Why vLLM's process did not start: what it and its children wrote, and whether another try can help."""

import os
import subprocess
import sys

import pytest

from stages.core.engines.protocol import EngineUnavailable, EngineUnusable
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


def test_anything_else_is_retried_and_says_what_the_process_said_last() -> None:
    full = "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization"
    for lines in ([*TRACE, full], [PERMANENT[1][0], *TRACE, full]):  # a warning before it does not make it permanent
        error = start_error(lines)
        assert isinstance(error, EngineUnavailable) and f"vLLM did not start: {full}. Another process" in str(error)
    assert "its messages say why" in str(start_error(["INFO loading", "Killed"]))


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
