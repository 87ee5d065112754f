"""Commands in sentences: a served page names the program as this machine calls it, and the store where commands need it."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.cli import COMMANDS
from flows.program import CALLED, PLAIN, SAID, Commands, called, program

HERE = Commands("bin/populora", ("--store", "my runs"))


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("To score it: populora benchmark a --suite dev", "To score it: bin/populora benchmark --store 'my runs' a --suite dev"),
        ("`populora fsck RUN`, populora run", "`bin/populora fsck --store 'my runs' RUN`, bin/populora run --store 'my runs'"),
        ("run --resume populora continues at solve; populora has", "run --resume populora continues at solve; populora has"),
        ("in bin/populora run, PopuLoRA and my-populora run", "in bin/populora run, PopuLoRA and my-populora run"),
    ],
)  # fmt: skip
def test_a_sentence_gets_the_commands_of_this_machine(said: str, named: str) -> None:
    assert HERE.named(said) == named
    assert PLAIN.named(said) == said


def test_a_program_in_a_folder_with_a_space_is_quoted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CALLED, "/my tools/populora")
    assert program("run", "x") == "'/my tools/populora' run x"
    assert Commands(called()).named("populora run x") == "'/my tools/populora' run x"


def test_the_commands_that_sentences_name_exist() -> None:
    assert set(SAID) <= {one.__name__.rpartition(".")[2].replace("_", "-") for one in COMMANDS}


def test_pages_print_them_and_other_pages_are_plain(tmp_path: Path) -> None:
    with TestClient(make_app(str(tmp_path), commands=HERE), base_url="http://127.0.0.1") as pages:
        assert "<code>bin/populora run --store &#39;my runs&#39;</code>" in pages.get("/").text
    with TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as pages:
        assert "<code>populora run</code>" in pages.get("/").text
