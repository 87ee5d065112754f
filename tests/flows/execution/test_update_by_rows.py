"""An update cut by rows, on the seed model and real storage: its parts, its join, kills in both, retention and fsck."""

import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load

from flows.audit.fsck import fsck
from flows.backend import Backend
from flows.config import RunConfig, dump
from flows.config import load as load_config
from flows.execution.parts import named_parts, part_names
from flows.execution.run_stage import Spec, perform
from flows.run.history import KEPT_OUT
from flows.run.lease import hold
from flows.run.manifest import Manifest, digest, manifest_uri
from flows.run.resume import first_generation
from flows.run.retention import RetentionPolicy, plan, retire
from flows.run.run import GRADIENTS, Run
from flows.run.stage_io import StageIO
from flows.steps.steps import update_parts
from flows.storage import Store, open_store
from stages.core.engines.agreement import Disagreement
from stages.core.shards import Shard
from stages.core.tables import TOKENS
from stages.update import gradients
from tests.support import example_run

SETTINGS = ["sandbox.kind=local", "generations=1", "engine.max_drift=1e9", "benchmark.limit=1"]
ROWS = ["learning.divide=rows", "engine.shards=2"]
REST = ("reward", "update", "rate", "evolve")


def config_of(*settings: str) -> RunConfig:
    return load_config("chaos", [*SETTINGS, *settings])


def begin(store: Store, config: RunConfig, backend: Backend, epoch: int) -> Run:
    """A run whose first generation has been played and graded; completions and verdicts are made up."""
    run = Run(store, "r", epoch)
    run.describe(dump(config), {KEPT_OUT: []}, example_run.CLOCK)
    example_run.play(run, example_run.start(run, backend.initial_adapter()), 0, prompts=3)
    return run


def go_on(run: Run, config: RunConfig, backend: Backend, stages: tuple[str, ...] = REST) -> None:
    """Does what is left of these stages, part by part, as a session does."""
    for stage in stages:
        io = StageIO(run, stage, 0, None, config.model.name, config.model.alpha)
        for part in (*part_names(io, config), None) if stage == "update" else (None,):
            if run.finished(stage, 0, part) is None:
                perform(run, spec(run, stage, part), config, backend)


def spec(run: Run, stage: str, part: str | None) -> Spec:
    return Spec(run.store.url, run.run_id, stage, 0, part, run.epoch, 1)


def tree(store: Store) -> dict[str, bytes]:
    """Every artifact that a manifest names, and the manifests without their clocks."""
    found = {}
    for uri in store.list("r/"):
        data = store.read(uri)
        if uri.endswith(".json") and "/adapters/" not in uri:
            data = json.dumps({key: value for key, value in json.loads(data).items() if key != "clock"}).encode()
        found[uri] = data
    return found


def known(store: Store, stage: str) -> Manifest:
    """The manifest of a stage."""
    found = Run(store, "r").manifest(stage, 0)
    assert found is not None, stage
    return found


