"""Whatever a model writes, reading it raises what the reader says and nothing else, and costs in proportion to its length.

Every reader of model-written text stands in `READERS`, every regular expression that sees such text in a module of `SEEING`. Cost
is counted: lines of ours that run, and steps of each pattern, in texts made of the pattern's own words.
"""

import ast
import importlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.judging import lines as judge_lines
from flows.judging.line_ids import line_id
from stages.core import highlight
from stages.core.judging.judge import compare_literal
from stages.core.method import gates
from stages.core.prompts.azr import AzrPrompts
from stages.core.prompts.chat import ChatPrompts
from stages.core.prompts.compact import INPUT, CompactPrompts
from stages.core.prompts.document import DocumentPrompts
from stages.core.prompts.styles import Kind, Unparsed
from stages.core.prompts.trace import TracePrompts
from stages.core.sandbox.protocol import Job, Status, Verdict
from stages.core.sandbox.verdicts import ProgramRun, payload, verdict
from stages.core.suites import evalplus_rules, harness, livecode_rules, prompts
from stages.core.suites.harness import ReturnedValue
from stages.core.suites.math_grader import MathAnswer, MathGrader
from stages.core.suites.problems import Form, Problem
from stages.core.values import canonical as values
from stages.core.values.canonical import LiteralError, TooLarge
from tests.support.counted import lines_run, regex_steps, words_of

ROOT = Path(__file__).resolve().parents[4]
AZR, CHAT, COMPACT, DOCUMENT = AzrPrompts(), ChatPrompts(str), CompactPrompts(), DocumentPrompts()
TRACE = TracePrompts()
PROGRAM = "def f(a):\n    return a"
SOLVED = "def add(a, b):\n    return a + b\n"
PROBLEMS = (
    Problem("Mbpp/1", Form.FUNCTION, "mbpp", "Add.", "", "add", SOLVED, ("(1, 2)",)),
    Problem("HumanEval/1", Form.FUNCTION, "humaneval", "", "def add(a, b):\n    '''Adds.'''\n", "add", SOLVED, ("(1, 2)",)),
    Problem("x/1", Form.STDIN, "easy", "Say it.", "", "", inputs=("1",), outputs=("1",)),
    Problem("x/2", Form.DEDUCTION, "output", "", PROGRAM, "f", inputs=("1",), outputs=("1",)),
    Problem("x/3", Form.ABDUCTION, "input", "", PROGRAM, "f", inputs=("1",), outputs=("1",)),
    Problem("x/4", Form.MATHEMATICS, "all", "Add.", outputs=("3",)),
)


def texts_of_values(text: str) -> None:
    value = values.parse_value(text)
    assert values.canonical(values.parse_value(values.canonical(value), limit=1 << 24)) == values.canonical(value)
    values.literal(value)


def texts_of_arguments(text: str) -> None:
    values.arguments_wire(values.parse_arguments(text))
    values.canonical_arguments(text)
    values.arguments_literal(values.parse_arguments(text))


def azr(read: Callable[[str], object]) -> Callable[[str], None]:
    return lambda text: [read(around.replace("%", text)) for around in ("%", "</think><answer>%</answer>")] and None


def gated(text: str) -> None:
    row: dict[str, object] = {key: [text, "1"] for key in ("inputs", "outputs", "values")}
    row |= {"program": f"def f({text}):\n    {text}", "message": text, "duplicate": False}
    for gate in gates.GATES.values():
        gate(row | {"kind": "induction"})
        gate(row | {"kind": "deduction"})


def scored(text: str) -> None:
    for tag in "vsoed":
        one = ReturnedValue(tag, text)
        livecode_rules.output_counts(one, "1\n2")
        livecode_rules.value_counts(one, "[1, 2]")
        for problem in PROBLEMS[:2]:
            evalplus_rules.failing(problem, problem.inputs, [one], [ReturnedValue("v", "3.0")])


def packed(text: str) -> None:
    for value in (text, repr(text), harness._packed(text.encode("utf-8", "replace")), f"[{text}]"):
        harness.read(Verdict(Status.VALID, value, "", None))
        harness.read(Verdict(Status.VALID, repr(value), "", None))


def lines_of_the_judge(text: str) -> None:
    plain = text.encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    fields: dict[str, Any] = dict.fromkeys(("program", "input", "output", "answer"), text)
    fields |= {"id": 1, "kind": "deduction", "examples": [[text, text]]}
    for row in (plain, b'{"id": ' + plain + b"}", judge_lines.json.dumps(fields).encode()):
        for read in (judge_lines.task, judge_lines.answer):
            for line in judge_lines.lines(io.BytesIO(row + b"\n"), read):
                assert line is not None and (line.error or line.item)
        line_id(row)


