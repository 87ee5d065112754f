"""True traces of programs, from the sandbox, and how far a written trace agrees with them."""

import pytest

from stages.core.judging.recorder import f as recording_of
from stages.core.judging.traces import LONGEST_LINE, MOST_LINES, NO_TRACE, RecordedRun, Trace, agreeing, true_traces
from stages.core.sandbox.docker import DockerSandbox
from stages.core.sandbox.protocol import SandboxUnavailable, Status, Verdict
from stages.core.values.canonical import canonical
from tests.support.fakes import TableSandbox

CHAIN = "def f(a, e):\n    c = a + 5\n    h = c * e\n    k = h % 9\n    return k"
LOOP = "def f(x):\n    total = 0\n    for i, y in enumerate(x):\n        if y > 1:\n            total += y\n    return total"
WHILE = "def f(n):\n    while n > 1:\n        n = n // 2\n    else:\n        done = True\n    return n"
COMPREHENSION = "def f(x):\n    y = [z + 1 for z in x]\n    w = sum(v for v in y)\n    return w"
CAUGHT = (
    "def f(x):\n    a = 1\n    try:\n        b = x[5]\n    except IndexError as error:\n        b = a = 0\n"
    "    finally:\n        c: int = b\n    d: str\n    return c"
)
NESTED = (
    "def g(n):\n    t = n * 2\n    return t\n"
    "def f(n, deep=True):\n    def inner(m):\n        s = m\n        return s\n    r = g(n)\n    q = f(n, False) if deep else 0\n"
    "    r, (q, *rest) = inner(r), [q, 1, 2]\n    return r"
)
MATCH = "def f(x):\n    match x:\n        case [a, *_]:\n            b = a\n        case _:\n            b = 0\n    return b"
CHANGED = "def f(x):\n    x[0] = 9\n    x.append(1)\n    y = x\n    y.append(2)\n    return x"
LONG = "def f(n):\n    a = 'x' * n\n    b = 1\n    return b"
MANY = "def f(n):\n    for i in range(n):\n        x = i\n    return n"


def own_words() -> str:
    """A program with every name that a recording would choose."""
    return "def f(log):\n    count = note = name = value = log\n    replay = plain = inner = count + 1\n    return inner"


RECORDED = [
    (CHAIN, "7, 2", 6, ["c=12", "h=24", "k=6"]),
    (
        LOOP,
        "[1, 3, 2]",
        5,
        ["total=0", "i=0", "y=1", "i=1", "y=3", "total=3", "i=2", "y=2", "total=5"],
    ),
    (WHILE, "5", 1, ["n=2", "n=1", "done=True"]),
    (COMPREHENSION, "[1, 2]", 5, ["y=[2, 3]", "w=5"]),
    (CAUGHT, "[1]", 0, ["a=1", "b=0", "a=0", "c=0"]),
    (NESTED, "4", 8, ["r=8", "q=8", "r=8", "q=8", "rest=[1, 2]"]),
    (MATCH, "[3, 4]", 3, ["b=3"]),
    (CHANGED, "[0]", [9, 1, 2], ["y=[9, 1]"]),
    ("def f(x):\n    return x", "1", 1, []),
    ("def f(x):\n    y = {'b': 1}\n    z = {2, 1}\n    return 0", "1", 0, ["y={'b': 1}", "z={1, 2}"]),
    (own_words(), "1", 2, ["count=1", "note=1", "name=1", "value=1", "replay=2", "plain=2", "inner=2"]),
]


def run_of(program: str, given: str, value: object) -> RecordedRun:
    return RecordedRun(program, given, canonical(value))


@pytest.fixture(scope="module")
def sandbox():
    made = DockerSandbox(containers=1)
    yield made
    made.close()


@pytest.mark.docker
def test_a_trace_is_what_the_outermost_call_assigns_in_order(sandbox: DockerSandbox) -> None:
    found = true_traces(sandbox, [run_of(*one[:3]) for one in RECORDED])
    assert found == [Trace(len(lines), tuple(lines)) for *_, lines in RECORDED]


@pytest.mark.docker
def test_long_values_are_cut_and_steps_beyond_the_kept_lines_count(sandbox: DockerSandbox) -> None:
    fitting, over, many = true_traces(
        sandbox, [run_of(LONG, str(LONGEST_LINE - 3), 1), run_of(LONG, str(LONGEST_LINE), 1), run_of(MANY, "100", 100)]
    )
    assert fitting.lines == (f"a='{'x' * (LONGEST_LINE - 3)}'", "b=1")
    assert over == Trace(2, ("", "b=1")) and agreeing(over.lines, ["", "b=1"]) == 0
    assert (many.steps, len(many.lines), many.lines[:4]) == (200, MOST_LINES, ("i=0", "x=0", "i=1", "x=1"))


