"""Runs that were killed go on as if they had not been."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.run.lease import hold
from flows.run.manifest import manifest_uri
from flows.run.run import Manifest, Run
from flows.storage import Damaged, Store, open_store
from tests.flows.run.test_manifest import ROOT, tree
from tests.support import example_run


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


class Watched:
    """A store that notes what is read, and lets something happen after the first read or before the first removal of a file."""

    def __init__(self, store: Store, uri: str = "", after_read: Any = None, before_delete: Any = None) -> None:
        self._store, self._uri, self.files = store, uri, set[str]()
        self._after_read, self._before_delete = after_read, before_delete

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, uri: str) -> bytes:
        self.files.add(uri)
        data = self._store.read(uri)
        if uri == self._uri and self._after_read is not None:
            happen, self._after_read = self._after_read, None
            happen()
        return data

    def delete(self, uri: str) -> None:
        if uri == self._uri and self._before_delete is not None:
            happen, self._before_delete = self._before_delete, None
            happen()
        self._store.delete(uri)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        yield Run(store, "smoke", epoch)


def on(store: Any, run: Run) -> Run:
    """The same run as a process sees it that has read nothing yet."""
    return Run(store, run.run_id, run.epoch)


@pytest.mark.parametrize(
    ("uri", "folders"),
    [
        ("adapters/t0-g0003/adapter_model.safetensors", {"start", "generation=0003"}),
        ("gradients/g0003/00of02/t0-g0002.safetensors", {"generation=0003"}),
        ("generation=0003/update.parts/00of02.parquet", {"generation=0003"}),
        ("generation=0003/metrics.parquet", {"generation=0003"}),
    ],
)
def test_what_a_killed_update_left_is_cleared_without_reading_the_generations_before_it(
    run: Run, uri: str, folders: set[str]
) -> None:
    """A long run would read thousands of manifests for each file of each adapter."""
    example_run.build(run, 3)
    example_run.play(run, example_run.population_of(run, 2), 3)
    run.write_blob(uri, b"killed")
    watched = Watched(run.store)
    ref = on(watched, run).write_blob(uri, b"whole")
    assert run.store.read(f"smoke/{uri}") == b"whole" and run.read_blob(ref) == b"whole"
    read = {match[1] for file in watched.files if (match := re.match(r"smoke/(start|generation=\d+)/\w+\.json$", file))}
    assert read == folders


def test_an_adapter_that_a_later_generation_has_read_is_not_cleared_for_other_bytes(run: Run) -> None:
    """Its update lost the manifest. Nothing of its own generation reads it."""
    example_run.build(run, 3)
    uri = "adapters/t0-g0001/adapter_model.safetensors"
    whole = run.store.read(f"smoke/{uri}")
    run.store.delete("smoke/generation=0001/update.json")
    with pytest.raises(Damaged, match="its manifest is lost, and the recomputed bytes differ from those that later stages read"):
        on(run.store, run).write_blob(uri, b"other")
    assert run.store.read(f"smoke/{uri}") == whole


def test_bytes_that_another_copy_committed_while_debris_was_compared_are_not_cleared(run: Run) -> None:
    uri, other = "generation=0000/matches.parquet", on(run.store, run)
    run.write_blob(uri, b"debris")

    def overtake() -> None:
        other.commit("match", 0, [], [other.write_blob(uri, b"other")])

    ref = on(Watched(run.store, f"smoke/{uri}", after_read=overtake), run).write_blob(uri, b"mine")
    assert run.store.read(f"smoke/{uri}") == b"other"
    assert ref == other.history.find(uri)


def test_debris_that_another_copy_commits_while_it_is_cleared_is_put_back(run: Run) -> None:
    """On a store without locks."""
    uri = "generation=0000/matches.parquet"
    ref = run.write_blob(uri, b"theirs")

    def commit() -> None:
        theirs = Manifest("smoke", 0, "match", "", (), (ref,))
        run.store.create("smoke/generation=0000/match.json", json.dumps(theirs.to_json()).encode())

    mine = on(Watched(run.store, f"smoke/{uri}", before_delete=commit), run)
    assert mine.write_blob(uri, b"mine") == ref
    assert run.store.read(f"smoke/{uri}") == b"theirs" and on(run.store, run).done("match", 0)