def settled(text: str) -> None:
    grader = MathGrader(workers=0)
    for gold, answer in ((text, "1"), ("1", text)):
        grader._settled(MathAnswer((gold[:2_000],), answer))


def of_the_sandbox(text: str) -> None:
    ascii_text = text.encode("ascii", "backslashreplace").decode()
    for letter in (b"V", b"E"):
        run = ProgramRun(letter, 0.1, 0.1, 1, "key", ascii_text, ascii_text)
        found = verdict([run, run])  # equal runs differ in nothing, but a value that shows an address would in others
        assert found.status is not Status.NONDETERMINISTIC or " at 0x" in ascii_text
    for job in (Job(PROGRAM, text, True), Job(text, "1", False)):
        payload(job)


READERS: dict[str, tuple[Callable[[str], object], tuple[type[Exception], ...]]] = {
    "values": (texts_of_values, (LiteralError, TooLarge)),
    "arguments": (texts_of_arguments, (LiteralError, TooLarge)),
    "settled texts": (values.is_settled, ()),
    "deduction answers": (lambda text: compare_literal(text, "1"), ()),
    "azr proposals": (azr(lambda text: AZR.read_proposal(Kind.DEDUCTION, text)), (Unparsed,)),
    "azr inputs": (azr(lambda text: AZR.read_inputs(text, PROGRAM, 2)), (Unparsed,)),
    "azr answers": (azr(lambda text: AZR.read_answer(Kind.INDUCTION, text)), (Unparsed,)),
    "azr values": (azr(lambda text: AZR.read_answer(Kind.DEDUCTION, text)), (Unparsed,)),
    "chat proposals": (lambda text: CHAT.read_proposal(Kind.DEDUCTION, text), (Unparsed,)),
    "chat inputs": (lambda text: CHAT.read_inputs(text, PROGRAM, 2), (Unparsed,)),
    "chat answers": (lambda text: CHAT.read_answer(Kind.INDUCTION, text), (Unparsed,)),
    "chat values": (lambda text: CHAT.read_answer(Kind.DEDUCTION, text), (Unparsed,)),
    "document proposals": (lambda text: DOCUMENT.read_proposal(Kind.DEDUCTION, text), (Unparsed,)),
    "document inputs": (lambda text: DOCUMENT.read_inputs(text, PROGRAM, 2), (Unparsed,)),
    "document answers": (lambda text: DOCUMENT.read_answer(Kind.INDUCTION, text), (Unparsed,)),
    "document values": (lambda text: DOCUMENT.read_answer(Kind.DEDUCTION, text), (Unparsed,)),
    "document arguments": (lambda text: DOCUMENT.read_answer(Kind.ABDUCTION, text), (Unparsed,)),
    "compact proposals": (lambda text: COMPACT.read_proposal(Kind.DEDUCTION, text + INPUT + text), (Unparsed,)),
    "compact inputs": (lambda text: COMPACT.read_inputs(text, PROGRAM, 2), (Unparsed,)),
    "compact answers": (lambda text: COMPACT.read_answer(Kind.ABDUCTION, text), (Unparsed,)),
    "trace answers": (lambda text: TRACE.read_answer(Kind.ABDUCTION, text + INPUT + text), (Unparsed,)),
    "suite answers": (lambda text: [prompts.answer(problem, text) for problem in PROBLEMS], ()),
    "mathematics answers": (settled, ()),
    "suite results": (packed, ()),
    "suite values": (scored, ()),
    "sandbox results": (of_the_sandbox, ()),
    "judge lines": (lines_of_the_judge, ()),
    "gates": (gated, ()),
    "pages": (lambda text: highlight.visible(text, 100), ()),
}

