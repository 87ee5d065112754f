"""What `auto` means is settled when a run begins, and kept."""

from pathlib import Path

import pytest

from flows.config import ConfigError, dump, load
from flows.execution.recomputation import settled
from flows.execution.session import check_resumable, open_session
from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run
from tests.support.cards import machine

OWN = ["engine.kind=transformers", "engine.python=''"]


def chosen(*settings: str, elsewhere: bool = False) -> object:
    return settled(load("one-gpu", list(settings)), None, elsewhere).learning.gradient_checkpointing


def test_it_follows_the_smallest_card_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = machine(tmp_path, monkeypatch, 2)
    assert chosen() is False, "80 GB"
    cards.keep(0, 1, memory_mb=24 * 1024)
    assert chosen() is True and chosen(*OWN) is True
    assert chosen("model.device=cuda:1") is True, "a card that the configuration names"
    assert chosen("model.device=cpu", *OWN) is False
    assert chosen("learning.gradient_checkpointing=false") is False
    assert chosen("model.name=somebody/unknown") is True, "nothing is known of it: it must fit"


def test_without_a_card_it_is_off_and_with_cards_elsewhere_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, 0)
    assert chosen() is False and chosen("model.name=somebody/unknown") is False
    assert chosen(elsewhere=True) is True and chosen("model.device=cpu", elsewhere=True) is False


def test_a_run_records_it_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    store, config = open_store(str(tmp_path)), load("chaos")
    assert config.learning.gradient_checkpointing == "auto"
    with open_session(config, "r", str(tmp_path)) as current:
        assert current.config.learning.gradient_checkpointing is False
        described = current.run.history.description()
    assert described is not None and described["config"]["learning"]["gradient_checkpointing"] is False
    check_resumable(Run(store, "r"), config)
    check_resumable(Run(store, "r"), load("chaos", ["learning.gradient_checkpointing=false"]))
    with pytest.raises(ConfigError, match=r"learning\.gradient_checkpointing;"):
        check_resumable(Run(store, "r"), load("chaos", ["learning.gradient_checkpointing=true"]))


def test_a_run_that_began_with_recomputation_keeps_it_on_a_larger_card(tmp_path: Path) -> None:
    began = load("chaos", ["learning.gradient_checkpointing=true"])
    with open_session(began, "r", str(tmp_path)):
        pass
    with open_session(load("chaos"), "r", str(tmp_path)) as current:
        assert current.config.learning.gradient_checkpointing is True
    known = {"config": {"learning": {"gradient_checkpointing": True, "recompute_above": 4096}}}
    assert settled(load("chaos"), known).learning.recompute_above == 4096
    assert settled(load("chaos"), {"config": {}}).learning.gradient_checkpointing is False, "of a version without the setting"


def test_a_fork_keeps_what_it_meant_for_its_parent(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        config = example_run.CONFIG.recomputing(True, 2048)
        run = example_run.build(Run(store, "r", epoch), 1, config)
    for run_id, choice, kept in (("a", "auto", True), ("b", "false", False)):
        settings = ["generations=9", f"learning.gradient_checkpointing={choice}"]
        described = fork(run, run_id, 0, settings, lambda _: {}, {}).history.description()
        assert described is not None and described["config"]["learning"]["gradient_checkpointing"] is kept
        assert described["config"]["learning"]["recompute_above"] == (2048 if choice == "auto" else 0)
    with pytest.raises(ConfigError, match="learning: "):
        fork(run, "c", 0, ["learning=3"], lambda _: {}, {})
    assert dump(config)["learning"]["gradient_checkpointing"] is True
