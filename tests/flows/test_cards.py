"""Cards as `nvidia-smi` lists them, which of them a child process sees, and which process holds one."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import cards
from flows.cards import Card
from flows.config import PROJECT, ConfigError, load
from flows.execution import preflight
from flows.execution.preflight import cards_for
from flows.execution.stage_process import early_worker
from tests.support.cards import Machine, machine


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machine(tmp_path, monkeypatch, 8)


def named(environment: dict[str, str]) -> list[str]:
    return [card.name for card in cards.cards(environment)]


def test_all_that_are_listed_are_cards_of_a_process_without_a_choice(eight: Machine) -> None:
    assert cards.cards({}) == [Card(str(number), eight.uuid(number), 81559) for number in range(8)]


def test_the_user_s_choice_is_kept_in_its_order_as_cuda_reads_it(eight: Machine) -> None:
    assert cards.cards({"CUDA_VISIBLE_DEVICES": "3, 1"}) == [
        Card("3", eight.uuid(3), 81559),
        Card("1", eight.uuid(1), 81559),
    ]
    part = eight.uuid(5)[:-6]
    assert cards.cards({"CUDA_VISIBLE_DEVICES": eight.uuid(5)}) == [Card(eight.uuid(5), eight.uuid(5), 81559)]
    assert named({"CUDA_VISIBLE_DEVICES": f"{part},0"}) == [eight.uuid(5), "0"], "vLLM knows whole identifiers only"
    assert named({"CUDA_VISIBLE_DEVICES": "2,9,1"}) == ["2"]  # nothing behind a card that is not there
    assert named({"CUDA_VISIBLE_DEVICES": "2,2"}) == ["2"]
    assert named({"CUDA_VISIBLE_DEVICES": "MIG-1"}) == ["MIG-1"]
    for nothing in ("", "-1", "NoDevFiles"):
        assert named({"CUDA_VISIBLE_DEVICES": nothing}) == []


def test_lines_that_are_none_are_no_cards(eight: Machine) -> None:
    uuid = eight.uuid(1)
    (eight.folder / "cards").write_text(f"Unable to determine the device handle for GPU 0000:1A:00.0\n1, {uuid}, [N/A]\n\n")
    assert cards.cards({}) == [Card("1", uuid, 0)]


def test_a_tool_that_does_not_answer_is_named_with_what_helps(eight: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (eight.folder / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 9\n")
    monkeypatch.setattr(cards, "SECONDS", 0.1)
    with pytest.raises(cards.CardUnavailable, match=r"^nvidia-smi did not answer within 0.1 s; .*nvidia-smi -pm 1"):
        cards.cards({})


def test_without_the_tool_there_are_none_whatever_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cards.cards({}) == cards.cards({"CUDA_VISIBLE_DEVICES": "0,1"}) == []


@pytest.mark.parametrize(("device", "count"), [("auto", 8), ("cuda", 8), ("cpu", 0), ("cuda:1", 0)])
def test_a_run_is_pinned_unless_it_names_its_device(eight: Machine, device: str, count: int) -> None:
    assert len(cards.usable(device)) == count


def test_a_child_sees_its_card_alone_under_nvidia_s_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cards.pinned(None) == {}
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert cards.pinned(Card("3", "GPU-3")) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3"}


def test_the_clock_names_the_card_and_nothing_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert cards.recorded() == {"cuda_visible_devices": "3"}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert cards.recorded() == {}


def test_a_card_belongs_to_one_process_until_it_ends(eight: Machine) -> None:
    card = cards.cards()[0]
    hold = "import sys, time; from flows.cards import *; held = claim(Card(*sys.argv[1:])); print(held is not None)"
    python = Path(sys.prefix) / "bin" / "python"
    command = [str(python), "-c", f"{hold}; sys.stdout.flush(); time.sleep(600)", card.name, card.uuid]
    other = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "True\n"
    assert cards.claim(card) is None
    line = f"in use: card 0 by process {other.pid}; stop it, or choose other cards with CUDA_VISIBLE_DEVICES"
    assert str(cards.in_use([card])) == line
    other.kill()
    other.wait()
    other.stdout.close()
    ours = cards.claim(card)
    assert ours is not None and cards.claim(card) is None
    ours.release()


def test_processes_with_temporary_folders_of_their_own_see_each_other_s_claims(
    eight: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = cards.claim(cards.cards()[0])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # as in a process that starts
    assert ours is not None and cards.claim(cards.cards()[0]) is None
    ours.release()


def test_slices_of_a_divided_card_are_to_be_named(eight: Machine) -> None:
    (eight.folder / "cards").write_text(f"0, {eight.uuid(0)}, 81559, [N/A]\n1, {eight.uuid(1)}, 81559, Enabled\n")
    line = r"^card 1 is divided into slices \(MIG\): name them, CUDA_VISIBLE_DEVICES=MIG-… \(nvidia-smi -L lists them\)$"
    with pytest.raises(ConfigError, match=line):
        cards.cards({})
    for chosen in ("1", "0,1", eight.uuid(1)):
        with pytest.raises(ConfigError, match=r"is divided into slices \(MIG\)"):
            cards.cards({"CUDA_VISIBLE_DEVICES": chosen})
    assert named({"CUDA_VISIBLE_DEVICES": "MIG-1"}) == ["MIG-1"] and named({"CUDA_VISIBLE_DEVICES": "0"}) == ["0"]


def test_a_process_in_which_torch_has_computed_on_a_card_gets_no_other(eight: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: emptied.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setattr(cards, "_used", set())
    found = cards.usable("auto")
    with cards.one_card(found[3:]):  # torch looks for no cards here
        pass
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with cards.one_card(found[1:]):
        assert cards.claim(found[1]) is None
    assert emptied == ["1"]
    other = cards.claim(found[1])
    assert other is not None
    with pytest.raises(cards.CardUnavailable, match=r"^in use: card 1 by process \d+; stop it"), cards.one_card(found):
        raise AssertionError("it would compute on card 1")
    other.release()
    with cards.one_card(found):
        assert [card.uuid for card in cards.cards()] == [eight.uuid(1)]


def test_where_only_ray_knows_the_cards_none_is_gone(eight: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (eight.folder / "cards").write_text("")
    assert not cards.present(Card("0", "0"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert cards.present(Card("0", "0"))


def test_a_command_holds_one_card_and_sees_no_other(eight: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    two, five = cards.usable("auto")
    elsewhere = cards.claim(two)
    assert elsewhere is not None
    with cards.one_card(cards.usable("auto")):
        assert [card.uuid for card in cards.cards()] == [five.uuid]
        assert cards.claim(five) is None
        with pytest.raises(cards.CardUnavailable, match=r"^in use: card 5 by process"), cards.one_card(cards.usable("auto")):
            raise AssertionError("the card is ours already")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,5" and "CUDA_DEVICE_ORDER" not in os.environ
    with cards.one_card([]):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,5"
    elsewhere.release()


def test_a_released_card_is_free_as_soon_as_no_child_has_the_descriptor(eight: Machine) -> None:
    """As a child has between fork and exec; the descriptor is kept open in this one for longer."""
    card = cards.cards()[0]
    ours = cards.claim(card)
    assert ours is not None
    with subprocess.Popen(["sleep", "0.5"], pass_fds=[ours._bound.fileno()]):
        ours.release()
        again = cards.claim(card)
    assert again is not None, "the child had the name"
    assert str(cards.in_use([card])).startswith(f"in use: card 0 by process {os.getpid()};")
    again.release()


def test_a_claim_is_no_file_that_a_logout_removes(eight: Machine) -> None:
    """systemd's RemoveIPC empties the /dev/shm of a user whose last session ends, while runs under nohup go on."""
    card, shared = cards.cards()[0], Path("/dev/shm")
    ours = cards.claim(card)
    assert ours is not None and not [file for folder in (shared, Path("/tmp")) for file in folder.glob(f"*{card.uuid}*")]
    assert [cards.claim(card) for _ in range(200)] == [None] * 200, "many who ask do not shake it off"
    ours.release()