def weights(store: Store, member: str) -> dict[str, np.ndarray]:
    return load(store.read(f"r/adapters/{member}-g0000/adapter_model.safetensors"))


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    """One model for all: what differs between the configurations of this file is not its business."""
    made = Backend(config_of())
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The update in two shares, never killed."""
    store = open_store(str(tmp_path_factory.mktemp("whole")))
    with hold(store, "r") as epoch:
        go_on(begin(store, config_of(*ROWS), backend, epoch), config_of(*ROWS), backend)
    return store


def test_two_shares_train_what_one_pass_trains(whole: Store, backend: Backend, tmp_path: Path) -> None:
    """Weights within 5 % of a step of AdamW, 1e-3: gradients are summed in another order."""
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        run = begin(store, config_of(), backend, epoch)
        go_on(run, config_of(), backend)
    assert run.manifest("update", 0, "00") is not None
    made = {uri for uri in whole.list("r/adapters/") if "g0000" in uri}
    assert made == {uri for uri in store.list("r/adapters/") if "g0000" in uri} and len(made) == 3 * 4
    for member in ("t0", "t1", "s0", "s1"):
        one, other = weights(store, member), weights(whole, member)
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, atol=5e-5, err_msg=f"{member} {name}")
    found = [Run(one, "r").read_table(0, "metrics").to_pylist() for one in (store, whole)]
    for ours, theirs in zip(*found, strict=True):
        assert theirs == ours | {"value": pytest.approx(ours["value"], rel=1e-4, abs=1e-5, nan_ok=True)}
    names = [{uri for uri in one.list("r/generation=0000/") if ".parts/" not in uri} for one in (store, whole)]
    assert names[0] == names[1]


def test_what_the_parts_store_adds_up_to_the_gradient_of_one_pass(whole: Store, backend: Backend) -> None:
    """Within 1e-4 of its largest entry. The first weights of AdamW do not show a wrong scale: every step is equally long."""
    run = Run(whole, "r")
    io = StageIO(run, "update", 0, None, "seed", 4.0)
    parts = update_parts(io, config_of(*ROWS))
    names = dict.fromkeys(adapter_id for _, adapters in parts for adapter_id in adapters)
    one_pass, _ = gradients(io.adapters(names), run.read_table(0, "samples"), Shard(), backend.trainer())
    assert list(one_pass) == list(names) and len(names) == 4
    for name, gradient in one_pass.items():
        stored = [one.values for one in io.gradients(name, [part for part, adapters in parts if name in adapters])]
        for key, array in gradient.values.items():
            summed = np.sum([values[key] for values in stored], axis=0)
            np.testing.assert_allclose(summed, array, atol=1e-4 * np.abs(array).max(), err_msg=f"{name} {key}")


def test_the_parts_are_in_the_table_and_hand_gradients_to_the_join(whole: Store) -> None:
    run, config = Run(whole, "r"), config_of(*ROWS)
    io = StageIO(run, "update", 0, None, "seed", 4.0)
    assert named_parts(io, config) == [("00of02", "1 of 2"), ("01of02", "2 of 2")]
    assert named_parts(io, config_of()) == named_parts(io, config), "a resumed run repeats the cut that is stored"
    groups = run.read_table(0, "groups").to_pylist()
    pairs = [(row["part"], row["adapter_id"]) for row in groups]
    assert set(whole.list(f"r/{GRADIENTS}")) == {
        f"r/{GRADIENTS}g0000/{part}/{adapter_id}.safetensors" for part, adapter_id in pairs
    }
    joined = known(whole, "update")
    read = [ref.uri for ref in joined.inputs if ref.uri.startswith(GRADIENTS)]
    assert len(read) == len(pairs) and not [ref for ref in joined.outputs if ref.uri.startswith(GRADIENTS)]
    shared = [name for name, count in Counter(adapter_id for _, adapter_id in pairs).items() if count > 1]
    assert len(shared) == 1, "one adapter is in both shares"
    uris = [f"generation=0000/update.parts/{part}.parquet" for part in ("00of02", "01of02")]
    tokens = sum(run.read_table(uri, "tokens", TOKENS).num_rows for uri in uris)
    assert tokens == sum(map(len, run.read_table(0, "samples")["completion_ids"].to_pylist()))


def test_the_join_loads_no_base_model(whole: Store, tmp_path: Path, backend: Backend) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        run = begin(store, config_of(*ROWS), backend, epoch)
        go_on(run, config_of(*ROWS), backend, ("reward",))
        for part in part_names(StageIO(run, "update", 0, None, "", 1.0), config_of(*ROWS)):
            perform(run, spec(run, "update", part), config_of(*ROWS), backend)
        alone = Backend(config_of(*ROWS))
        perform(run, spec(run, "update", None), config_of(*ROWS), alone)
    assert "_lora" not in vars(alone) and "_stepper" in vars(alone)
    assert digest(known(store, "update")) == digest(known(whole, "update"))


@pytest.mark.parametrize(("drift", "stops"), [(0.01, False), (0.06, True)])
def test_the_join_measures_drift_by_the_type_of_the_engine_not_of_its_own_machine(
    whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drift: float, stops: bool
) -> None:
    """The parts ran on cards in bfloat16, the flow on a processor without units for it, where a run would be in float32."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    config = config_of(*ROWS, "model.dtype=bfloat16", "model.device=auto", "engine.max_drift=0")
    alone, store = Backend(config), open_store(str(tmp_path))
    assert alone.dtype == "float32"
    with hold(store, "r") as epoch:
        go_on(begin(store, config, alone, epoch), config, alone, ("reward",))
        engine_wrote_in(store, "bfloat16")
        run = Run(store, "r", epoch)
        for part in part_names(StageIO(run, "update", 0, None, "seed", 4.0), config):
            copy_part(whole, run, part, drift)
        with pytest.raises(Disagreement, match=r"more than 0.05 nats") if stops else nullcontext():
            perform(run, spec(run, "update", None), config, alone)


