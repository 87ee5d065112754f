"""`populora init`: files from answers, by options, on a terminal and without one; what cannot be used is one line."""

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flows.cli import main
from flows.config import PROJECT, RUNS, ConfigError, differences, dump, load
from flows.guide.new_config import HARDWARE, answered, changes, fitting_hardware, questions, text
from flows.guide.setting_list import settings
from flows.plan.estimate import hours

OPEN = {"model": None, "hardware": None, "population": None, "budget": None, "store": None}
CARD_24, CARD_80, CARD_16 = "NVIDIA L4, 580.1, 23034 MiB", "NVIDIA H100 80GB HBM3, 580.1, 81559 MiB", "Tesla T4, 580.1, 15360 MiB"


def answers(machine: str = "laptop", **given: str) -> dict[str, str]:
    """Answers to all questions; what is not given takes its default."""
    return dict(answered(questions(machine, "runs"), OPEN | given, None))


def written(tmp_path: Path, **given: str) -> str:
    """A configuration made from these answers, in a file."""
    file = tmp_path / "new.toml"
    file.write_text(text(answers(**given), ("populora", "run")))
    return str(file)


@pytest.mark.parametrize("hardware", HARDWARE)
def test_without_other_answers_it_is_the_shipped_configuration_with_a_title_above_each_key(hardware: str, tmp_path: Path) -> None:
    file = written(tmp_path, hardware=hardware)
    assert load(file) == load(hardware)
    assert tomllib.loads(Path(file).read_text()) == tomllib.loads((RUNS / f"{hardware}.toml").read_text())
    lines, group = Path(file).read_text().splitlines(), ""
    for at, line in enumerate(lines):
        if line.startswith("["):
            group = f"{line.strip('[]')}."
        elif line and not line.startswith("#"):
            above = max(back for back in range(at) if not lines[back].startswith("#"))
            title = settings()[group + line.partition(" = ")[0]].title
            assert any(comment.startswith(f"# {title}.") for comment in lines[above + 1 : at]), line
    assert all(len(line) <= 130 for line in lines)


@pytest.mark.parametrize(
    ("given", "different"),
    [
        ({"population": "3+1"}, {"population.teachers": 3, "population.students": 1}),
        ({"population": "2T+2S", "budget": "7"}, {"generations": 7}),
        ({"population": "single"}, {"mode": "single", "population.teachers": 1, "population.students": 1}),
        ({"model": "Qwen/Qwen2.5-Coder-1.5B"}, {"model.name": "Qwen/Qwen2.5-Coder-1.5B"}),
        ({"model": "Qwen/Qwen2.5-Coder-0.5B-Instruct"}, {}),
        ({"hardware": "paper", "model": "some/model"}, {"model.name": "some/model", "model.style": "auto"}),
        ({"hardware": "smoke", "model": "infra/models/seed", "budget": "60"}, {"generations": 60}),
        ({"hardware": "quickstart", "model": "infra/models/reasoner", "budget": "90"}, {"generations": 90}),
    ],
)
def test_it_differs_only_where_the_answers_say(given: dict[str, str], different: dict[str, object], tmp_path: Path) -> None:
    assert changes(answers(**given)) == different
    file = written(tmp_path, **given)
    base = given.get("hardware", "laptop")
    assert differences(dump(load(file)), dump(load(base))) == sorted(different)
    marked = [line for line in Path(file).read_text().splitlines() if f"  # {base}: " in line]
    assert len(marked) == len(different)


def test_a_changed_line_ends_with_the_value_of_the_shipped_configuration(tmp_path: Path) -> None:
    lines = Path(written(tmp_path, population="single", budget="7")).read_text().splitlines()
    assert {line for line in lines if "  # laptop: " in line} == {
        'mode = "single"  # laptop: "population"',
        "generations = 7  # laptop: 60",
        "teachers = 1  # laptop: 2",
        "students = 1  # laptop: 2",
    }


@pytest.mark.parametrize("hardware", [name for name in HARDWARE if name != "paper-8gpu"])
def test_hours_buy_the_generations_that_the_estimate_says(hardware: str) -> None:
    budget = changes(answers(hardware=hardware, budget="100h"))["generations"]
    each = hours(load(hardware, ["generations=1"]))
    cost = next((value for name, value in each.items() if ("80 GB" if hardware == "paper" else "24 GB") in name), None)
    assert budget == max(1, int(100 / (cost or each["two CPU cores"])))


def test_eight_cards_do_eight_times_as_much() -> None:
    one, eight = (changes(answers(hardware=name, budget="9000h"))["generations"] for name in ("paper", "paper-8gpu"))
    assert eight == pytest.approx(8 * one, rel=1e-2)  # eight cards share the way to the store, and some stages


