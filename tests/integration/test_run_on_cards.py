"""A whole run on a machine with two cards, which an `nvidia-smi` of ours lists: parts run on both, the bytes are the same."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT
from flows.run.run import Run
from flows.storage import Store, open_store
from tests.support.cards import Machine
from tests.support.stack import NO_GIT, tree

SETTINGS = ["generations=3", "model.device=auto", "sandbox.kind=local", "engine.shards=2", "learning.adapters_per_group=1"]


def run(folder: Path, cards: int, *settings: str) -> "subprocess.CompletedProcess[str]":
    """`populora run` on a machine with so many cards, to `folder`/store."""
    folder.mkdir(exist_ok=True)
    made = Machine(folder, cards)
    if not cards:
        (folder / "nvidia-smi").unlink()
    environment = os.environ | NO_GIT | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    words = ["run", "-c", "chaos", "--run-id", "r", "--store", str(made.folder / "store")]
    command = [sys.executable, "-m", "flows.cli", *words, *(word for one in (*SETTINGS, *settings) for word in ("--set", one))]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)


def clocks(store: Store) -> dict[str, dict[str, object]]:
    """The clock of every manifest of the run's stages and parts."""
    uris = [uri for uri in store.list("r/") if uri.endswith(".json") and ("generation=" in uri or "start/" in uri)]
    return {uri: json.loads(store.read(uri))["clock"] for uri in uris if "/adapters/" not in uri}


@pytest.mark.timeout(1500)
def test_parts_run_on_both_cards_in_one_process_each_and_the_bytes_are_those_of_a_machine_without(tmp_path: Path) -> None:
    pinned, plain = run(tmp_path / "two", 2), run(tmp_path / "none", 0)
    assert pinned.returncode == plain.returncode == 0, pinned.stderr[-3000:] + plain.stderr[-3000:]
    two, none = open_store(str(tmp_path / "two" / "store")), open_store(str(tmp_path / "none" / "store"))
    assert not {"cuda_visible_devices"} & {key for clock in clocks(none).values() for key in clock}
    assert len({clock["pid"] for clock in clocks(none).values()}) == 1
    of_card = defaultdict[object, set[object]](set)
    for clock in clocks(two).values():
        of_card[clock.get("cuda_visible_devices")].add(clock["pid"])
    assert {card: len(pids) for card, pids in of_card.items()} == {"0": 1, "1": 1}
    parts = {uri: clock["cuda_visible_devices"] for uri, clock in clocks(two).items() if ".parts/" in uri}
    for generation in range(3):
        for stage in ("propose", "solve", "update"):
            mine = [card for uri, card in parts.items() if uri.startswith(f"r/generation={generation:04d}/{stage}.parts/")]
            assert set(mine) == {"0", "1"}, (generation, stage, mine)
    assert tree(two) == tree(none) and fsck(Run(two, "r")) == []