@pytest.mark.docker
@pytest.mark.parametrize(
    ("program", "given", "value"),
    [
        ("f = lambda x: x", "1", 1),
        ("from functools import cache\n@cache\ndef f(x):\n    y = x\n    return y", "1", 1),
        ("def f(x):\n    y = x\n    return y\nf = abs", "1", 1),
        ("def f(x):\n    y = x\n    return y\nclass f:\n    pass", "1", 1),
        ("def f(x):\n    y = x\n    return y", "1", 2),  # not what the task's run returned
        ("def f(x):\n    y = x\n    return 1 // 0", "1", 1),
        ("def f(x):\n    y = x\n    while x:\n        pass", "1", 1),
        ("def f(x):\n    y = list({'a', 'b', 'c', 'd', 'e', 'f'})\n    return x", "1", 1),  # differs between servers
        ("def f(x):\n    y = object()\n    return x", "1", 1),  # shows an address
        ("def f(x:\n    return x", "1", 1),
    ],
)
def test_a_run_that_cannot_be_recorded_has_no_trace(sandbox: DockerSandbox, program: str, given: str, value: object) -> None:
    assert true_traces(sandbox, [run_of(program, given, value), run_of(CHAIN, "7, 2", 6)]) == [
        NO_TRACE,
        Trace(3, ("c=12", "h=24", "k=6")),
    ]


def test_the_recording_keeps_the_program_and_takes_names_that_it_cannot_spell() -> None:
    text = recording_of(own_words(), 9, 99)
    assert text.startswith(own_words() + "\n")
    assert "log_ = []" in text and "def note_(name_, value_):" in text
    assert recording_of("x = 1", 9, 99) == recording_of("def f(", 9, 99) == ""


@pytest.mark.parametrize(
    "value",
    [
        "5",
        "(6, 3)",
        "(6, -1, [])",
        "(6, True, [('c', '12')])",
        "(6, 3, [('c', '12')])",
        "(6, 1, [('c', 12)])",
        "(6, 1, [['c', '1']])",
        f"(6, {1 << 31}, {[('c', '12')] * MOST_LINES})",
        f"(6, {10**30}, {[('c', '12')] * MOST_LINES})",
        f"(6, {-(10**30)}, [])",
    ],
)
def test_what_a_program_made_of_its_recording_is_no_trace(value: str) -> None:
    """A model's program can return anything in the place of what was recorded; the host takes only what has the right form."""
    from stages.core.judging.traces import RECORDING

    given = f"{CHAIN!r}, {MOST_LINES}, {LONGEST_LINE}"
    text = recording_of(CHAIN, MOST_LINES, LONGEST_LINE)
    fake = TableSandbox({(RECORDING, given): repr(text), (text, "7, 2"): value})
    assert true_traces(fake, [run_of(CHAIN, "7, 2", 6)]) == [NO_TRACE]


def test_a_line_that_no_table_can_store_is_empty() -> None:
    """A program's own `repr` may return half a surrogate pair."""
    from stages.core.judging.traces import RECORDING

    given = f"{CHAIN!r}, {MOST_LINES}, {LONGEST_LINE}"
    recording = {(RECORDING, given): repr(recording_of(CHAIN, MOST_LINES, LONGEST_LINE))}
    fake = TableSandbox(
        recording | {(recording_of(CHAIN, MOST_LINES, LONGEST_LINE), "7, 2"): repr((6, 2, [("c", "\ud800"), ("h", "\u00e9")]))}
    )
    assert true_traces(fake, [run_of(CHAIN, "7, 2", 6)]) == [Trace(2, ("", "h=\u00e9"))]


def test_a_sandbox_that_does_not_answer_raises() -> None:
    class Dead(TableSandbox):
        def run(self, jobs):
            raise SandboxUnavailable("gone")

    with pytest.raises(SandboxUnavailable, match="gone"):
        true_traces(Dead({}), [run_of(CHAIN, "7, 2", 6)])


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (["c=12", "h=24", "k=6"], 3),
        (["c=12", "h=24", "k=6", "k=6", "z=1"], 3),
        (["c=12", "h=25", "k=6"], 1),
        (["c=12", "c=12", "c=12"], 1),
        (["h=24", "c=12", "k=6"], 0),
        (["c=12", "", "h=24"], 1),
        (["c = 12"], 0),
        (["c=12.0"], 0),
        (["c=True"], 0),
        (["c=+12", " h=24 ", "k=0x6"], 3),
        (["c=6+6"], 0),
        (["c=__import__('os')"], 0),
        ([""], 0),
        ([], 0),
    ],
)
def test_the_longest_correct_beginning_counts_and_nothing_else(written: list[str], count: int) -> None:
    assert agreeing(["c=12", "h=24", "k=6"], written) == count


def test_values_agree_as_answers_do() -> None:
    assert agreeing(["y={1, 2}", "z={'a': 1, 'b': 2}", "s='a=b'"], ["y={2, 1}", 'z={"b": 2, "a": 1}', 's="a=b"']) == 3
    assert agreeing(["y=<object>", "z=1"], ["y=<object>", "z=1"]) == 0


def test_a_program_whose_recording_text_is_long_or_no_literal_has_no_trace_and_raises_nothing() -> None:
    """A canonical text may take ten characters for one of the program, and more than a literal may have otherwise."""
    long, broken = "def f(x):\n    '" + "\U0001f600" * 8_000 + "'\n    return x", "def f(x):\n    return 2"
    runs = [RecordedRun(long, "1", "1"), RecordedRun(broken, "1", "1")]
    answers = iter([canonical(long), "not a literal", None])

    class Answering:
        def run(self, jobs: object) -> object:
            for _, value in zip(jobs, answers, strict=False):  # type: ignore[call-overload]
                yield Verdict(Status.VALID, value, "", None)

    assert true_traces(Answering(), runs) == [NO_TRACE, NO_TRACE]  # type: ignore[arg-type]