def engine_wrote_in(store: Store, dtype: str) -> None:
    values = json.loads(store.read("r/generation=0000/solve.json"))
    store.delete("r/generation=0000/solve.json")
    store.create("r/generation=0000/solve.json", json.dumps(values | {"versions": {"engine": {"dtype": dtype}}}).encode())


def copy_part(whole: Store, run: Run, part: str, drift: float) -> None:
    """What a part of `whole` stored, as if engine and trainer had differed by so much at every token."""
    theirs, ours = (StageIO(one, "update", 0, part, "seed", 4.0) for one in (Run(whole, "r"), run))
    [tokens] = theirs.parts([part], TOKENS)
    for name in dict.fromkeys(tokens["adapter_id"].to_pylist()):
        [gradient] = theirs.gradients(name, [part])
        ours.write_gradient(name, gradient)
    apart = pa.array([drift] * tokens.num_rows, pa.float32())
    ours.write_part(tokens.set_column(tokens.schema.get_field_index("drift"), "drift", apart), TOKENS)
    ours.commit(example_run.CLOCK)


def die_at(store_url: str, epoch: int, ending: str) -> None:
    """Resume the run in this process, which sends itself SIGKILL once it has written a file whose name has this ending."""
    write = Run._write_once

    def killing(self: Run, uri: str, *rest: Any) -> Any:
        written = write(self, uri, *rest)
        if uri.endswith(ending):
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    Run._write_once = killing  # type: ignore[method-assign]
    config = config_of(*ROWS)
    go_on(Run(open_store(store_url), "r", epoch), config, Backend(config))


