"""Runs that were killed go on as if they had not been."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.run.manifest import manifest_uri
from flows.storage import open_store
from tests.flows.run.test_manifest import ROOT, tree


def test_an_unknown_stage_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="unknown stage paint"):
        manifest_uri("paint", 0)


def test_a_run_killed_anywhere_and_started_again_ends_as_if_never_killed(tmp_path: Path) -> None:
    code = """
import sys
sys.path.append("tests")
from tests.support import example_run
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
store = open_store(sys.argv[1])
with hold(store, "smoke") as epoch:
    print("ready", flush=True)
    example_run.build(Run(store, "smoke", epoch), 3)
"""
    urls = [(tmp_path / name).as_uri() for name in ("killed", "whole")]
    rng = random.Random(2)

    def start(url: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, url], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        return process

    started = time.monotonic()
    whole = start(urls[1])
    assert whole.communicate() == ("", "")
    seconds = time.monotonic() - started
    stamps: dict[str, str] = {}
    store = open_store(urls[0])
    for _ in range(8):
        process = start(urls[0])
        time.sleep(rng.uniform(0.0, seconds / 3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = {uri: store.stamp(uri) for uri in store.list("smoke/")}
        assert stamps.items() <= now.items(), "something that existed was written anew"
        stamps = now
    process = start(urls[0])
    assert process.communicate() == ("", "") and process.returncode == 0
    assert tree(store) == tree(open_store(urls[1]))
    assert not [uri for uri in store.list("smoke/", hidden=True) if ".tmp-" in uri]
