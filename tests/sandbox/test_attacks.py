"""The attack catalogue on every backend: the stated verdict, the next program unharmed, nothing left behind."""

import collections
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.audit.attack import outcomes
from flows.audit.attack_catalogue import ANSWERS, ATTACKS, WITHOUT_PROGRAM, Attack
from stages.core.judging.judge import AnswerItem, TaskItem, compare_literal, judge_answers, judge_tasks
from stages.core.sandbox.local import LocalSandbox
from stages.core.sandbox.protocol import Job, Sandbox, SandboxUnavailable
from stages.core.values.canonical import LiteralError, canonical, parse_arguments, parse_value
from tests.honest_programs.controls import CONTROLS

DATA = Path(__file__).resolve().parents[3] / "shared" / "benchdata"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="../shared/benchdata is not here")


@pytest.fixture(scope="module", params=[pytest.param("docker", marks=pytest.mark.docker), "local"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    made = make(request.param)
    yield made
    made.close()


def make(kind: str) -> Sandbox:
    if kind == "local":
        return LocalSandbox(2)
    from stages.core.sandbox.docker import DockerSandbox

    try:
        return DockerSandbox(containers=2)
    except SandboxUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def wrong(sandbox: Sandbox, attacks: list[Attack]) -> list[str]:
    """What came out wrong, as text."""
    return [outcome.text() for outcome in outcomes(sandbox, attacks) if not outcome.held]


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keeps `count` processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_every_row_of_the_catalogue_is_here() -> None:
    numbers = [re.sub("[a-z]$", "", row) for row in [attack.row for attack in ATTACKS] + [row for row, *_ in ANSWERS]]
    assert {*numbers, *WITHOUT_PROGRAM} == {str(number) for number in range(1, 103)}
    names = [attack.row for attack in ATTACKS]
    assert len(set(names)) == len(names)


def test_every_value_that_an_attack_may_return_is_stated() -> None:
    assert {attack.row for attack in ATTACKS if attack.values} == {attack.row for attack in ATTACKS if "valid" in attack.want}


def test_a_value_that_is_not_the_stated_one_is_a_leak_and_an_attack_that_finds_nothing_to_attack_with_is_not_held(
    sandbox: Sandbox,
) -> None:
    """The same value in every server is not enough: rows that may be valid state which value."""
    (environment,) = [attack for attack in ATTACKS if attack.row == "37"]
    leak = replace(environment, program="def f():\n    return [(b'KEY', b'secret')]")
    lost = replace(environment, program=environment.program.replace("'posix'", "'no_such_module'"), want=frozenset(["error"]))
    (heap,) = [attack for attack in ATTACKS if attack.row == "39"]
    own = replace(heap, program=heap.program.replace("[::-1]", ""))  # looks for a text that is there: its own
    found = list(outcomes(sandbox, [environment, leak, lost, own]))
    assert [(outcome.word, outcome.held) for outcome in found] == [
        ("valid", True),
        ("leaked", False),
        ("untried", False),
        ("leaked", False),
    ]


def test_attacks_get_their_verdicts(sandbox: Sandbox) -> None:
    assert wrong(sandbox, [attack for attack in ATTACKS if not attack.slow]) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_verdict_flips_in_three_repeats_nor_under_four_times_the_load(sandbox: Sandbox) -> None:
    words: dict[str, list[str]] = collections.defaultdict(list)
    for turn in range(4):
        with busy(4 * len(os.sched_getaffinity(0)) if turn == 3 else 0):
            for outcome in outcomes(sandbox, ATTACKS):
                assert outcome.held, (turn, outcome)
                words[outcome.row].append(outcome.word)
    assert {row: found for row, found in words.items() if len(set(found)) > 1} == {}


def test_texts_given_as_answers_are_read_as_data_only(sandbox: Sandbox) -> None:
    items = [AnswerItem("deduction", "", (), ("[1, 2]",), text) for _, _, text, _ in ANSWERS]
    items += [AnswerItem("abduction", "def f(x): return True", (), ("True",), text) for row, _, text, _ in ANSWERS if row != "97"]
    words = [judgement.status for judgement in judge_answers(sandbox, items)]
    assert words == [word for *_, word in ANSWERS] + ["unparsed"] * (len(ANSWERS) - 1)


def test_the_right_value_is_nowhere_in_the_program_s_process(sandbox: Sandbox) -> None:
    """Row 64 with something to find: the value that the answer is compared with."""
    looking = next(attack.program for attack in ATTACKS if attack.row == "64")
    item = AnswerItem("induction", "", ("",), (canonical("other-job"),), looking)
    (judgement,) = judge_answers(sandbox, [item])
    (verdict,) = sandbox.run([Job(looking, "", False)])
    assert not judgement.correct and verdict.text == "'refused'"


def test_one_busy_loop_ends_in_time(sandbox: Sandbox) -> None:
    assert wrong(sandbox, [attack for attack in ATTACKS if attack.row in ("1", "5")]) == []


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("def f(s): return s.pop()", "{{'{}', '{}'}}"),
        ("def f(s): return [x for x in s[0]][0]", "[{{'{}', '{}'}}]"),
        (
            "def f(s, t):\n    import operator\n    return list(operator.and_(s.keys(), t))",
            "{{'{0}': 1, '{1}': 2}}, {{'{1}', '{0}'}}",
        ),
        ("def f(s, t): return list(getattr(s.keys(), '__or__')(t))", "{{'{}': 1}}, ['{}']"),
        ("def f(s, t): return list(s.keys().__or__(t))", "{{'{}': 1}}, ['{}']"),
        ("def f(s, t): return list(s | t)", "{{'{}'}}, {{'{}'}}"),
        ("def f(s, words):\n    for word in words:\n        s.add(word)\n    return list(s)", "set(), ['{}', '{}']"),
        ("import ast\ndef f(text): return list(ast.literal_eval(text))", "\"{{'{}', '{}'}}\""),
    ],
)
def test_the_order_of_sets_that_are_given_is_no_value(sandbox: Sandbox, program: str, text: str) -> None:
    """In two servers, half of all two-element sets show the same order; a few do in all five."""
    pairs = [(f"{letter}{number}", f"{number}{letter}") for letter in "abcdef" for number in range(4)]
    found = [str(one.status) for one in sandbox.run(Job(program, text.format(*pair), True) for pair in pairs)]
    assert set(found) <= {"valid", "nondeterministic"} and found.count("valid") <= 5, found


