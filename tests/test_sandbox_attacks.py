"""The attack catalogue on every backend: the stated verdict, the next program unharmed, nothing left behind."""

import collections
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.core.judge import AnswerItem, TaskItem, compare_literal, judge_answers, judge_tasks
from stages.core.local_sandbox import LocalSandbox
from stages.core.sandbox import Job, Sandbox, SandboxUnavailable
from stages.core.values import canonical, parse_value
from tests.attacks.catalogue import ATTACKS, Attack
from tests.attacks.controls import CONTROLS

DATA = Path(__file__).resolve().parents[2] / "shared" / "benchdata"
HONEST = Job("def f(x):\n    return [x, {x: (x,)}]", "'ok'", True)
needs_data = pytest.mark.skipif(not DATA.exists(), reason="../shared/benchdata is not here")


@pytest.fixture(scope="module", params=[pytest.param("docker", marks=pytest.mark.docker), "local"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    made = make(request.param)
    yield made
    made.close()


def make(kind: str) -> Sandbox:
    if kind == "local":
        return LocalSandbox(2)
    from stages.core.docker_sandbox import DockerSandbox

    try:
        return DockerSandbox(containers=2)
    except SandboxUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def wrong(sandbox: Sandbox, attacks: list[Attack]) -> list[str]:
    """What came out wrong, as text; every attack is followed by an honest program."""
    jobs = [job for attack in attacks for job in (Job(attack.program, attack.input, True), HONEST)]
    verdicts = list(sandbox.run(jobs))
    found = []
    for number, attack in enumerate(attacks):
        verdict, after = verdicts[2 * number : 2 * number + 2]
        word = "refused" if verdict.text == "'refused'" else str(verdict.status)
        if word not in attack.want:
            found.append(f"{attack.row} {attack.name}: {word} ({verdict.text or verdict.detail}), not {sorted(attack.want)}")
        if after.text != "['ok', {'ok': ('ok',)}]":
            found.append(f"{attack.row} {attack.name}: the next program got {after}")
    return found


def test_attacks_get_their_verdicts(sandbox: Sandbox) -> None:
    assert wrong(sandbox, [attack for attack in ATTACKS if not attack.slow]) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_slow_attacks_and_repeats(sandbox: Sandbox) -> None:
    for _ in range(3):
        assert wrong(sandbox, ATTACKS) == []


def test_one_busy_loop_ends_in_time(sandbox: Sandbox) -> None:
    assert wrong(sandbox, [attack for attack in ATTACKS if attack.row in ("1", "5")]) == []


def test_honest_programs_are_valid(sandbox: Sandbox) -> None:
    verdicts = list(sandbox.run(Job(program, text, True) for program, text, _ in CONTROLS))
    found = [
        (program, verdict) for (program, _, output), verdict in zip(CONTROLS, verdicts, strict=True) if verdict.text != output
    ]
    assert found == []


@needs_data
def test_cruxeval_gold_pairs(sandbox: Sandbox) -> None:
    """Every pair whose input is written as literals is valid with the stated output; the six others are named `unparsed`."""
    rows = [json.loads(line) for line in (DATA / "extra" / "cruxeval.jsonl").read_text().splitlines()]
    verdicts = list(judge_tasks(sandbox, (TaskItem(row["code"], (row["input"],)) for row in rows)))
    assert collections.Counter(str(verdict.status) for verdict in verdicts) == {"valid": 394, "unparsed": 6}
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.status == "valid":
            assert verdict.values == (canonical(parse_value(row["output"])),), row["id"]
    good = [(row, verdict) for row, verdict in zip(rows, verdicts, strict=True) if verdict.status == "valid"]
    answers = [
        AnswerItem(
            kind,
            row["code"],
            (row["input"],),
            verdict.values,
            {"deduction": row["output"], "abduction": row["input"]}.get(kind, row["code"]),
        )
        for row, verdict in good
        for kind in ("deduction", "abduction", "induction")
    ]
    assert all(judgement.correct for judgement in judge_answers(sandbox, answers))


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_azr_seed_rows_are_reproducible_or_refused(sandbox: Sandbox) -> None:
    """Rows with cut outputs, several lines, set order or foreign modules are refused; a valid row's value is its stated one."""
    for path in sorted((DATA / "azr_seeds").glob("*_seed_io.jsonl")):
        if "code_f" in path.name:
            continue
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        verdicts = list(
            judge_tasks(sandbox, (TaskItem("\n".join([*row["imports"], row["snippet"]]), (row["input"],)) for row in rows))
        )
        refused = [str(verdict.status) for verdict in verdicts if verdict.status != "valid"]
        assert len(refused) <= 0.17 * len(rows), (path.name, collections.Counter(refused))  # keywords as inputs, foreign modules
        pairs = [(row["output"], verdict) for row, verdict in zip(rows, verdicts, strict=True) if verdict.status == "valid"]
        stated = collections.Counter(compare_literal(output, verdict.values[0]).status for output, verdict in pairs)
        assert stated["wrong"] <= 2 and stated["unparsed"] <= 6, (path.name, stated)  # outputs cut, empty, or of a set order


def test_attestation_names_what_is_missing(sandbox: Sandbox) -> None:
    found = sandbox.attestation()
    programs = found["program"]
    assert isinstance(programs, list) and len(programs) == 2
    for program in programs:
        assert program["child"]["CapEff"] == "0000000000000000" or os.getuid() != 0
        assert program["child"]["Seccomp"] == "2" and program["child"]["NoNewPrivs"] == "1"
        assert {program["child"][name].split(" ")[0] for name in ("fork", "open", "socket", "kill")} == {"refused"}
    if found["kind"] == "docker":
        assert found["missing"] in ([], ["user_namespace"])
        assert found["interfaces"] == ["lo"] and found["writable_mounts"] == [] and found["pid"] == 1