@pytest.mark.parametrize(
    ("cards", "memory", "name"),
    [
        ([], 8e9, "quickstart"),
        ([], 16e9, "laptop"),
        ([CARD_16], 16e9, "laptop"),
        ([CARD_24], 16e9, "one-gpu"),
        ([CARD_24, CARD_80], 16e9, "paper"),
        ([CARD_80] * 8, 16e9, "paper-8gpu"),
    ],
)
def test_the_machine_decides_where_nobody_does(cards: list[str], memory: float, name: str) -> None:
    assert fitting_hardware(cards, int(memory)) == name


def test_the_model_decides_about_the_hardware_before_the_machine_does() -> None:
    assert answers("paper", model="infra/models/seed")["hardware"] == "smoke"
    assert answers("paper", model=str(PROJECT / "infra" / "models" / "seed"))["hardware"] == "smoke"
    assert answers("paper", model="infra/models/reasoner")["hardware"] == "quickstart"
    assert answers("smoke", model="some/model")["hardware"] == answers("quickstart", model="some/model")["hardware"] == "laptop"


def test_a_folder_becomes_an_absolute_path_since_a_relative_one_starts_at_the_project(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert changes(answers(model="mine"))["model.name"] == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hardware": "laptpo"}, r"^hardware: 'laptpo' is not one of quickstart, .*; did you mean laptop\?$"),
        ({"hardware": "smoke", "model": "some/model"}, "^hardware: smoke does not fit the model some/model; choose laptop, "),
        ({"hardware": "laptop", "model": "infra/models/seed"}, "choose smoke$"),
        ({"hardware": "smoke", "model": "infra/models/reasoner"}, "choose quickstart$"),
        ({"population": "4"}, "^population: '4' is neither teachers"),
        ({"population": "0+4"}, "^population: '0"),
        ({"budget": "0"}, "^budget: '0' is neither"),
        ({"budget": "soon"}, "^budget: 'soon' is neither"),
        ({"budget": "8h", "model": "some/model"}, "^budget: some/model is unknown"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        answers(**given)
    assert "\n" not in str(error.value)


def test_an_invalid_answer_is_asked_for_again_and_an_empty_one_takes_the_default() -> None:
    replies, seen = iter(["", "lap", "laptop", "3+3", "", "ftp://x", "runs"]), []

    def ask(prompt: str, said: str) -> str:
        seen.append((prompt.splitlines()[-1], said))
        return next(replies)

    found = answered(questions("one-gpu", "runs"), OPEN, ask)
    assert found == {"model": "", "hardware": "laptop", "population": "3+3", "budget": "60", "store": "runs"}
    assert [prompt.rpartition(" [")[2] for prompt, _ in seen] == [
        "]: ",
        "one-gpu]: ",
        "one-gpu]: ",
        "2+2]: ",
        "60]: ",
        "runs]: ",
        "runs]: ",
    ]
    assert [bool(said) for _, said in seen] == [False, False, True, False, False, False, True]


def init(*arguments: str, cwd: Path, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "POPULORA_STORE"} | {"PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "flows.cli", "init", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=stdin, env=environment)


def test_without_a_terminal_it_asks_nothing_and_its_file_passes_a_dry_run(tmp_path: Path, capsys) -> None:
    done = init("--hardware", "laptop", "--budget", "8", "--store", "s3://bucket/runs", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "wrote      my-run.toml: infra/runs/laptop.toml, changed: generations",
        "check      populora run -c my-run.toml --dry-run",
        "start      populora run -c my-run.toml --store s3://bucket/runs",
    ]
    chosen = init("other.toml", cwd=tmp_path).stdout.splitlines()[1]
    assert chosen.startswith("hardware   ") and chosen.endswith(
        ", chosen by what this machine has; --hardware NAME chooses another"
    )
    assert (
        "# Start or resume it: populora run -c my-run.toml --store s3://bucket/runs\n" in (tmp_path / "my-run.toml").read_text()
    )
    assert main(["run", "-c", str(tmp_path / "my-run.toml"), "--dry-run"]) == 0
    assert "  generations=8\n" in capsys.readouterr().out


def test_on_a_terminal_it_asks_five_questions(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"\nlaptop\n1+1\n5\n\n")
    done = init("pair.toml", cwd=tmp_path, stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")
    found = load(str(tmp_path / "pair.toml"))
    assert (found.population.teachers, found.population.students, found.generations) == (1, 1, 5)
    assert [done.stdout.count(word) for word in ("Model: ", "Hardware:", "Population: ", "Budget: ", "Store: ")] == [1] * 5


def test_an_existing_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = 1\n")
    done = init("mine.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "populora: mine.toml exists and stays as it is; give another name\n")
    assert (tmp_path / "mine.toml").read_text() == "seed = 1\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine.txt",), "ends in .toml"),
        (("My_Run.toml",), "run id 'My_Run'"),
        (("nowhere/mine.toml",), "nowhere/mine.toml: there is no folder nowhere"),
        (("--store", "ftp://x"), "unknown scheme 'ftp'"),
        (("--population", "many"), "population: 'many' is neither"),
    ],
)
def test_a_mistake_writes_nothing_and_is_one_line_with_code_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = init(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
