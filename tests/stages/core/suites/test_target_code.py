"""What of an answer EvalPlus's rules let run."""

import ast

import pytest

from stages.core.suites.target_code import longest_program, target_code

F = "def f(x):\n    return "
G = "def g(x):\n    return 1\n"
SWAP = "def swap(x):\n    x.reverse()\n"
KEPT = {
    f"import math\n{F}math.pi": f"import math\n{F}math.pi",
    f"{F}1\nprint(f(2))\nassert f(2) == 3": f"{F}1",
    f"Sure, here it is:\n{F}g(x)\n{G}Hope it helps!": f"{F}g(x)\n{G}",
    f"{F}LIMIT\nLIMIT: int = 3\nOTHER = 4": f"{F}LIMIT\nLIMIT: int = 3",
    f"a, b = 1, 2\n{F}a": f"a, b = 1, 2\n{F}a",
    f"class A:\n    pass\nclass B(A):\n    pass\n{F}B()\nC = 1": f"class A:\n    pass\nclass B(A):\n    pass\n{F}B()",
    f"def f(x):\n    pass\n{F}1\n{F}2": f"{F}1",
    f"@cache\n{F}1": f"@cache\n{F}1",
    f"{SWAP}{F}swap(x)": f"{SWAP}{F}swap(x)",
    G: "",
    "no program": "",
    "": "",
}


@pytest.mark.parametrize("text", KEPT)
def test_what_the_entry_point_needs_is_kept(text: str) -> None:
    assert ast.unparse(target_code(text, "f")).strip() == ast.unparse(ast.parse(KEPT[text])).strip()


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("x = 1\ny = (\nz = 3\nw = 4", "z = 3\nw = 4"),
        ("x = 1\ny = 2\n!\nz = 3", "x = 1\ny = 2"),
        ("def f(x):\n    return 1\n```\nprose of two\nwords", "def f(x):\n    return 1"),
        ("x = '''\nnever closed", ""),
        ("x = 1\n\x00\ny = 2\nz = 3", "y = 2\nz = 3"),
        ("    indented = 1\nx = 2", "x = 2"),
    ],
)
def test_the_longest_run_of_lines_that_parses(text: str, longest: str) -> None:
    assert ast.dump(longest_program(text)) == ast.dump(ast.parse(longest))


def test_it_is_as_exhaustive_search_has_it() -> None:
    lines = [
        "def f(x):",
        "    return [",
        "        1",
        "    ]",
        "x = (",
        ")",
        "prose here",
        "'''",
        "y = 2",
        "    z = 3",
        "if x:",
        "a = 1",
    ]
    for shift in range(len(lines)):
        turned = lines[shift:] + lines[:shift]
        best = 0
        for first in range(len(turned)):
            for last in range(first, len(turned)):
                try:
                    ast.parse("\n".join(turned[first : last + 1]))
                    best = max(best, last + 1 - first)
                except SyntaxError:
                    pass
        found = longest_program("\n".join(turned))
        spans = [node.end_lineno or 0 for node in found.body]
        assert best == max(spans) if spans else best == 0
