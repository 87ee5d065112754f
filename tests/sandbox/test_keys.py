"""The key server: the keys are those of the host's own reading, whatever becomes of the process that makes them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from stages.core.sandbox.link import missing_walls
from stages.core.sandbox.local import RUNNER, LocalSandbox
from stages.core.sandbox.protocol import Job

PROGRAMS = [
    "def f(größe):\n    return größe",
    "def f(x):\n    return '\\N{BULLET}' + '\\d'",
    "def f(x):\n    return x is 1, 'ü'",
    "import math\nclass A:\n    def __init__(self, x):\n        self.x = x\ndef f(x):\n    return {A(x).x, math.pi}",
    "def f(x):\n    return [" + "x + 1, " * 2_000 + "]",
]
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from keys import KeyServer
server = KeyServer({"cpu_seconds": 2.0, "wall_seconds": 10.0, "memory_mb": 256, "uid": 70_000})
rounds = []
for programs in json.load(sys.stdin):
    before = server.pid
    rounds.append([[answer.decode() for answer in server.answers([text.encode() for text in programs])], server.pid != before])
server.kill()
print(json.dumps(rounds))
"""


def program_keys(programs: list[str]) -> list[str]:
    """What the runner's own function makes of the trees, here."""
    code = "import ast, json, sys, key; print(json.dumps([key.program_key(ast.parse(text)) for text in json.load(sys.stdin)]))"
    command, text = [sys.executable, "-W", "ignore", "-c", code], json.dumps(programs)
    done = subprocess.run(command, input=text, cwd=RUNNER.parent, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def answered(folder: Path, rounds: list[list[str]]) -> list[tuple[list[str], bool]]:
    """What a key server of that runner answers, and whether another process was needed for it, round by round."""
    text = json.dumps(rounds)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], input=text, capture_output=True, text=True, check=True)
    return [(answers, other) for answers, other in json.loads(done.stdout)]


def edited(tmp_path: Path, old: str, new: str) -> Path:
    """A copy of the runner whose key server differs in one place."""
    folder = Path(shutil.copytree(RUNNER.parent, tmp_path / "runner", ignore=shutil.ignore_patterns("__pycache__")))
    file = folder / "key_server.py"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    return folder


def test_keys_are_those_that_the_host_would_compute() -> None:
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        verdicts = list(sandbox.run(Job(program, "1", True) for program in PROGRAMS * 10))
    assert [verdict.status for verdict in verdicts] == ["valid"] * len(verdicts)
    assert [verdict.program_key for verdict in verdicts] == program_keys(PROGRAMS) * 10


def test_programs_that_do_not_pass_have_no_key_and_failing_ones_have_one() -> None:
    failing, wrong, banned = "def f(x):\n    return x / 0", "def f(x) return x", "import os\ndef f(x): return x"
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        keys = [verdict.program_key for verdict in sandbox.run(Job(text, "1", True) for text in (failing, wrong, banned))]
        (single,) = sandbox.run([Job(failing, "1", False)])
    assert keys == [*program_keys([failing]), None, None] and single.program_key is None


def test_a_killed_key_server_costs_no_verdict() -> None:
    sandbox, killed = LocalSandbox(1), []
    jobs = [Job(f"def f(x):\n    return x + {number}", "1", True) for number in range(600)]
    with contextlib.closing(sandbox):
        verdicts = []
        for verdict in sandbox.run(jobs):
            verdicts.append(verdict)
            if len(verdicts) in (1, 200):
                killed += _key_servers(sandbox.workers[0].link.process.pid)  # type: ignore[attr-defined]
                os.kill(killed[-1], signal.SIGKILL)
        assert sandbox.counts["workers_lost"] == 0
    assert len(set(killed)) == 2
    assert [verdict.text for verdict in verdicts] == [str(number + 1) for number in range(600)]
    assert [verdict.program_key for verdict in verdicts] == program_keys([job.program for job in jobs])


def _key_servers(above: int) -> list[int]:
    """The processes of that kind below another one."""
    found = []
    for child in Path(f"/proc/{above}/task/{above}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # programs come and go
            found += [int(child)] if b"key_server.py" in Path(f"/proc/{child}/cmdline").read_bytes() else _key_servers(int(child))
    return found


def test_a_text_without_a_key_says_why_and_the_next_has_one() -> None:
    good = "def f(x):\n    return x"
    deep = "def f(x):\n    return " + "+".join(["x"] * 1_200)
    ((answers, other),) = answered(RUNNER.parent, [[good, deep, good]])
    assert answers[0] == answers[2] == "K" + program_keys([good])[0]
    assert answers[1].startswith("URecursionError") and not other


def test_a_text_at_which_two_servers_end_has_no_key(tmp_path: Path) -> None:
    folder = edited(tmp_path, "    try:\n", "    if 'poison' in program:\n        posix._exit(1)\n    try:\n")
    good, bad = "def f(x):\n    return x", "def f(x):\n    return 'poison'"
    (answers, other), (again, _), (many, _) = answered(
        folder, [[good, bad, good, bad, bad, good], [good], [good] * 15 + [bad] + [good] * 16]
    )
    key, none = "K" + program_keys([good])[0], "Uthe syntax tree takes more than the limits allow"
    assert answers == [key, none, key, none, none, key] and other and again == [key]
    assert many == [key] * 15 + [none] + [key] * 16


def test_it_leaves_when_it_has_had_enough_time(tmp_path: Path) -> None:
    text = "def f(x):\n    return [" + "x, " * 5_000 + "]"
    rounds = answered(edited(tmp_path, "_ENOUGH = 1.0", "_ENOUGH = 0.2"), [[text]] * 60)
    assert {answer for answers, _ in rounds for answer in answers} == {"K" + program_keys([text])[0]}
    assert 1 <= sum(other for _, other in rounds) < 60


def test_a_wall_that_the_key_server_lacks_is_named() -> None:
    child = {"Uid": "70001"} | dict.fromkeys(("fork", "open", "socket", "kill", "setuid"), "refused (1)")
    program, server = {"missing": [], "child": child}, {"missing": ["seccomp", "dumpable"], "child": child}
    whole = {"uids": [70_000, 64], "program": [program, {"missing": ["dumpable"], "child": child}], "key_server": server}
    assert missing_walls(whole) == ["dumpable", "seccomp"]
    foreign = {"missing": [], "child": child | {"Uid": "0", "socket": "allowed"}}
    assert missing_walls(whole | {"key_server": foreign}) == ["dumpable", "no_socket", "own_uid"]
    nothing = ["no_fork", "no_kill", "no_open", "no_setuid", "no_socket", "own_uid", "program_walls"]
    assert missing_walls(whole | {"key_server": {}}) == ["dumpable", *nothing]
    assert missing_walls({"uids": [70_000, 64], "key_server": program}) == nothing
