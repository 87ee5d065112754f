"""Public suites: rows to problems, problems to prompts, completions to answers; and data that cannot be used."""

import base64
import gzip
import json
import pickle
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from flows.config import ConfigError
from flows.suites.suite_data import SAMPLES, load
from stages.core.suites import readers
from stages.core.suites.catalogue import SUITES
from stages.core.suites.mutants import mutants
from stages.core.suites.problems import BadSuite, Form, Problem, chosen, digest
from stages.core.suites.prompts import answer

ADD = Problem(
    "Mbpp/1", Form.FUNCTION, "mbpp", "Write a function to add.", "", "add", "def add(a, b):\n    return a + b\n", ("(1, 2)",)
)
BODY = Problem(
    "HumanEval/1",
    Form.FUNCTION,
    "humaneval",
    "",
    "def add(a, b):\n    '''Adds.'''\n",
    "add",
    "def add(a, b):\n    return a + b\n",
)
METHOD = Problem(
    "a", Form.FUNCTION, "easy", "Add.", "class Solution:\n    def add(self, a):\n", "Solution.add", "", ("(1,)",), (), ("1",)
)
STDIN = Problem("b", Form.STDIN, "easy", "Print.", inputs=("1\n",), outputs=("1\n",))
OUTPUT = Problem("c/o", Form.DEDUCTION, "output", "", "def f(x):\n    return x", "f", inputs=("1",), outputs=("1",))
INPUT = Problem("c/i", Form.ABDUCTION, "input", "", "def f(x):\n    return x", "f", inputs=("1",), outputs=("1",))

CASES = [
    (ADD, "Sure!\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", "def add(a, b):\n    return a + b\n"),
    (ADD, "```python\ndef sub(a): ...\n```\n```python\ndef add(a): ...\n```\n```python\nprint(add(1))\n```", "def add(a): ...\n"),
    (ADD, "```python\ndef add(a): return 1\n```\nBetter:\n```python\ndef add(a): return 2\n```", "def add(a): return 2\n"),
    (ADD, "```\ndef add(a): ...\n```", "def add(a): ...\n"),
    (ADD, "```Python3 title=x\ndef add(a): ...\n```", "def add(a): ...\n"),
    (ADD, "  ```py\n  def add(a): ...\n  ```", "  def add(a): ...\n"),
    (ADD, "```python\ndef add(a, b):\n    return a +", "def add(a, b):\n    return a +\n"),
    (ADD, "```bash\npip install x\n```\n```python\ndef add(a): ...\n```", "def add(a): ...\n"),
    (ADD, "```json\n{}\n```", None),
    (ADD, "def add(a, b):\n    return a + b", "def add(a, b):\n    return a + b\n"),
    (ADD, "I would add them.", None),
    (ADD, "", None),
    (
        ADD,
        "<think>```python\ndef add(a): return 0\n```</think><answer>```python\ndef add(a): return 1\n```</answer>",
        "def add(a): return 1\n",
    ),
    (ADD, "<think>no</think>\n<answer>\n```python\ndef add(a): return 1\n```\n</answer>", "def add(a): return 1\n"),
    (ADD, "<answer>\ndef add(a): return 1", "def add(a): return 1\n"),
    (BODY, "    return a + b\n", "def add(a, b):\n    '''Adds.'''\n    return a + b\n"),
    (BODY, "```python\n    return a + b\n```", "def add(a, b):\n    '''Adds.'''\n    return a + b\n"),
    (BODY, "return a + b", None),
    (
        METHOD,
        "```python\nclass Solution:\n    def add(self, a): return a\n```",
        "class Solution:\n    def add(self, a): return a\n",
    ),
    (STDIN, "```python\nprint(input())\n```", "print(input())\n"),
    (STDIN, "print(input())", "print(input())\n"),
    (OUTPUT, "It is\n```output\n[1, 2]\n```", "[1, 2]"),
    (OUTPUT, "```output\n1\n```\nno\n```output\n2\n```", "2"),
    (OUTPUT, "```\n3\n```", "3"),
    (OUTPUT, "```python\n3\n```", None),
    (OUTPUT, "'abc'", "'abc'"),
    (OUTPUT, "well\nperhaps", None),
    (OUTPUT, "<answer>'x'</answer>", "'x'"),
    (INPUT, "```input\n1, 'a'\n```", "1, 'a'"),
    (INPUT, "```output\n1\n```", None),
]


@pytest.mark.parametrize(("problem", "text", "wanted"), CASES)
def test_the_answer_of_a_completion(problem: Problem, text: str, wanted: str | None) -> None:
    assert answer(problem, text) == wanted


def test_every_sample_is_read() -> None:
    sizes = {name: len(load(name, SAMPLES)) for name in SUITES if (SAMPLES / SUITES[name].files[0]).exists()}
    assert sizes == {"humaneval-plus": 10, "mbpp-plus": 13, "livecodebench": 4, "gsm8k": 12, "olympiadbench": 7, "cruxeval": 20}


