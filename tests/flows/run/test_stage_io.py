"""What a stage reads from the store and what from this machine."""

import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.run import stage_io
from flows.run.held_adapters import HeldAdapters
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import Damaged, Store, open_store
from flows.store.local_copies import LocalCopies
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import OPTIMIZER_FILE, WEIGHTS_FILE, adapter_bytes
from tests.support import example_run

ADAPTER = "t0-g0000"


class ReadingStore:
    """A store that notes which files of adapters are read."""

    def __init__(self, store: Store) -> None:
        self._store, self.files = store, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, uri: str) -> bytes:
        if "/adapters/" in uri:
            self.files.append(uri.rpartition("/")[2])
        return self._store.read(uri)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadingStore:
    """One generation of the example run, as if in a bucket: its adapters are copied to this machine."""
    monkeypatch.setattr(stage_io.local_copies, "of_store", lambda url: LocalCopies(tmp_path / "copies", 10**9))
    opened = open_store(str(tmp_path / "runs"))
    with hold(opened, "smoke") as epoch:
        example_run.build(Run(opened, "smoke", epoch), 1)
    return ReadingStore(opened)


def stage(store: Any, name: str = "propose") -> StageIO:
    return StageIO(Run(store, "smoke"), name, 1, None, "m", 4.0)


def test_the_weights_of_an_adapter_are_read_once_per_machine_and_its_moments_each_time(store: ReadingStore) -> None:
    first = stage(store).adapters([ADAPTER])[ADAPTER]
    assert store.files == [WEIGHTS_FILE]
    io = stage(store, "solve")
    again = io.adapters([ADAPTER])[ADAPTER]
    assert store.files == [WEIGHTS_FILE] and dict(again.weights).keys() == dict(first.weights).keys()
    assert f"adapters/{ADAPTER}/{WEIGHTS_FILE}" in {ref.uri for ref in io.inputs()}
    io = stage(store, "update")
    assert io.adapters([ADAPTER], moments=True)[ADAPTER].step == 1
    assert store.files == [WEIGHTS_FILE, OPTIMIZER_FILE]
    assert {ref.uri for ref in io.inputs()} == {f"adapters/{ADAPTER}/{name}" for name in (WEIGHTS_FILE, OPTIMIZER_FILE)}


def test_a_process_that_holds_adapters_reads_each_file_once(store: ReadingStore) -> None:
    held = HeldAdapters(10**9)

    def process(name: str) -> StageIO:
        return StageIO(Run(store, "smoke"), name, 1, None, "m", 4.0, held=held)

    alone = stage(store, "update").adapters([ADAPTER], moments=True)[ADAPTER]
    store.files.clear()
    process("propose").adapters([ADAPTER])
    first, again = (process("update").adapters([ADAPTER], moments=True)[ADAPTER] for _ in range(2))
    assert store.files == [OPTIMIZER_FILE]  # and this machine has a copy of the weights
    assert first.weights is again.weights and again.step == first.step == alone.step == 1
    assert adapter_bytes(again, "m", 4.0) == adapter_bytes(alone, "m", 4.0)
    io = process("update")
    io.adapters([ADAPTER], moments=True)
    assert {ref.uri for ref in io.inputs()} == {f"adapters/{ADAPTER}/{name}" for name in (WEIGHTS_FILE, OPTIMIZER_FILE)}


def test_what_a_process_wrote_it_holds_as_it_would_read_it(store: ReadingStore, tmp_path: Path) -> None:
    held, opened, made = HeldAdapters(10**9), open_store(str(tmp_path / "runs")), "t0-g0001"
    with hold(opened, "smoke") as epoch:
        run = Run(opened, "smoke", epoch)
        io = StageIO(run, "update", 1, None, "m", 4.0, held=held)
        io.write_adapters({made: example_run.adapter(9, 2)})
        io.commit({})
    reader = StageIO(Run(store, "smoke"), "rate", 1, None, "m", 4.0, held=held).adapters([made], moments=True)[made]
    assert store.files == []
    read = StageIO(Run(store, "smoke"), "rate", 1, None, "m", 4.0).adapters([made], moments=True)[made]
    assert store.files and adapter_bytes(reader, "m", 4.0) == adapter_bytes(read, "m", 4.0)
    assert reader.weights.sha256 == read.weights.sha256