def test_honest_programs_are_valid(sandbox: Sandbox) -> None:
    verdicts = list(sandbox.run(Job(program, text, True) for program, text, _ in CONTROLS))
    found = [
        (program, verdict) for (program, _, output), verdict in zip(CONTROLS, verdicts, strict=True) if verdict.text != output
    ]
    assert found == []


def test_no_value_is_a_crash_for_its_depth(sandbox: Sandbox) -> None:
    """What the runner writes the host can read, at every depth: `complex` and `frozenset` are calls, and nest deeper."""
    leaves = "1, -1.5, nan, -inf, 1j, complex(nan, -inf), None, '', b'a', [], (), {}, {1: 2}, {1}, set(), frozenset([1])"
    program = (
        "def f(kind, depth):\n"
        "    nan, inf = float('nan'), float('inf')\n"
        "    x = [{}][kind]\n"
        "    for _ in range(depth): x = [x]\n"
        "    return x"
    )
    program, count = program.format(leaves), 16
    runs = [(leaf, depth) for leaf in range(count) for depth in range(45, 52)]
    verdicts = list(sandbox.run([Job(program, f"{leaf}, {depth}", False) for leaf, depth in runs]))
    words = {run: str(verdict.status) for run, verdict in zip(runs, verdicts, strict=True)}
    assert set(words.values()) == {"valid", "unsupported_value"}
    assert {word for (_, depth), word in words.items() if depth == 45} == {"valid"}
    assert {word for (_, depth), word in words.items() if depth == 51} == {"unsupported_value"}