def test_arguments_are_of_the_types_that_the_task_means() -> None:
    by_name = {problem.entry_point: problem for problem in load("mbpp-plus", SAMPLES)}
    assert by_name["similar_elements"].inputs[0] == "((3, 4, 5, 6), (5, 7, 4, 10))"  # JSON has lists only
    assert by_name["angle_complex"].inputs[0] == "(0.0, complex(0.0, 1.0))"


def test_gold_answers_are_what_the_publishers_mean() -> None:
    row = {"question": "q", "answer": "16 - 3 = 13\n#### 1,234", "idx": 7}
    assert readers.gsm8k(row, 1)[0].outputs == ("1234",)
    assert readers.minerva({"problem": "q", "solution": "so \\boxed{\\frac{1}{2}}"}, 1)[0].outputs == ("\\frac{1}{2}",)
    assert readers.olympiadbench({"question": "q", "final_answer": ["$2$", "$-2$."]}, 1)[0].outputs == ("2, -2",)
    golds = [readers.competition({"id": text, "problem": "q", "answer": text}, 1)[0].outputs for text in ("27.0", "033", "1/2")]
    assert golds == [("27",), ("33",), ("1/2",)]


def test_humaneval_as_the_hub_has_it() -> None:
    row = {
        "task_id": "HumanEval/0",
        "prompt": "def add(a, b):\n",
        "canonical_solution": "    return a + b\n",
        "entry_point": "add",
    }
    lines = ["def check(candidate):", "inputs = [[1, 2], [3, (4,)]]", "for inp, exp in x:"]
    lines.append("assertion(candidate(*inp), exp, 1e-6)")
    row["test"] = "\n    ".join(lines)
    found = readers.read(readers.evalplus, [row])[0]
    assert (found.inputs, found.tolerance, found.program) == (("(1, 2)", "(3, (4,))"), 1e-6, "def add(a, b):\n")


@pytest.mark.parametrize(
    ("line", "tolerance"),
    [("assertion(candidate(*inp), ref_func(*inp), 0)", 0.0), ("assert _poly(*candidate(*inp), inp) <= 0.0001", 1e-4)],
)
def test_rows_of_the_hub_that_compare_with_something_else(line: str, tolerance: float) -> None:
    row = {"task_id": "HumanEval/1", "prompt": "def f(a):\n", "canonical_solution": "    return a\n", "entry_point": "f"}
    row["test"] = f"def check(candidate):\n    inputs = [[inf], [[-inf, 1.5]]]\n    for i, inp in x:\n        {line}"
    found = readers.read(readers.evalplus, [row])[0]
    assert (found.inputs, found.tolerance, found.entry_point) == (("(inf,)", "([-inf, 1.5],)"), tolerance, "f")


def test_mbpp_as_the_hub_has_it() -> None:
    """Only the first test names the function."""
    row = {
        "task_id": 3,
        "prompt": "Write a python function to identify non-prime numbers.",
        "code": "def is_not_prime(n):\n    return n < 2",
        "test": "inputs = [[2], [10]]\nfor i, (inp, exp) in x:\n    assertion(is_not_prime(*inp), exp, 0)",
        "test_list": ["assert is_not_prime(2) == False", "assert is_not_prime(10) == True"],
    }
    found = readers.read(readers.evalplus, [row])[0]
    assert found.question == f"{row['prompt']}\nassert is_not_prime(2) == False"
    assert (found.problem_id, found.entry_point, found.inputs) == ("Mbpp/3", "is_not_prime", ("(2,)", "(10,)"))
    with pytest.raises(BadSuite, match="row 1: `inputs` is not a list of argument lists"):
        readers.read(readers.evalplus, [row | {"test": str(row["test"]).replace("[[2], [10]]", "[2, 10]")}])


def test_private_tests_that_hold_anything_but_text_are_refused() -> None:
    good = json.loads((SAMPLES / "livecodebench.jsonl").read_text().splitlines()[1])
    assert len(readers.livecodebench(good, 1)[0].inputs) == 3
    evil = base64.b64encode(zlib.compress(pickle.dumps(Path("x")))).decode()
    with pytest.raises(BadSuite, match="row 1: private_test_cases hold pathlib"):
        readers.read(readers.livecodebench, [good | {"private_test_cases": evil}])


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (zlib.compress(pickle.dumps("[]"))[:-6], "cut off"),
        (zlib.compress(b"\x80\x04\x95"), "row 1"),
        (zlib.compress(b""), "Ran out of input"),
        (zlib.compress(pickle.dumps(7)), "hold a int, not text"),
        (zlib.compress(pickle.dumps("[" * 100_000)), "recursion"),
        (b"no zlib", "incorrect header"),
    ],
)
def test_private_tests_that_cannot_be_read_name_their_row(packed: bytes, reason: str) -> None:
    good = json.loads((SAMPLES / "livecodebench.jsonl").read_text().splitlines()[1])
    with pytest.raises(BadSuite, match=rf"row 1: .*{reason}|{reason}"):
        readers.read(readers.livecodebench, [good | {"private_test_cases": base64.b64encode(packed).decode()}])