def test_a_writer_that_came_second_holds_nothing_of_its_own(store: ReadingStore, tmp_path: Path) -> None:
    held, opened = HeldAdapters(10**9), open_store(str(tmp_path / "runs"))
    with hold(opened, "smoke") as epoch:
        writer = StageIO(Run(opened, "smoke", epoch), "update", 0, None, "m", 4.0, held=held)
        committed = writer.run.history.find(f"adapters/{ADAPTER}/{WEIGHTS_FILE}")
        [digest] = writer.write_adapters({ADAPTER: example_run.adapter(9, 2)}).values()
    assert digest == committed.sha256 and held.find(committed, 0) is None
    assert not [one for one in (tmp_path / "copies").glob("*") if one.is_file()]


def test_what_this_machine_wrote_it_does_not_read(store: ReadingStore, tmp_path: Path) -> None:
    opened = open_store(str(tmp_path / "runs"))
    with hold(opened, "smoke") as epoch:
        writer = StageIO(Run(opened, "smoke", epoch), "update", 1, None, "m", 4.0)
        [digest] = writer.write_adapters({"t9-g0001": example_run.adapter(9, 1)}).values()
    read = writer._copies.read(digest, lambda: pytest.fail("read from the store"))
    assert sha256(read).hexdigest() == digest


def test_a_damaged_artifact_never_becomes_a_copy(store: ReadingStore, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "smoke" / "adapters" / ADAPTER / "adapter_model.safetensors"
    place.chmod(0o644)
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(Damaged):
        stage(store).adapters([ADAPTER])
    assert not [one for one in (tmp_path / "copies").iterdir() if one.is_file()]


class LateStore(ReadingStore):
    """A store in which the files of the first adapter take longest."""

    def read(self, uri: str) -> bytes:
        self._wait(uri)
        return super().read(uri)

    def create(self, uri: str, data: bytes) -> str | None:
        self._wait(uri)
        return self._store.create(uri, data)

    @staticmethod
    def _wait(uri: str) -> None:
        if "/adapters/t0-" in uri:
            time.sleep(0.2)


def test_adapters_are_named_in_the_order_in_which_they_were_asked_for(store: ReadingStore, tmp_path: Path) -> None:
    late, made = (
        LateStore(open_store(str(tmp_path / "runs"))),
        [f"{member}-g0001" for member in ("t0", "t1", "s0", "s1", "s2", "s3")],
    )
    with hold(late, "smoke") as epoch:
        writer = StageIO(Run(late, "smoke", epoch), "update", 1, None, "m", 4.0)
        digests = writer.write_adapters({name: example_run.adapter(number, 1) for number, name in enumerate(made)})
    assert list(digests) == made and len(set(digests.values())) == len(made)
    named = [uri.split("/")[1] for uri in writer._outputs]
    assert list(dict.fromkeys(named)) == made and named == sorted(named, key=made.index)
    reader, wanted = stage(late), ["t0-g0000", "s1-g0000", "s0-g0000"]
    found = reader.adapters(wanted, moments=True)
    assert list(found) == wanted
    alone = {name: stage(store).adapters([name], moments=True)[name] for name in wanted}
    assert [found[name].weights.sha256 for name in wanted] == [alone[name].weights.sha256 for name in wanted]
    assert list(dict.fromkeys(ref.uri.split("/")[1] for ref in reader.inputs())) == wanted


def test_an_adapter_that_cannot_be_stored_stores_no_digest(store: ReadingStore, tmp_path: Path) -> None:
    opened = open_store(str(tmp_path / "runs"))
    odd = Adapter({name: one.astype(np.float64) for name, one in example_run.adapter(9, 1).weights.items()}, {}, 0)
    with hold(opened, "smoke") as epoch:
        writer = StageIO(Run(opened, "smoke", epoch), "update", 1, None, "m", 4.0)
        with pytest.raises(ValueError, match="must be float32"):
            writer.write_adapters({"t8-g0001": example_run.adapter(8, 1), "t9-g0001": odd})
        assert not writer._outputs