def test_a_card_whose_socket_cannot_be_made_is_unavailable(eight: Machine) -> None:
    with pytest.raises(cards.CardUnavailable, match=r"^card 9 cannot be claimed: "):
        cards.claim(Card("9", "x" * 200))


def test_a_second_run_is_told_before_it_begins_who_has_the_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 1)
    (held,) = [cards.claim(card) for card in cards.cards()]
    assert held is not None
    with (
        pytest.raises(cards.CardUnavailable, match=f"in use: card 0 by process {os.getpid()}; stop it"),
        early_worker(load("chaos", ["model.device=auto"]), prepare=True),
    ):
        pass
    held.release()


def test_a_card_that_is_smaller_than_the_plan_is_refused_in_one_line(eight: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    own_engine = ["engine.kind=transformers", "engine.python="]
    small, large = load("one-gpu", [*own_engine, "model.device=cuda"]), load("paper-8gpu", [])
    eight.keep(*range(8), memory_mb=8192)
    with pytest.raises(ConfigError, match=r"^card 0 of this machine has 8\.0 GiB, but the plan's \w+ needs [\d.]+ GiB; lower "):
        cards_for(small)
    with pytest.raises(ConfigError, match=r"^card 0 of this machine has 8\.0 GiB, but vLLM needs [\d.]+ GiB and its share is 4"):
        cards_for(large)
    monkeypatch.setattr(preflight, "version", {"torch": "2.13.0+cpu"}.__getitem__)
    assert cards_for(load("one-gpu", own_engine)) == []  # torch uses none
    monkeypatch.setattr(preflight, "version", {"torch": "2.13.0"}.__getitem__)  # torch would use the first, which nobody claimed
    with pytest.raises(ConfigError, match=r"needs [\d.]+ GiB; lower .*, or set model\.device=cpu$"):
        cards_for(load("one-gpu", own_engine))
    eight.keep(*range(8))
    assert len(cards_for(small)) == len(cards_for(large)) == 8


def test_those_that_are_large_enough_are_named(eight: Machine) -> None:
    lines = (eight.folder / "cards").read_text().splitlines()
    (eight.folder / "cards").write_text("\n".join([*lines[:2], lines[2].replace("81559", "16384"), *lines[3:4]]) + "\n")
    with pytest.raises(ConfigError, match=r"^card 2 .*; use the others: CUDA_VISIBLE_DEVICES=0,1,3$"):
        cards_for(load("paper-8gpu", []))


def test_a_run_on_the_cpu_looks_at_no_card(eight: Machine) -> None:
    eight.keep(0, memory_mb=1)
    assert cards_for(load("one-gpu", ["model.device=cpu", "engine.kind=transformers"])) == []
