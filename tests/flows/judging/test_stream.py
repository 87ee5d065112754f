"""`populora verify` and `populora grade` on lines that people get wrong: named by number, the rest judged, in a stream."""

import io
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.config import PROJECT
from flows.judging import stream as judge
from flows.judging.line_ids import IdReader
from stages.core.sandbox.local import LocalSandbox
from stages.core.sandbox.protocol import Job, Sandbox, Verdict

TASK = b'{"id": "good", "program": "def f(x): return [x]", "input": "1"}'
ANSWER = b'{"id": "good", "kind": "deduction", "program": "def f(x): return x", "input": "1", "output": "1", "answer": "1"}'
COMMANDS = {"verify": (judge.verify, TASK, "valid"), "grade": (judge.grade, ANSWER, "correct")}
HUGE = b'{"id": 1, "program": "' + b"#" * 50_000_000 + b'"}'
BAD = [
    (b"not json", "not JSON"),
    (b'{"id": 1', "not JSON"),
    (b"[1, 2]", "not a JSON object"),
    (b"7", "not a JSON object"),
    (b'{"program": "def f(): return 1", "input": "", "kind": "deduction", "output": "1", "answer": "1"}', "field id is missing"),
    (b'{"id": 1}', "is missing"),
    (b'{"id": 1, "program": 5, "input": "", "kind": "abduction", "output": "1", "answer": "1"}', "field program is not a string"),
    (HUGE, "longer than"),
    (b'{"id": 1, "program": "def f(): return 1\x00", "input": ""}', "not JSON"),
    (b'{"id": 1, "program": "\xed\xa0\x80", "input": ""}', "not UTF-8"),
    (b"\xff\xfe\x00{", "not UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"id": ' + b"9" * 5000 + b"}", "not JSON"),
]
BAD_ANSWERS = [
    (b'{"id": 1, "kind": "guess", "program": "", "input": "", "output": "1", "answer": "1"}', "field kind is 'guess'"),
    (b'{"id": 1, "kind": null, "answer": "1"}', "field kind is missing"),
    (b'{"id": 1, "kind": "deduction", "output": "1"}', "field answer is missing"),
    (b'{"id": 1, "kind": "deduction", "output": "f(1)", "answer": "1"}', "field output is not a literal"),
    (
        b'{"id": 1, "kind": "deduction", "output": "complex(1%s, 1)", "answer": "1"}' % (b"0" * 400),
        "field output is not a literal",
    ),
    (b'{"id": 1, "kind": "deduction", "output": "1%s+1j", "answer": "1"}' % (b"0" * 400), "field output is not a literal"),
    (b'{"id": 1, "kind": "induction", "examples": [], "answer": "def f(): return 1"}', "field examples is missing or empty"),
    (b'{"id": 1, "kind": "induction", "examples": [["1"]], "answer": "x"}', "not a pair of strings"),
    (b'{"id": 1, "kind": "induction", "examples": [[1, 2]], "answer": "x"}', "not a pair of strings"),
]


