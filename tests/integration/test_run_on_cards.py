"""A whole run on a machine with two cards, which an `nvidia-smi` of ours lists, or in two processes on its processor.

Parts run side by side; the bytes are those of one process that computes all.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.cards import Card, claim
from flows.config import PROJECT
from flows.run.run import Run
from flows.storage import Store, open_store
from tests.support import kill_hooks
from tests.support.cards import Machine
from tests.support.stack import NO_GIT, tree

SETTINGS = ["generations=3", "sandbox.kind=local", "engine.shards=2", "learning.adapters_per_group=1"]
# Loaded by a stage's worker: the first update on card 1 finds that the machine has lost it.
HOOK = """
def watch(module):
    perform = module.perform

    def watched(run, spec, *more):
        cards = Path(os.environ["CARDS"])
        if spec.stage == "update" and os.environ.get("CUDA_VISIBLE_DEVICES") == "1":
            cards.write_text(cards.read_text().splitlines()[0] + "\\n")
            die()
        return perform(run, spec, *more)

    module.perform = watched
"""

# Loaded by a stage's worker: the one that begins the first part of the second generation's update is killed.
ONCE = """
def watch(module):
    perform = module.perform

    def watched(run, spec, *more):
        if (spec.stage, spec.generation, (spec.part or "")[:2]) == ("update", 1, "00") and first("killed"):
            die()
        return perform(run, spec, *more)

    module.perform = watched