PIECES = (
    *("'", '"', "'''", '"""', "\\", "\n", " ", "\t", "#", "```", "```python\n", "```input\n", "```output\n", "```message\n", "`"),
    *("</think>", "<answer>", "</answer>", "User:", "def f(a):\n", "    return a", "⟨in⟩", "⟨out⟩"),
    *("\\boxed{", "\\boxed ", "{", "}", "$", "$$", "\\[", "\\]", "\\(", "\\)", "answer", " to ", " is ", ":", "**", "#### "),
    *("(", ")", "[", "]", ",", ", ", "-", "+", "_", ".", "0", "1", "9" * 30, "1e", "e5", "j", "0x", "nan", "inf", "None", "True"),
    *("frozenset({", "})", "set()", "complex(", "float('inf')", "b'", "r'", "\\x4", "\\N{", "\\u12", "\\", "é", "\ud800", "\x00"),
    *('{"id": ', '"id"', "null", "1:1,", " at 0x00000", "\\text{", "\\frac", "~", "\\,", "; ", "...", "I hope it is correct"),
)
LITERALS = (
    *("[1, (2.5, 'a'), {3: {4, 5}}, frozenset({b'x', None}), complex(1, -2)]", "1" + "0" * 400 + "+1j", f"complex({10**400}, 1)"),
    *("{1: [2, 3], 'k': (True, -0.0, nan)}", "'\\x41\\N{DIGIT ONE}\\u00e9' \"b\"", "1_000, 0x1f, -2j, float('-inf')"),
    "frozenset({" * 24 + "1" + "})" * 24,
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A literal with pieces put in, taken out or doubled."""
    text = draw(st.sampled_from(LITERALS))
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.integers(0, len(text))) for _ in range(2))
        text = text[:start] + draw(st.sampled_from([*PIECES, text[start:end] * 2, ""])) + text[end:]
    return text


repeated = st.builds(
    lambda before, unit, times, after: before + "".join(unit) * times + after,
    st.sampled_from(["", *PIECES]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3),
    st.integers(1, 400),
    st.sampled_from(["", *PIECES]),
)
joined = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60) | mutated() | st.sampled_from(LITERALS) | repeated | joined)
def test_a_reader_raises_what_it_says_and_nothing_else(name: str, text: str) -> None:
    read, expected = READERS[name]
    with suppress(*expected):
        read(text)


UNITS = [*PIECES, "answer to ", "\\'", '\\"', "\\'''\n", '\\"""\n```python\n', "'a' ", "a,", "def f(\n", "{1}, ", "(-1, -2), "]


@pytest.mark.parametrize("name", READERS)
def test_a_reader_runs_no_more_lines_than_the_text_is_long(name: str) -> None:
    """Four times the text, at most four times the lines, and some for what is done once."""
    read, expected = READERS[name]
    for before, unit in [("", unit) for unit in UNITS] + [("[", "1, "), ("'", "\\n"), ("{", "1: 2, "), ("```python\n", "'\\\n")]:
        short, long = (lines_run(partial(read, before + unit * times), *expected) for times in (50, 200))
        assert long < 5 * short + 2_000, (name, before, unit, short, long)


# --- regular expressions

SEEING = (
    "flows.export.site_page",
    "flows.judging.line_ids",
    "stages.core.prompts.azr",
    "stages.core.prompts.compact",
    "stages.core.prompts.document",
    "stages.core.prompts.labelled",
    "stages.core.prompts.fences",
    "stages.core.method.gates",
    "stages.core.highlight",
    "stages.core.values.leading",
    "stages.core.values.literal_tokens",
    "stages.core.values.literals",
    "stages.core.sandbox.verdicts",
    "stages.core.suites.math_answers",
    "stages.core.suites.prompts",
    "stages.core.values.canonical",
    "stages.analysis.paid_for",
)
NOT_SEEING = MappingProxyType(
    {
        "flows.audit.fsck_advice": "names of artifacts",
        "flows.benchmarks.contamination": "problems of suites",
        "flows.benchmarks.targets": "names of models",
        "flows.browser": "formats of numbers and texts, which are ours",
        "flows.commands.doctor": "what commands of this machine say",
        "flows.guide": "what a person types, and our own pages",
        "flows.monitoring.scored": "names of benchmarks' folders",
        "flows.pages": "names of runs and rows, which are ours",
        "flows.program": "sentences of ours, which name commands",
        "flows.store.names": "names of artifacts",
        "flows.run.lineage": "ids of rows",
        "flows.run.history": "names of folders",
        "flows.base_model.folder": "a model's type and architecture, as its config.json states them",
        "flows.run.manifest": "names of folders",
        "flows.run.resume": "names of artifacts",
        "flows.form_links": "ids in links of 4,000 characters at most",
        "flows.notes.note_text": "notes about runs; model text in them was made visible and cut before",
        "flows.prefect_ops.prefect_api": "what a Prefect server says",
        "flows.report.figure_tables": "ids of adapters",
        "flows.store.s3_store": "what a store says",
        "flows.tracking.sinks": "names of metrics",
        "flows.execution.preflight": "a setting, which a person types",
        "flows.execution.stage_process": "messages of errors",
        "stages.core.engines.vllm_start": "what an engine says before it has read a prompt",
        "flows.experiments.spec": "what a person writes in an experiment's file",
        "stages.figures.plates": "figures, which are ours",
        "stages.core.seed_model.program_grammar": "programs that we generate",
        "stages.core.seed_model.programs": "programs that we generate",
        "stages.core.seed_model.steps": "templates of our own",
        "stages.core.seed_model.seed_tokenizer": "texts that we generate",
        "stages.core.suites.contamination": "problems of suites, and one run of word characters at a time",
        "stages.core.suites.math_grader": "names of modules",
        "stages.core.suites.math_worker": "model text, but in a process that has so much processor time",
        "stages.core.suites.readers": "a publisher's files",
        "stages.core.suites.statistics": "ids of problems",
        "stages.core.method.top_up": "ids of rows",
    }
)


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for module in SEEING:
        for name, value in vars(importlib.import_module(module)).items():
            several = value.items() if isinstance(value, dict) else [("", value)]
            yield from ((f"{module}.{name}{key}", one) for key, one in several if isinstance(one, re.Pattern))


FOUND = {name: pattern for pattern, name in {pattern: name for name, pattern in patterns()}.items()}
# Matched at one place, behind which reading continues: never searched for.
MATCHED = {
    "flows.judging.line_ids._IN_TEXT",
    "stages.core.prompts.document._NUMBERED",
    "stages.core.values.leading._PIECE",
    "stages.core.values.literal_tokens.TOKEN",
    "stages.core.values.literals._INTEGERS",
    "stages.core.suites.math_answers._SINGLE",
    "stages.core.values.canonical._SETTLED",
}
MATCHED |= {f"stages.core.prompts.fences._INSIDE{quotes}" for quotes in ("'", '"', "'''", '"""')}
CHARACTERS = [*" \n\ta1_,.-*:#'\"\\`{}()[]$<>é"]


@pytest.fixture(autouse=True)
def _deep() -> Iterator[None]:
    """The counting engine nests a few calls a character."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    yield
    sys.setrecursionlimit(before)


def pumped(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """(before, unit): texts in which a pattern that repeats may start anew at every place."""
    words = words_of(pattern)
    yield from product(["", *words[:2]], [*CHARACTERS, *words[:4]])
    yield from (("", word + between) for word, between in product(words[:3], CHARACTERS))


def test_every_pattern_that_is_only_matched_exists() -> None:
    assert {name for name, _ in patterns()} >= MATCHED


@pytest.mark.parametrize("name", FOUND)
def test_a_pattern_takes_steps_in_proportion_to_the_text(name: str) -> None:
    for before, unit in pumped(FOUND[name]):
        texts = [before + unit * (length // len(unit)) for length in (40, 160)]
        short, long = (regex_steps(FOUND[name], text, once=name in MATCHED)[0] for text in texts)
        assert long < 8 * short + 200, (before, unit, short, long)


@pytest.mark.parametrize(
    ("pattern", "unit"),
    [
        (r"^\s*####", "\n"),
        (r"\\\[(.+?)\\\]", "\\["),
        (r"\s*is", " "),
        (r"\s*$x", " "),
    ],
)
def test_the_count_tells_a_pattern_that_takes_the_square(pattern: str, unit: str) -> None:
    short, long = (regex_steps(re.compile(pattern, re.M | re.S), unit * (length // len(unit)))[0] for length in (100, 400))
    assert long > 9 * short


@settings(max_examples=10, deadline=None)
@given(text=joined.map(lambda text: text[:30]))
def test_the_counting_engine_finds_what_re_finds(text: str) -> None:
    for pattern in FOUND.values():
        if isinstance(pattern.pattern, str):
            found = [match.span() for match in pattern.finditer(text) if match.end() > match.start()]
            assert [span for span in regex_steps(pattern, text)[1] if span[1] > span[0]] == found, pattern.pattern


def test_every_regular_expression_is_known_to_see_model_text_or_not() -> None:
    using, inline = set(), []
    for path in sorted((*ROOT.glob("flows/**/*.py"), *ROOT.glob("stages/**/*.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re":
                using.add(module)
                inline += [module] if node.attr in ("search", "match", "fullmatch", "findall", "finditer", "sub", "split") else []
    known = {*SEEING, *NOT_SEEING}
    assert {module for module in using if not any(module == one or module.startswith(one + ".") for one in known)} == set()
    assert not set(inline) & set(SEEING), "give the pattern a name in the module, so that it is counted here"