class NoSandbox:
    """Fails the test when a program reaches it."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        for job in jobs:
            raise AssertionError(f"a program ran: {job}")
        return iter(())

    def attestation(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = LocalSandbox(1)
    yield made
    made.close()


def judged(
    command: Callable[..., int], sandbox: Sandbox, lines: bytes, folder: Path, strict: bool = False
) -> tuple[int, list[Any]]:
    """Exit code and rows for a file of lines."""
    path, out = folder / "lines.jsonl", io.StringIO()
    path.write_bytes(lines)
    with path.open("rb") as stdin:
        code = command(sandbox, stdin, out, strict)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_lines_are_named_and_the_rest_is_judged(name: str, sandbox: Sandbox, tmp_path: Path) -> None:
    command, good, word = COMMANDS[name]
    bad = [*BAD, *(BAD_ANSWERS if name == "grade" else [])]
    code, rows = judged(command, sandbox, b"\n".join(part for line, _ in bad for part in (line, good)) + b"\n", tmp_path)
    assert code == 0
    assert [row["status"] for row in rows] == ["unparsed", word] * len(bad)
    for number, (row, (_, reason)) in enumerate(zip(rows[::2], bad, strict=True)):
        assert row["detail"].startswith(f"line {2 * number + 1}: ") and reason in row["detail"], row
    assert {row["id"] for row in rows[1::2]} == {"good"}


LONG = "#" * 3_000_000
NAMED = [
    (json.dumps({"id": "long", "program": LONG, "input": "1"}), "long"),
    (json.dumps({"program": LONG, "input": "1", "id": 7}), 7),
    (json.dumps({"program": "\\" * 1_200_000 + '"', "deep": {"id": 1, "x": [{"id": 2}]}, "id": 'a"b\\é'}), 'a"b\\é'),
    (json.dumps({"id": 1, "answer": LONG, "id ": 2, "ID": 3}), 1),
    (json.dumps({"id": [1], "answer": LONG}), None),
    (json.dumps({"answer": LONG}), None),
    (json.dumps({"id": LONG}), None),
    ('{"id": 5, "program": "' + LONG, 5),
    ('{"program": "' + LONG + '", "id": 5', None),
    (json.dumps([{"id": 1}, LONG]), None),
    ('{"id": "broken", "program": "def f(): return 1\x00", "input": ""}', "broken"),
    ('{"id": 12, "program": "cut off', 12),
    ('{"id": 1}{"id": 2}', 2),
    ('{"id": ' + "9" * 5000 + "}", None),
    ('{"id": 3, "program": ' + "[" * 100_000, 3),
    ('{"\\u0069d": 4, "program": 5}', 4),
    ('{"id": {"a": 1}, "program": "", "input": "", "kind": "deduction", "output": "1", "answer": "1"}', None),
    ("," * 1_100_000 + '{"id":1}', None),
]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_line_that_cannot_be_judged_keeps_its_id_wherever_it_can_be_read(name: str, tmp_path: Path) -> None:
    for line, identity in NAMED:
        code, (row,) = judged(COMMANDS[name][0], NoSandbox(), line.encode() + b"\n", tmp_path)
        assert (code, row["id"], row["status"]) == (0, identity, "unparsed"), (line[:60], row)


@given(
    st.dictionaries(st.text(max_size=3) | st.just("id"), st.integers() | st.text(max_size=5) | st.just([{"id": 0}])), st.data()
)
def test_an_id_is_read_wherever_the_bytes_are_cut(row: dict[str, Any], data: st.DataObject) -> None:
    line, reader = json.dumps(row, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass"), IdReader()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(line)), max_size=4)))
    for start, end in zip([0, *cuts], [*cuts, len(line)], strict=True):
        reader.feed(line[start:end])
    assert reader.identity == (None if isinstance(row.get("id"), list) else row.get("id"))


@pytest.mark.parametrize("name", COMMANDS)
def test_strict_ends_before_any_program_ran(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, good, _ = COMMANDS[name]
    bad = [*BAD, *(BAD_ANSWERS if name == "grade" else [])]
    for line, reason in bad:
        code, rows = judged(command, NoSandbox(), b"\n".join([good, good, line, good]), tmp_path, strict=True)
        said = capsys.readouterr().err
        assert (code, rows, said.count("\n")) == (2, [], 1), said[:200]
        assert said.startswith("line 3: ") and reason in said


@pytest.mark.parametrize("name", COMMANDS)
def test_strict_judges_what_is_right(name: str, sandbox: Sandbox, tmp_path: Path) -> None:
    command, good, word = COMMANDS[name]
    code, rows = judged(command, sandbox, b"\n\n".join([good] * 3), tmp_path, strict=True)
    assert (code, [row["status"] for row in rows]) == (0, [word] * 3)


def test_nul_and_surrogates_inside_texts_are_the_program_s_own_fault(sandbox: Sandbox, tmp_path: Path) -> None:
    tasks = [
        {"id": 1, "program": "def f(): return '\x00'", "input": ""},
        {"id": 2, "program": "def f(): return '\ud800'", "input": ""},
        {"id": 3, "program": "def f(x): return x", "input": "'\ud800'"},
        {"id": 4, "program": "def f(x): return x", "input": "'\\ud800\\x00'"},
        {"id": "\ud800", "program": "def f(x): return x", "input": "2"},
    ]
    code, rows = judged(judge.verify, sandbox, "\n".join(map(json.dumps, tasks)).encode(), tmp_path)
    assert code == 0
    assert [row["status"] for row in rows] == ["unparsed", "unparsed", "unparsed", "valid", "valid"]
    assert (rows[3]["output"], rows[4]["id"]) == ("'\\ud800\\x00'", "\ud800")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.timeout(120)
def test_a_verdict_comes_while_the_input_is_still_open(name: str, sandbox: Sandbox) -> None:
    command, good, word = COMMANDS[name]
    read, write = os.pipe()
    shown, showing = os.pipe()
    with open(read, "rb") as stdin, open(showing, "w") as stdout, open(shown) as answers:
        thread = threading.Thread(target=command, args=(sandbox, stdin, stdout))
        thread.start()
        for line, expected in ((good, word), (b"what", "unparsed"), (good, word)):
            os.write(write, line + b"\n")
            assert json.loads(answers.readline())["status"] == expected
        os.close(write)
        thread.join()


@pytest.mark.timeout(300)
def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """Right and bad lines by turns, 40 MB of them: neither lines nor verdicts pile up."""
    row = {"id": 1, "kind": "deduction", "output": "1", "answer": "1", "program": "#" * 4000}
    lines = (json.dumps(row).encode() + b"\n") * 10 + b"bad" * 1000 + b"\n"
    path = tmp_path / "lines.jsonl"
    path.write_bytes(lines * 900 + b"bad\n" * 5000)
    sandbox = LocalSandbox(1)
    with path.open("rb") as stdin, open(os.devnull, "w") as out:
        tracemalloc.start()
        assert judge.grade(sandbox, stdin, out) == 0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    sandbox.close()
    assert peak < 8_000_000, peak


def populora(name: str, lines: bytes, *options: str, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "flows.cli", name, "--sandbox", "local", *options]
    return subprocess.run(command, input=lines, stdout=stdout, stderr=subprocess.PIPE, cwd=PROJECT)


def test_the_command_s_exit_codes() -> None:
    refused = populora("grade", ANSWER + b"\nnot json\n", "--strict")
    said = [line for line in refused.stderr.splitlines() if b"\033[31m" not in line]
    assert (refused.returncode, refused.stdout, len(said)) == (2, b"", 1) and said[0].startswith(b"line 2: not JSON"), said
    with open("/dev/full", "wb") as full:
        done = populora("verify", TASK + b"\n", stdout=full)
    said = [line for line in done.stderr.splitlines() if b"\033[31m" not in line]
    assert (done.returncode, len(said)) == (1, 1) and b"No space left" in said[0], said
