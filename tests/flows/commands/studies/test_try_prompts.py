"""`populora try-prompts`: a table, samples and advice; a user's mistake is one line."""

import json
from pathlib import Path

import pytest

from flows.base_model.folder import LARGE, ModelFolder
from flows.cli import main
from flows.commands.studies.try_prompts import STYLES, _samples, fitting, visible
from stages.trial import StyleAttempt

LOCAL = ["--set", "threads=1", "--set", "sandbox.kind=local", "--set", "sandbox.containers=1", "--set", "propose.num_inputs=4"]


def test_the_seed_model_gets_figures_for_its_own_style(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try-prompts", "infra/models/seed", "--rows", "2", "--max-new-tokens", "96", "--json", *LOCAL]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["style"], row["part"], row["kind"], row["n"]) for row in told["rows"]] == [
        ("compact", part, kind, 2) for part in ("propose", "solve") for kind in ("deduction", "abduction", "induction")
    ]
    assert told["use"] in ("compact", None)
    assert all(0 <= row["good"] <= row["readable"] <= 1 and 1 <= len(row["samples"]) <= 3 for row in told["rows"])
    assert all(sum(row["reasons"].values()) == round(2 * (1 - row["good"])) for row in told["rows"])


def test_a_style_may_be_named_and_the_table_says_how_many_and_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rows", "1", "--style", "azr", "--max-new-tokens", "8", *LOCAL, "--set", "propose.num_inputs=2"]
    assert main(["try-prompts", "infra/models/seed", *options]) == 2  # its window is too short for such prompts
    assert "fits the model's window" in capsys.readouterr().err
    assert main(["try-prompts", "infra/models/seed", "--rows", "1", "--style", "compact", "--max-new-tokens", "2", *LOCAL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["style", "part", "kind", "n"] and len(lines[1:7]) == 6
    assert all(line.startswith("compact") for line in lines[1:7])
    assert lines[-1].startswith("use ") and any(line.startswith("--- compact, propose deduction: ") for line in lines)


@pytest.mark.parametrize("options", [["--rows", "0"], ["--max-new-tokens", "0"], ["--style", "chat"], ["--style", "mine"]])
def test_a_mistake_is_one_line_and_code_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["try-prompts", "infra/models/seed", *options, *LOCAL])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert len([line for line in capsys.readouterr().err.splitlines() if "sandbox" not in line]) == 1


def test_styles_are_tried_where_they_may_fit(tmp_path: Path) -> None:
    large = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000}
    small = large | {"num_hidden_layers": 2}
    assert ModelFolder(large, True).parameters > LARGE > ModelFolder(small, True).parameters
    assert fitting(ModelFolder(small, False, "compact")) == ("compact",)
    assert fitting(ModelFolder(small, False, "trace")) == ("trace",)
    assert fitting(ModelFolder(small, False)) == ("document",)
    assert fitting(ModelFolder(small, True)) == ("document", "chat")
    assert fitting(ModelFolder(large, True)) == ("document", "chat", "azr")
    assert {*STYLES} == {"compact", "trace", "document", "chat", "azr"}


def test_control_characters_of_a_model_do_not_reach_the_terminal() -> None:
    assert visible("a\x1b[31m\nb\u202e") == "a\\x1b[31m\nb\\u202e"
    attempt = StyleAttempt("compact", "propose", "deduction", True, "error", "E: \x1b[2J", 1, 1, "text\x07")
    assert _samples([attempt]) == "\n--- compact, propose deduction: error (E: \\x1b[2J)\ntext\\x07"