def test_packed_tests_unpack_to_so_much_and_no_more() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    assert readers.unpacked(zlib.compress(b"x" * 1_000), limit=2_000) == b"x" * 1_000
    tracemalloc.start()
    with pytest.raises(BadSuite, match="more than 100000 bytes"):
        readers.unpacked(bomb, limit=100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400_000


def test_chosen_problems_are_spread_and_dated() -> None:
    problems = load("livecodebench", SAMPLES)
    assert [one.problem_id for one in chosen(problems, 2)] == ["sample_a", "sample_d"]
    assert [one.problem_id for one in chosen(problems, 0, "2024-02-01", "2024-12-31")] == ["sample_b", "sample_c"]
    with pytest.raises(BadSuite, match="no problem was released from 2026-01-01"):
        chosen(problems, 0, "2026-01-01")


def test_a_limit_takes_its_share_of_each_form_and_keeps_the_order() -> None:
    turns = [replace(one, problem_id=f"{number}/{one.form}") for number in range(8) for one in (INPUT, OUTPUT)]
    assert [one.problem_id for one in chosen(turns, 4)] == ["0/abduction", "0/deduction", "4/abduction", "4/deduction"]
    assert chosen(turns, 5) == [turns[place] for place in (0, 3, 6, 9, 12)]
    subjects = [replace(STDIN, problem_id=str(number), group="hard" if number % 4 == 0 else "easy") for number in range(12)]
    assert [one.group for one in chosen(subjects, 4)].count("hard") == 1


def test_a_pattern_chooses_problems_by_id_before_the_limit_counts_them() -> None:
    turns = [replace(one, problem_id=f"{number}/{one.form}") for number in range(8) for one in (INPUT, OUTPUT)]
    assert [one.problem_id for one in chosen(turns, 0, pattern="[67]/*")] == [one.problem_id for one in turns[12:]]
    assert [one.problem_id for one in chosen(turns, 2, pattern="*/deduction")] == ["0/deduction", "4/deduction"]
    with pytest.raises(BadSuite, match=r"^no problem has an id that matches '8/\*'; the first of 16 is '0/abduction'$"):
        chosen(turns, 0, pattern="8/*")


def test_the_digest_is_that_of_the_problems_not_of_the_file(tmp_path: Path) -> None:
    packed = tmp_path / "HumanEvalPlus.jsonl.gz"
    packed.write_bytes(gzip.compress((SAMPLES / "HumanEvalPlus.jsonl").read_bytes()))
    assert digest(load("humaneval-plus", tmp_path)) == digest(load("humaneval-plus", SAMPLES))
    assert digest(load("humaneval-plus", SAMPLES)[1:]) != digest(load("humaneval-plus", SAMPLES))


ROW = json.dumps({"question": "q", "answer": "#### 1", "idx": 1})
BAD = [
    (f"{ROW}\n{ROW}", "problem 'gsm8k/1' occurs twice"),
    (f"{ROW}\n{{", "line 2: not JSON"),
    ("[1]", "line 1: not a JSON object"),
    (json.dumps({"question": "q", "answer": "1"}), "row 1: the answer has no ####"),
    (json.dumps({"answer": "#### 1"}), "row 1: no field question; there are answer"),
    ("", "the suite has no problems"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_data_that_cannot_be_used(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "gsm8k.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message.replace("[", "\\[")):
        load("gsm8k", tmp_path)


def test_a_folder_or_suite_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of gsm8k.jsonl; download with: populora benchmark .*--suite gsm8k"):
        load("gsm8k", tmp_path)
    with pytest.raises(ConfigError, match="the folder does not exist"):
        load("gsm8k", tmp_path / "no")
    own = "probe-dev, probe-test, staircase-dev, staircase-test"
    with pytest.raises(ConfigError, match=rf"suite 'gsm9k' is not one of {own}, aime24.*; did you mean gsm8k\?$"):
        load("gsm9k", tmp_path)


def test_a_mutant_has_one_change() -> None:
    assert list(mutants("def f(x):\n    'Text.'\n    return x + 1\n")) == [
        ("operator", 'def f(x):\n    """Text."""\n    return x - 1\n'),
        ("constant", 'def f(x):\n    """Text."""\n    return x + 2\n'),
        ("nothing", 'def f(x):\n    """Text."""\n    return None\n'),
        ("listed", 'def f(x):\n    """Text."""\n    return [x + 1]\n'),
        ("refused", 'def f(x):\n    """Text."""\n    raise ValueError(\'no\')\n'),
    ]
