"""Clocks that are set back and forth, and time namespaces: no lease and no digest depends on them."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.run.lease import LeaseHeld, hold
from flows.run.run import Run
from flows.storage import open_store
from tests.flows.run.test_manifest import tree
from tests.support import example_run
from tests.support.fault_tools import ROOT, at_work, builder, namespace_gap

HOLD = """
import sys
from flows.run.lease import hold
from flows.storage import open_store
with hold(open_store(sys.argv[1]), "smoke", beat_seconds=0.2, stale_seconds=30.0) as epoch:
    print(epoch, flush=True)
    sys.stdin.readline()
"""


def test_a_run_whose_clock_is_set_back_and_forth_has_the_same_bytes(tmp_path: Path) -> None:
    """By hours and by a year, many times; the lease stays its own. (libfaketime moves sleeps along, which no clock does.)"""
    library = tmp_path / "moved_clock.so"
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, ROOT / "tests" / "support" / "moved_clock.c", "-ldl"], check=True
    )
    for name in ("whole", "moved"):
        store, offset = open_store(str(tmp_path / name)), tmp_path / f"{name}.offset"
        offset.write_text("0\n")
        moved = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(offset)}
        run = builder(store.url, 12, 30.0, **(moved if name == "moved" else {}))  # long enough to be met at work
        at_work(run)
        number = 0
        while run.poll() is None:
            number += 1
            offset.write_text(f"{(-32400, 34560000, 0, -172800)[number % 4]}\n")
            if name == "moved" and number == 1:
                with pytest.raises(LeaseHeld), hold(store, "smoke", beat_seconds=0.2, stale_seconds=30.0):
                    pass
            time.sleep(0.05)
        assert run.communicate()[1] == "" and run.returncode == 0
        assert fsck(Run(store, "smoke")) == []
    assert tree(open_store(str(tmp_path / "moved"))) == tree(open_store(str(tmp_path / "whole")))


@pytest.mark.parametrize("shift", ["--boottime 500000", "--monotonic 500000", "--monotonic -1 --boottime -1"])
def test_a_holder_in_another_time_namespace_is_not_taken_for_dead(tmp_path: Path, shift: str) -> None:
    """There a process seems to have started at another moment, and the monotonic clock begins elsewhere."""
    flags = ("--time", *shift.split(), "--fork")
    if gap := namespace_gap(*flags):
        pytest.skip(gap)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    first = subprocess.Popen(["unshare", *flags, sys.executable, "-c", HOLD, str(tmp_path)], **pipes)  # type: ignore[call-overload]
    theirs = int(first.stdout.readline())
    store = open_store(str(tmp_path))
    with pytest.raises(LeaseHeld, match="is in use by process"), hold(store, "smoke", 0.2, 30.0):
        pass
    first.communicate("go\n")
    with hold(store, "smoke") as epoch:
        example_run.build(Run(store, "smoke", epoch), 1)
    assert epoch == theirs + 1 and fsck(Run(store, "smoke")) == []