@needs_data
def test_cruxeval_gold_pairs(sandbox: Sandbox) -> None:
    """All 400 are valid with the stated output, gold answers right. The six inputs that are expressions join the program."""
    rows = [json.loads(line) for line in (DATA / "extra" / "cruxeval.jsonl").read_text().splitlines()]
    items = [_crux_item(row["code"], row["input"]) for row in rows]
    assert sum(item.inputs == ("",) and row["input"] != "" for item, row in zip(items, rows, strict=True)) == 6
    verdicts = list(judge_tasks(sandbox, items))
    stated = [(canonical(parse_value(row["output"])),) for row in rows]
    assert [(str(verdict.status), verdict.values) for verdict in verdicts] == [("valid", values) for values in stated]
    answers = [
        AnswerItem(kind, item.program, item.inputs, values, answer)
        for row, item, values in zip(rows, items, stated, strict=True)
        for kind, answer in (("deduction", row["output"]), ("abduction", item.inputs[0]), ("induction", item.program))
    ]
    assert all(judgement.correct for judgement in judge_answers(sandbox, answers))


def _crux_item(program: str, text: str) -> TaskItem:
    try:
        parse_arguments(text)
        return TaskItem(program, (text,))
    except LiteralError:
        return TaskItem(f"{program}\ngiven = f\ndef f():\n    return given({text})", ("",))


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_azr_seed_rows_are_reproducible_or_refused(sandbox: Sandbox) -> None:
    """A valid row's value is its stated one, or the stated one is broken; and valid rows are valid again in a fresh sandbox."""
    fresh = make(str(sandbox.attestation()["kind"]))
    for path in sorted((DATA / "azr_seeds").glob("*_seed_io.jsonl")):
        if "code_f" in path.name:
            continue
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        items = [TaskItem("\n".join([*row["imports"], row["snippet"]]), (row["input"],)) for row in rows]
        verdicts, again = (list(judge_tasks(judge, items)) for judge in (sandbox, fresh))
        assert [(found.status, found.values) for found in verdicts] == [(found.status, found.values) for found in again], (
            path.name
        )
        refused = collections.Counter(str(verdict.status) for verdict in verdicts if verdict.status != "valid")
        assert refused.total() <= 0.17 * len(rows), (path.name, refused)  # keywords as inputs, foreign modules, set orders
        for number, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
            if verdict.status == "valid" and not compare_literal(row["output"], verdict.values[0]).correct:
                assert _broken(row["output"], verdict.outputs[0]), (path.name, number, row["output"], verdict.outputs[0])
    fresh.close()  # type: ignore[attr-defined]


def _broken(stated: str, value: str) -> bool:
    """Whether a stated output is one that no answer could be right about: cut in its middle, empty, or another order of a set."""
    return "..." in stated or not stated.strip() or sorted(stated) == sorted(value)


def test_attestation_names_what_is_missing(sandbox: Sandbox) -> None:
    found = sandbox.attestation()
    programs = found["program"]
    assert isinstance(programs, list) and len(programs) == 2
    for program in [*programs, found["key_server"]]:
        assert program["child"]["CapEff"] == "0000000000000000" or os.getuid() != 0
        assert program["child"]["Seccomp"] == "2" and program["child"]["NoNewPrivs"] == "1"
        assert {program["child"][name].split(" ")[0] for name in ("fork", "open", "socket", "kill")} == {"refused"}
    assert found["wall"] is (found["kind"] == "docker")
    if found["kind"] == "docker":
        assert found["missing"] in ([], ["user_namespace"])
        assert found["interfaces"] == ["lo"] and found["writable_mounts"] == [] and found["pid"] == 1