KILLS = ["00of02/t0-start.safetensors", "update.parts/01of02.parquet", "t1-g0000/adapter_model.safetensors", "metrics.parquet"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ending", KILLS)
def test_killed_in_a_part_or_in_the_join_it_resumes_to_the_same_bytes(
    whole: Store, backend: Backend, tmp_path: Path, ending: str
) -> None:
    store, config = open_store(str(tmp_path)), config_of(*ROWS)
    with hold(store, "r") as epoch:
        run = begin(store, config, backend, epoch)
        child = multiprocessing.get_context("spawn").Process(target=die_at, args=(store.url, epoch, ending))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        assert run.manifest("update", 0) is None
        assert [uri for uri in store.list("r/") if uri.endswith(ending)], "it was killed before it wrote anything"
        go_on(run, config, backend)
    assert tree(store) == tree(whole)


@pytest.fixture
def copy(whole: Store, tmp_path: Path) -> Iterator[Run]:
    store = open_store(str(tmp_path))
    for uri in whole.list("r/"):
        store.create(uri, whole.read(uri))
    with hold(store, "r") as epoch:
        yield Run(store, "r", epoch)


def test_gradients_are_retired_when_the_generation_is_complete_and_fsck_knows(copy: Run) -> None:
    assert fsck(Run(copy.store, "r")) == []
    policy = RetentionPolicy()
    going = retire(copy, policy, example_run.CLOCK)
    assert {one.reason for one in going} == {"gradients of a complete update"} and len(going) >= 4
    assert copy.store.list(f"r/{GRADIENTS}") == [] and plan(copy, policy) == []
    assert fsck(Run(copy.store, "r")) == [] and first_generation(copy) == 0
    assert copy.finished("update", 0, "00of02") is not None and copy.finished("update", 0) is not None


def test_gradients_of_a_generation_that_is_not_complete_stay(copy: Run) -> None:
    copy.remove(manifest_uri("evolve", 0))
    assert plan(copy, RetentionPolicy()) == []


def test_a_retirement_that_was_killed_after_its_tombstone_is_finished(copy: Run) -> None:
    entries = [{"uri": one.ref.uri, "sha256": one.ref.sha256, "reason": one.reason} for one in plan(copy, RetentionPolicy())]
    copy.store.create("r/gc/0001.json", json.dumps({"schema": 1, "retired": entries, "clock": {}}).encode())
    assert retire(copy, RetentionPolicy(), example_run.CLOCK) == []
    assert copy.store.list(f"r/{GRADIENTS}") == []


def test_fsck_notices_a_damaged_and_a_missing_gradient(copy: Run) -> None:
    damaged, missing = copy.store.list(f"r/{GRADIENTS}")[:2]
    data = bytearray(copy.store.read(damaged))
    data[-1] ^= 1
    copy.store.delete(damaged)
    copy.store.create(damaged, bytes(data))
    copy.store.delete(missing)
    found = {finding.uri: finding for finding in fsck(Run(copy.store, "r"))}
    assert set(found) == {damaged.removeprefix("r/"), missing.removeprefix("r/")}
    for finding in found.values():
        assert "generation=0000/update" in finding.dependents


def test_a_damaged_gradient_is_computed_again_after_fsck(whole: Store, copy: Run, backend: Backend) -> None:
    """In a generation whose update has not been joined: the part is done again, with the same bytes."""
    for stage in ("evolve", "rate", "update"):
        copy.remove(manifest_uri(stage, 0))
    damaged = copy.store.list(f"r/{GRADIENTS}")[0]
    copy.store.delete(damaged)
    copy.store.create(damaged, b"garbled")
    assert fsck(Run(copy.store, "r")) != []
    assert first_generation(copy) == 0 and not copy.store.exists(damaged)
    go_on(copy, config_of(*ROWS), backend)
    assert copy.store.read(damaged) == whole.read(damaged)
    assert copy.history.head() == Run(whole, "r").history.head()


@pytest.mark.parametrize("frozen", ["teachers", "students"])
def test_a_frozen_role_is_in_no_share(frozen: str, backend: Backend, tmp_path: Path) -> None:
    store, config = open_store(str(tmp_path)), config_of(*ROWS, f"learning.frozen={frozen}")
    with hold(store, "r") as epoch:
        run = begin(store, config, backend, epoch)
        go_on(run, config, backend, ("reward", "update"))
    kept = {"teachers": {"s0", "s1"}, "students": {"t0", "t1"}}[frozen]
    assert set(run.read_table(0, "groups")["member_id"].to_pylist()) <= kept
    stepped = {uri.split("/")[2] for uri in store.list("r/adapters/") if "g0000" in uri}
    assert stepped == {f"{member}-g0000" for member in kept}


def test_more_shards_than_prompts_are_as_many_parts_as_have_rows(backend: Backend, tmp_path: Path) -> None:
    store, config = open_store(str(tmp_path)), config_of("learning.divide=rows", "engine.shards=64")
    with hold(store, "r") as epoch:
        run = begin(store, config, backend, epoch)
        go_on(run, config, backend, ("reward", "update"))
    parts = dict.fromkeys(run.read_table(0, "groups")["part"].to_pylist())
    assert 8 <= len(parts) <= 12 and next(iter(parts)) == "00of12", "three prompts an adapter"
    assert run.manifest("update", 0) is not None