"""


def run(
    folder: Path, cards: int, memory_mb: int = 81559, device: str = "auto", more: Sequence[str] = (), processes: int = 1
) -> "subprocess.CompletedProcess[str]":
    """`populora run` on a machine with so many cards, or in so many processes, to `folder`/store, after the hook in `folder`."""
    folder.mkdir(exist_ok=True)
    made = Machine(folder, cards, memory_mb)
    if not cards:
        (folder / "nvidia-smi").unlink()
    paths = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": f"{folder}{os.pathsep}{PROJECT}"}
    environment = os.environ | NO_GIT | paths | {"CARDS": str(folder / "cards"), "POPULORA_PROCESSES": str(processes)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    words = ["run", "-c", "chaos", "--run-id", "r", "--store", str(made.folder / "store")]
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        *words,
        *(word for one in [*SETTINGS, f"model.device={device}", *more] for word in ("--set", one)),
    ]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)


def finished(folder: Path, cards: int, more: Sequence[str] = (), processes: int = 1) -> Store:
    """The store of a run that ended well."""
    done = run(folder, cards, more=more, processes=processes)
    assert done.returncode == 0, done.stderr[-3000:]
    return open_store(str(folder / "store"))


def clocks(store: Store, run_id: str = "r") -> dict[str, dict[str, object]]:
    """The clock of every manifest of the run's stages and parts."""
    uris = [uri for uri in store.list(f"{run_id}/") if uri.endswith(".json") and ("generation=" in uri or "start/" in uri)]
    return {uri: json.loads(store.read(uri))["clock"] for uri in uris if "/adapters/" not in uri}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The run on a machine without cards."""
    store = finished(tmp_path_factory.mktemp("none"), 0)
    assert not {"cuda_visible_devices"} & {key for clock in clocks(store).values() for key in clock}
    assert len({clock["pid"] for clock in clocks(store).values()}) == 1
    return store


@pytest.mark.timeout(1500)
def test_parts_run_on_both_cards_in_one_process_each_and_the_bytes_are_those_of_a_machine_without(
    plain: Store, tmp_path: Path
) -> None:
    store = finished(tmp_path, 2)
    of_card = defaultdict[object, set[object]](set)
    for clock in clocks(store).values():
        of_card[clock.get("cuda_visible_devices")].add(clock["pid"])
    assert {card: len(pids) for card, pids in of_card.items()} == {"0": 1, "1": 1}
    parts = {uri: clock["cuda_visible_devices"] for uri, clock in clocks(store).items() if ".parts/" in uri}
    for generation in range(3):
        for stage in ("propose", "solve", "update"):
            mine = [card for uri, card in parts.items() if uri.startswith(f"r/generation={generation:04d}/{stage}.parts/")]
            assert set(mine) == {"0", "1"}, (generation, stage, mine)
    assert tree(store) == tree(plain) and fsck(Run(store, "r")) == []


@pytest.mark.timeout(1500)
@pytest.mark.skipif(not version("torch").endswith("+cpu"), reason="with auto, a torch that could use a GPU stays in one process")
def test_two_processes_on_a_cpu_compute_the_same_bytes_also_after_one_of_them_was_killed(plain: Store, tmp_path: Path) -> None:
    kill_hooks.install(tmp_path, ONCE)
    store = finished(tmp_path, 0, processes=2)
    assert "killed" in kill_hooks.marks(tmp_path)
    ran = clocks(store)
    parts = sorted((clock["started"], uri) for uri, clock in ran.items() if ".parts/" in uri)
    together = [one for (start, one), (after, _) in pairwise(parts) if after < start + ran[one]["seconds"]]
    assert together and len({clock["pid"] for clock in ran.values()}) <= 3  # two, and one in place of the killed one
    assert tree(store) == tree(plain) and fsck(Run(store, "r")) == []


OFF_POLICY = ["learning.off_policy_steps=1", "learning.importance_cap=2.0"]


@pytest.mark.timeout(1500)
@pytest.mark.skipif(not version("torch").endswith("+cpu"), reason="with auto, a torch that could use a GPU stays in one process")
def test_an_off_policy_update_runs_beside_the_rollouts_and_the_bytes_are_those_of_a_machine_without_cards(tmp_path: Path) -> None:
    alone, store = (finished(tmp_path / str(cards), cards, [*OFF_POLICY, "generations=2"]) for cards in (0, 2))
    beside = finished(tmp_path / "beside", 0, [*OFF_POLICY, "generations=2"], processes=2)
    assert tree(store) == tree(beside) == tree(alone) and fsck(Run(store, "r")) == []
    for ran in (clocks(store), clocks(beside)):
        trained = [clock for uri, clock in ran.items() if uri.startswith("r/generation=0001/update.parts/")]
        solved = ran["r/generation=0001/solve.json"]
        assert trained and min(clock["started"] for clock in trained) < solved["started"]
        assert not any(uri.startswith("r/generation=0000/update.parts/") for uri in ran)  # nothing was sampled before


@pytest.mark.timeout(1500)
def test_a_run_that_loses_a_card_in_the_middle_of_a_stage_ends_on_the_other_with_the_same_bytes(
    plain: Store, tmp_path: Path
) -> None:
    kill_hooks.install(tmp_path, HOOK)
    store = finished(tmp_path, 2)
    assert (tmp_path / "cards").read_text().count("\n") == 1
    after = {uri: clock for uri, clock in clocks(store).items() if "generation=0001" in uri or "generation=0002" in uri}
    assert {clock["cuda_visible_devices"] for clock in after.values()} == {"0"}
    assert tree(store) == tree(plain) and fsck(Run(store, "r")) == []


def test_a_card_that_is_too_small_or_another_s_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    small = run(tmp_path, 1, 256, "cuda")
    assert (small.returncode, small.stdout, small.stderr.count("\n")) == (2, "", 1)
    assert small.stderr.startswith("populora: card 0 of this machine has 0.2 GiB, but the plan's ")
    machine = Machine(tmp_path, 1)
    held = claim(Card("0", machine.uuid(0)))
    taken = run(tmp_path, 1)
    assert (taken.returncode, taken.stdout) == (3, "")
    assert taken.stderr == (
        f"populora: in use: card 0 by process {os.getpid()}; stop it, or choose other cards with CUDA_VISIBLE_DEVICES\n"
    )
    assert held is not None and not (tmp_path / "store" / "r").exists()
    held.release()
