"""What honest programs compute inside the sandbox is what the same interpreter computes outside, or refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from stages.core.sandbox.local import LocalSandbox
from stages.core.sandbox.protocol import IMAGE, Job, Sandbox, Verdict
from stages.core.sandbox.verdicts import needs_modules
from stages.core.values.canonical import canonical, parse_value
from tests.honest_programs.codecs import CODECS, ENCODE, EVERY_CHARACTER, TEXTS
from tests.honest_programs.library import PROGRAMS, REFUSED

# A process a program, as inside: what one leaves behind in a module the next must not see. An exception is written as `!`.
OUTSIDE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
for line in sys.stdin:
    program, given = json.loads(line)
    read, write = os.pipe()
    if os.fork() == 0:
        sys.stdout = open(os.devnull, "w")
        try:
            scope, inputs = {"__name__": "program"}, {"nan": float("nan"), "inf": float("inf")}
            exec(program, scope)
            text = ascii(eval(f"given({given})", inputs | {"given": scope["f"]}))
        except Exception as error:
            text = "!" + type(error).__name__
        with open(write, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(write)
    with open(read) as file:
        print(json.dumps(file.read()), flush=True)
    os.wait()
"""
SURROUNDINGS = {"TZ": "UTC", "LC_ALL": "C.UTF-8"}
Run = tuple[str, str]  # program and input
UNFORESEEN: list[tuple[str, str, str | None]] = [
    ("def f(x): return bytes(x, 'shift_jis')", "'時刻'", "b'\\x8e\\x9e\\x8d\\x8f'"),
    ("def f(x): return getattr(x, 'enc' + 'ode')('ascii', 'name' + 'replace')", "'•'", "b'\\\\N{BULLET}'"),
    ("def f(x): return {str(x, 'cp500'), str(x, 'cp037')}", "b'J\\x9a'", None),
    (
        "def f(x):\n    try: return bytes(x, 'no_such')\n    except LookupError as e: return str(e)",
        "'a'",
        "'unknown encoding: no_such'",
    ),
]


@pytest.fixture(scope="module", params=[pytest.param("docker", marks=pytest.mark.docker), "local"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if request.param == "local":
        made: LocalSandbox = LocalSandbox(2)
    else:
        from stages.core.sandbox.docker import DockerSandbox

        made = DockerSandbox(containers=2)  # type: ignore[assignment]
    yield made
    made.close()


def outside(kind: str, runs: Sequence[Run]) -> list[str]:
    """What the interpreter that this kind of sandbox runs returns without it, as `ascii` writes it."""
    command = [sys.executable]
    if kind == "docker":
        variables = [word for name, value in SURROUNDINGS.items() for word in ("-e", f"{name}={value}")]
        command = ["docker", "run", "--rm", "-i", "--network", "none", *variables, "--entrypoint", "/python", IMAGE]
    asked = "".join(json.dumps(run) + "\n" for run in runs)
    environment = SURROUNDINGS | {"PATH": os.environ["PATH"]}
    done = subprocess.run([*command, "-I", "-B", "-c", OUTSIDE], input=asked, env=environment, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(runs), done.stderr
    return answers


def apart(sandbox: Sandbox, runs: Sequence[Run], validate: bool) -> list[tuple[Run, str, Verdict]]:
    """The runs whose value inside is not the one outside, and those refused inside alone without being on the list."""
    expected = outside(str(sandbox.attestation()["kind"]), runs)
    found = []
    for run, text, verdict in zip(runs, expected, sandbox.run(Job(*run, validate) for run in runs), strict=True):
        if verdict.status == "valid":
            same = not text.startswith("!") and canonical(parse_value(text, limit=1 << 20)) == verdict.value
        else:
            same = text.startswith("!") or any(mark in run[0] for mark in REFUSED)
        if not same:
            found.append((run, text, verdict))
    return found


@pytest.mark.timeout(300)
def test_the_standard_library_gives_the_same_values(sandbox: Sandbox) -> None:
    runs = [(program, given) for program, inputs in PROGRAMS for given in inputs]
    assert apart(sandbox, runs, True) == []


@pytest.mark.timeout(300)
def test_every_codec_gives_the_same_bytes_and_texts(sandbox: Sandbox) -> None:
    assert len(CODECS) > 110 and {"shift_jis", "cp037", "bz2_codec", "utf_7"} <= set(CODECS)
    texts = ascii(list(TEXTS))
    runs = [(ENCODE, f"{codec!r}, {texts}") for codec in CODECS]
    runs += [(EVERY_CHARACTER, repr(codec)) for codec in CODECS if codec not in ("idna", "punycode")]  # they take n² time
    assert apart(sandbox, runs, False) == []


def test_a_program_that_comes_to_an_unforeseen_module_is_run_where_it_is(sandbox: Sandbox) -> None:
    """Nothing in these texts says that they need one: a lean server begins, a full one answers, and the lean one stays usable."""
    assert not any(needs_modules(program) for program, *_ in UNFORESEEN)
    jobs = [Job(program, given, validate) for program, given, _ in UNFORESEEN for validate in (False, True)]
    between = Job("def f(x): return x + 1", "1", True)
    verdicts = list(sandbox.run([part for job in jobs for part in (job, between)]))
    assert {verdict.text for verdict in verdicts[1::2]} == {"2"}
    wanted = [text for _, _, text in UNFORESEEN for _ in range(2)]
    assert [verdict.status for verdict in verdicts[::2]] == ["valid"] * len(jobs), verdicts
    assert [verdict.text for verdict, text in zip(verdicts[::2], wanted, strict=True) if text] == [
        text for text in wanted if text
    ]
    assert all(verdict.program_key for verdict, job in zip(verdicts[::2], jobs, strict=True) if job.validate)


def test_the_clock_is_hidden_from_every_way_to_it_in_datetime(sandbox: Sandbox) -> None:
    program = (
        "from datetime import datetime, date, timezone\n"
        "def f(kind, name, *zone):\n"
        "    kind = {'datetime': datetime, 'date': date}[kind]\n"
        "    return getattr(kind, name)(*[timezone.utc for _ in zone]).year"
    )
    inputs = ["'datetime', 'now'", "'datetime', 'utcnow'", "'datetime', 'today'", "'date', 'today'", "'datetime', 'now', 'utc'"]
    verdicts = list(sandbox.run([Job(program, given, True) for given in inputs]))
    assert [str(verdict.status) for verdict in verdicts] == ["nondeterministic"] * len(inputs), verdicts
