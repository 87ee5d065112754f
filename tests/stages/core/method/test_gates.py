"""Task gates: what each stops, and what it lets through."""

import pytest

from stages.core.method.gates import GATES
from stages.core.values.canonical import canonical, parse_arguments


def row(program: str, inputs: list[str], outputs: list[str], kind: str = "deduction", message: str = "") -> dict[str, object]:
    return {
        "program": program,
        "inputs": inputs,
        "outputs": outputs,
        "values": [canonical(parse_arguments(output)[0]) for output in outputs],
        "kind": kind,
        "message": message,
        "duplicate": False,
    }


SUM = "def f(a, b):\n    # adds 3 and 4\n    return a + b"
CASES = {
    "constant": (
        row("def f(x):\n    return 7", ["1", "2"], ["7", "7"], "induction"),
        row("def f(x):\n    return 7 * x", ["1", "2"], ["7", "14"], "induction"),
    ),
    "identity": (
        row("def f(x):\n    return x", ["[1,2]"], ["[1, 2]"]),
        row("def f(x):\n    return x[::-1]", ["[1,2]"], ["[2, 1]"]),
    ),
    "ignores_input": (
        row("def f(text: str, n=2) -> int:\n    '''Counts text.'''\n    # n is not used\n    return len('abc')", ["'a'"], ["3"]),
        row("def f(text: str, n=2) -> int:\n    return len(text)", ["'a'"], ["1"]),
    ),
    "verbatim_output": (
        row("def f(x):\n    return ['a', 'bc'] if x else 0", ["1"], ['["a", "bc"]']),
        row("def f(x):\n    return ['a' + x]", ["'b'"], ["['ab']"]),
    ),
    "quoted_input": (row(SUM, ["3"], ["7"]), row(SUM, ["5, 6"], ["11"])),
    "telling_message": (
        row("def f(x):\n    return x * 3 + 1", ["1", "40"], ["4", "121"], "induction", "It is return x*3+1, you see."),
        row("def f(x):\n    return x * 3 + 1", ["1", "40"], ["4", "121"], "induction", "Triples a number and adds one."),
    ),
    "repeated": (row(SUM, ["3"], ["7"]) | {"duplicate": True}, row(SUM, ["3"], ["7"])),
}


@pytest.mark.parametrize("name", GATES)
def test_a_gate_stops_what_it_names_and_nothing_else(name: str) -> None:
    stopped, passed = CASES[name]
    assert GATES[name](stopped) is True
    assert GATES[name](passed) is False


def test_a_hidden_output_in_the_message_is_stopped_and_a_shown_one_is_not() -> None:
    task = row("def f(x):\n    return x * 111", ["1", "2", "3", "4"], ["111", "222", "333", "444"], "induction", "Such as 444.")
    assert GATES["telling_message"](task) and not GATES["telling_message"](task | {"message": "Such as 111."})


@pytest.mark.parametrize(
    ("program", "given", "got", "stopped"),
    [
        ("return x", "5,", "5", True),
        ("return x", "(5)", "5", True),
        ("return x", "0x5", "5", True),
        ("return x", "[1,2,]", "[1, 2]", True),
        ("return x", '"a b"', "'a b'", True),
        ("return x.replace(' ', '')", "'a b c'", "'abc'", False),
        ("return x.strip()", "' ab '", "'ab'", False),
        ("return [x]", "5", "[5]", False),
        ("return (x,)", "5", "(5,)", False),
        ("return a, b", "1, 'c'", "(1, 'c')", True),
    ],
)
def test_identity_compares_values_and_not_their_texts(program: str, given: str, got: str, stopped: bool) -> None:
    assert GATES["identity"](row(f"def f(x):\n    {program}", [given], [got])) is stopped


@pytest.mark.parametrize(
    ("program", "stopped"), [("return '#' * n", False), ('return "a # b", n', False), ("return '#' * 5 # n", True)]
)
def test_a_mark_of_a_comment_inside_a_string_begins_none(program: str, stopped: bool) -> None:
    assert GATES["ignores_input"](row(f"def f(n):\n    {program}", ["5"], ["'#####'"])) is stopped


@pytest.mark.parametrize(
    ("aside", "given", "stopped"),
    [
        ("# 128 slots", "1", False),
        ("# of 1.5 each", "1", False),
        ("# Step 1: sort", "1", True),
        ("# returns -1", "1", False),
        ("# f(5)", "5,", True),
        ("# f(5)", "0x5", True),
        ("", "", True),
        ("# returns 1.", "1", True),
        ("# f([1,  2]) gives 3", "[1, 2]", True),
        ("x = '# 1'", "1", False),
        ("'''such as 'a b' here'''", '"a b"', True),
    ],
)
def test_a_quoted_input_is_a_whole_one_in_a_comment(aside: str, given: str, stopped: bool) -> None:
    assert GATES["quoted_input"](row(f"def f(x):\n    {aside}\n    return [x]", [given], [f"[{given}]"])) is stopped


def test_f_without_parameters_ignores_none() -> None:
    assert not GATES["ignores_input"](row("def f():\n    return 1", [""], ["1"]))
