"""How the public suites ask: wording by style, chat templates, what follows from a tokenizer, and what stop sequences cut."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from flows.backend import Backend
from flows.benchmarks.score import request_for
from flows.benchmarks.suite_score import folder_of, score_suite, words_of
from flows.benchmarks.targets import of_model
from flows.config import PROJECT, ConfigError, apply
from flows.storage import open_store
from flows.suites.suite_data import SAMPLES, load
from stages.core.engines.protocol import before_stop
from stages.core.prompts.chat_template import DAY, templated
from stages.core.suites import prompts
from stages.core.suites.catalogue import SUITES
from stages.core.suites.prompts import STYLES, continued, wording
from tests.stages.core.suites.test_readers import ADD, BODY, INPUT, METHOD, OUTPUT, STDIN

SEED = PROJECT / "infra/models/seed"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
EVERY = [problem for name in SUITES if (SAMPLES / SUITES[name].files[0]).exists() for problem in load(name, SAMPLES)]
STUB = "def add(a, b):\n    '''Adds.'''\n"


@pytest.fixture(scope="module")
def instructed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seed model with a chat template."""
    folder = tmp_path_factory.mktemp("models") / "Seed-0.1-Instruct"
    shutil.copytree(SEED, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.mark.parametrize("style", STYLES)
def test_every_problem_is_shown_whole_and_its_answer_never(style: str) -> None:
    for problem in [ADD, BODY, METHOD, STDIN, OUTPUT, INPUT, *EVERY]:
        said = wording(problem, style)
        assert problem.question.strip() in said.asked and problem.program.strip() in said.asked
        assert problem.reference.strip() not in said.asked or not problem.reference
        assert said.asked.endswith("<think>") == (style == "azr")


def test_an_instruct_model_is_asked_for_a_function_in_evalplus_words_and_its_answer_is_begun() -> None:
    said = wording(BODY, "chat")
    assert said.asked == (
        "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
        f"```\n{STUB}```\n"
    )
    assert said.opening == (
        "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:\n"
        "```python\n"
    )
    assert "\n```" in said.stops
    assert f'```\n"""\n{ADD.question}\n"""\n```' in wording(ADD, "chat").asked


def test_a_base_model_continues_where_the_function_begins_and_mathematics_follows_worked_examples() -> None:
    assert wording(BODY, "completion").asked == STUB
    assert wording(ADD, "completion").asked == f'"""\n{ADD.question}\n"""\n'
    gsm8k, proof = load("gsm8k", SAMPLES)[0], load("olympiadbench", SAMPLES)[0]
    counted, proved = wording(gsm8k, "completion"), wording(proof, "completion")
    assert counted.asked.count("\nA: ") == 8 and counted.asked.endswith(f"\n\nQ: {gsm8k.question}\nA:")
    assert proved.asked.count("Final Answer: ") == 4 and proved.asked.endswith(f"\n\nProblem:\n{proof.question}\n\nSolution:")
    assert (counted.stops, proved.stops) == (("\nQ:",), ("\nProblem:",))
    assert wording(OUTPUT, "completion").asked == f"{OUTPUT.program}\n\nassert f(1) =="
    assert wording(INPUT, "completion").asked == f"{INPUT.program}\n\nassert 1 == f"


def test_a_style_that_nobody_wrote() -> None:
    with pytest.raises(ValueError, match="unknown style 'mine': known are chat, completion, azr"):
        wording(ADD, "mine")


CONTINUED = [
    (BODY, "chat", "def add(a, b):\n    return a + b\n```\nIt adds.", "def add(a, b):\n    return a + b\n"),
    (BODY, "chat", "    return a + b", STUB + "    return a + b\n"),
    (ADD, "chat", "import math\n\ndef add(a, b):\n    return a + b", "import math\n\ndef add(a, b):\n    return a + b\n"),
    (STDIN, "chat", "Read it:\n```python\nprint(input())\n```", "print(input())\n"),
    (BODY, "chat", "```python\ndef add(a, b):\n    return a + b\n```\n", "def add(a, b):\n    return a + b\n"),
    (BODY, "chat", "\n```\n    return a + b\n```", STUB + "    return a + b\n"),
    (
        ADD,
        "chat",
        "```\nThat is wrong. Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\n",
        "def add(a, b):\n    return a + b\n",
    ),
    (OUTPUT, "chat", "```output\n[1]\n```", "[1]"),
    (OUTPUT, "chat", "So:\n```python\n[1]\n```", "[1]"),
    (OUTPUT, "chat", "```python\n[2]\n```\n```output\n[1]\n```", "[1]"),
    (OUTPUT, "chat", "```python\ndef f(x):\n    return [1]\n```", None),
    (OUTPUT, "chat", "The output is: ```output\n4\n```", "4"),
    (OUTPUT, "chat", "```output\n4```", "4"),
    (OUTPUT, "chat", "```output 4```", "4"),
    (OUTPUT, "chat", "```\ndef f(x):\n    return 4\n```\nSo:\n```python\n4\n```", "4"),
    (INPUT, "chat", "It is: ```input\n1, 'a'```", "1, 'a'"),
    (OUTPUT, "chat", "```output\n'```'\n```", "'```'"),
    (OUTPUT, "chat", "```output\n[1]", "[1]"),
    (OUTPUT, "chat", "```\n1\n```\nNo:\n```\n2\n```", "2"),
    (OUTPUT, "chat", "'abc'", "'abc'"),
    (OUTPUT, "chat", "```output\n1\n```\n<answer>```output\n2\n```</answer>", "2"),
    (BODY, "completion", "    return a + b\n", STUB + "    return a + b\n"),
    (BODY, "completion", "", None),
    (ADD, "completion", "def add(a, b):\n    return a + b\n\n", "def add(a, b):\n    return a + b\n"),
    (STDIN, "completion", "print(input())", "print(input())\n"),
    (OUTPUT, "completion", " [1, 2]", "[1, 2]"),
    (INPUT, "completion", "('a', (1,))", "'a', (1,)"),
    (INPUT, "completion", "()", None),
    (OUTPUT, "completion", ' [], "Test case 1 failed"', "[]"),
    (OUTPUT, "completion", " {'a, b': (1, 2)}  # it doubles", "{'a, b': (1, 2)}"),
    (OUTPUT, "completion", " 'a' # no", "'a'"),
    (OUTPUT, "completion", "  # nothing", None),
    (INPUT, "completion", "('(', 2), 'Test case 1 failed'", "'(', 2"),
    (INPUT, "completion", "([1, 2", None),
    (EVERY[-1], "azr", "so.</think><answer>```output\n1\n```</answer>", None),
]


@pytest.mark.parametrize(("problem", "style", "text", "wanted"), CONTINUED)
def test_the_answer_of_a_continuation(problem: Any, style: str, text: str, wanted: str | None) -> None:
    assert continued(problem, text, style) == wanted


@pytest.mark.parametrize(("style", "kept"), [("completion", [False, True, True]), ("chat", [True, False, True])])
def test_a_change_of_a_rule_for_literals_makes_other_scores_of_these_alone(
    style: str, kept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [([OUTPUT, INPUT], "completion"), ([OUTPUT, INPUT], "chat"), ([BODY, ADD, STDIN], style)]
    before = [prompts.digest(*each) for each in asked]
    monkeypatch.setitem(prompts._RULES, style, b"another")
    assert [prompts.digest(*each) == was for each, was in zip(asked, before, strict=True)] == kept


def test_a_text_ends_before_its_first_stop_sequence() -> None:
    assert before_stop("a\n```\nb\nprint(", ("\nprint(", "\n```")) == "a"
    assert before_stop("a", ()) == before_stop("a", ("b",)) == "a"


def test_the_style_follows_from_the_tokenizer_and_can_be_chosen(instructed: Path) -> None:
    base, chat = apply({}, []), apply({"model": {"name": str(instructed)}}, [])
    assert [request_for("gsm8k", config, SAMPLES).style for config in (base, chat)] == ["completion", "chat"]
    assert request_for("gsm8k", chat, SAMPLES, style="completion").style == "completion"
    assert request_for("gsm8k", apply({"benchmark": {"style": "azr"}}, []), SAMPLES).style == "azr"
    keys = {request_for("gsm8k", base, SAMPLES, style=style).key for style in STYLES}
    assert len(keys) == len(STYLES)
    shown = words_of(request_for("humaneval-plus", chat, SAMPLES), Backend(chat)).asks(BODY)
    assert shown == f"<user>{wording(BODY, 'chat').asked}<answer>{wording(BODY, 'chat').opening}"
    with pytest.raises(ConfigError, match="seed: the tokenizer has no chat template; use completion instead"):
        words_of(request_for("gsm8k", base, SAMPLES, style="chat"), Backend(base))


def test_a_first_marker_that_the_tokenizer_writes_itself_is_not_written_twice(tmp_path: Path) -> None:
    shutil.copytree(SEED, tmp_path / "seed")
    settings = json.loads((tmp_path / "seed/tokenizer_config.json").read_text())
    rules = json.loads((tmp_path / "seed/tokenizer.json").read_text())
    marker = rules["added_tokens"][0]["content"]
    pieces = [{"SpecialToken": {"id": marker, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    known = {marker: {"id": marker, "ids": [rules["added_tokens"][0]["id"]], "tokens": [marker]}}
    rules["post_processor"] = {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": known}
    (tmp_path / "seed/tokenizer.json").write_text(json.dumps(rules))
    (tmp_path / "seed/tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": marker}))
    (tmp_path / "seed/chat_template.jinja").write_text("{{ bos_token }}" + TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "seed")
    text = templated(tokenizer)("x")
    assert text == "<user>x<answer>"
    assert tokenizer.encode(text).count(tokenizer.bos_token_id) == 1
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }} {{ date_string }} " + TEMPLATE
    assert templated(tokenizer)("x") == f"{DAY} {DAY} <user>x<answer>", "prompts must not depend on the day"


def test_chat_on_a_base_model_is_one_line_and_code_2(tmp_path: Path) -> None:
    options = ["--model", str(SEED), "--suite", "gsm8k", "--data", str(SAMPLES), "--style", "chat", "--store", str(tmp_path)]
    command = [sys.executable, "-m", "flows.cli", "benchmark", *options]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "has no chat template; use completion instead" in done.stderr


def test_the_manifest_says_how_a_model_was_asked(tmp_path: Path) -> None:
    target = of_model(open_store(str(tmp_path)), str(SEED), [], ["model.device=cpu"])
    request = request_for("gsm8k", target.config, SAMPLES, limit=2, style="azr", max_new_tokens=4)
    score_suite(target, request)
    done = target.run.history.manifest(f"benchmarks/{folder_of(target, request)}/benchmark.json")
    assert done is not None
    assert done.versions["question"] == {"style": "azr", "attempts": 0, "max_new_tokens": 4, "temperature": 1.0, "seed": 0}
    assert done.versions["prompt"] == prompts.digest(request.problems, "azr") != prompts.digest(request.problems, "chat")
    assert done.versions["engine"]["kind"] == "transformers"
    answers = target.run.read_table(f"benchmarks/{folder_of(target, request)}/answers.parquet", "answers")
    assert answers.num_rows == 2
    assert set(answers["status"].to_pylist()) <= {"wrong", "correct", "format"}
