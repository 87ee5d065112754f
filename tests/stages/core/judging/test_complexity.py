"""What is counted of a program: as written, without padding, and as radon counts."""

import pyarrow.parquet as pq
import pytest
from radon.visitors import ComplexityVisitor, Function

from flows.config import PROJECT
from stages.core.judging.complexity import f as measure_programs
from stages.core.judging.complexity import measure as measure_program
from stages.core.judging.shapes import shape_of, shapes, value_types
from stages.core.sandbox.docker import DockerSandbox

SHORT = "def f(x):\n    return x"


PADDED = '''def f(x):
    """What it does."""
    # a comment
    import math
    unused = x + 1

    def helper(a):
        return a
    if False:
        return 9
    if x > 1:
        pass
    for y in x:
        x = y or x
    return x
    print(x)'''


@pytest.mark.parametrize(
    ("program", "written", "stripped"),
    [
        (SHORT, [2, 3, 1, 1], [2, 3, 1, 1]),
        (
            "def f(x):\n\n    # a comment\n    y = x if x and x > 1 else 2\n    return [z for z in y if z]",
            [4, 6, 5, 3],
            [3, 6, 5, 3],
        ),
        ("def f(*a, **k):\n    try:\n        assert a\n    except ValueError as e:\n        pass", [5, 4, 3, 3], [5, 4, 3, 3]),
        (PADDED, [15, 5, 5, 4], [4, 5, 3, 2]),
        ("def f(x):\n    while 0:\n        x = 1\n    kept = x.pop()\n    return x", [5, 5, 2, 2], [3, 5, 1, 2]),
        ("def f(x):\n    total = 0\n    total += 1\n    return x", [4, 3, 1, 2], [2, 3, 1, 1]),
    ],
)
def test_programs_are_counted_as_written_and_without_padding(program: str, written: list[int], stripped: list[int]) -> None:
    assert measure_program(program)[:2] == [written, stripped]


def test_cyclomatic_complexity_of_each_branch() -> None:
    branches = "if x: a()\nelif y: a()\nfor a in x: a()\nwhile x: a()\nmatch x:\n case 1: a()\n case _: a()\nz = x or y or a"
    assert measure_program(branches)[0][2] == 1 + 2 + 1 + 1 + 2 + 2


def radons(function: Function) -> int:
    """Radon counts a closure apart; here a program is one whole."""
    return function.complexity - 1 + sum(radons(closure) for closure in function.closures)


def test_cyclomatic_complexity_is_radons_on_the_probe() -> None:
    for program in pq.read_table(PROJECT / "infra/benchmarks/probe-dev.parquet")["program"].to_pylist()[::10]:
        expected = 1 + sum(radons(function) for function in ComplexityVisitor.from_code(program).functions)
        assert measure_program(program)[0][2] == expected, program


def test_a_program_that_does_not_parse_has_no_measure() -> None:
    assert measure_programs(["def f(:", "\0", "(" * 5000, "x = " + "-" * 100_000 + "1", SHORT])[:4] == [None] * 4


@pytest.mark.docker
def test_the_sandbox_measures_as_this_interpreter_does() -> None:
    odd = [
        "def f(:",
        "def f(x):\n    return '\\d' is 1",
        "def f(é):\n    return 'ü\\n'",
        "(" * 150 + "1" + ")" * 150,
        "x" * 16_000,
    ]
    programs = [SHORT, PADDED, *odd, *(f"{SHORT} + {number}" for number in range(30))]
    sandbox = DockerSandbox(containers=1)
    try:
        found = shapes(sandbox, programs)
    finally:
        sandbox.close()
    measured = {program: shape_of(one) for program, one in zip(programs, measure_programs(programs), strict=True)}
    assert found == {program: shape for program, shape in measured.items() if shape is not None}
    assert "def f(:" not in found and len(found) == len(programs) - 1


def test_value_types_are_named_two_levels_deep() -> None:
    assert value_types("3, [1, 'a'], {'k': [1]}, []", "{1, 2}") == "(int, list[int, str], dict[list, str], list[]) -> set[int]"
    assert value_types("[1, 'a', None, 2.5]", "None") == "(list[mixed]) -> NoneType"
    assert value_types("not a literal", "1") == "?"
