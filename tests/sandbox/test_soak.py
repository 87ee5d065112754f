"""A hundred thousand programs in random order through one pool: memory stays flat, and nothing is left behind."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.audit.attack_catalogue import ATTACKS
from stages.core.sandbox.protocol import Job
from tests.honest_programs.controls import CONTROLS

PROGRAMS = 100_000


def jobs(count: int, draw: random.Random) -> Iterator[tuple[Job, str | None]]:
    """Mostly small programs of their own, with the honest controls and the quick attacks strewn among them; known outputs."""
    quick = [attack for attack in ATTACKS if not attack.slow and "memory" not in attack.want]
    for number in range(count):
        kind = draw.random()
        if kind < 0.9:
            yield Job(f"def f(x):\n    return [x * {number}, 'a' * (x % 7)]", "3", draw.random() < 0.3), f"[{3 * number}, 'aaa']"
        elif kind < 0.97:
            program, text, output = draw.choice(CONTROLS)
            yield Job(program, text, True), output
        else:
            attack = draw.choice(quick)
            yield Job(attack.program, attack.input, True), None


def resident_kib() -> int:
    """This process's resident memory."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))


def children() -> list[str]:
    """Processes that this one started and that have not been waited for."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_long_run_keeps_its_memory_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    import docker

    from stages.core.sandbox.docker import LABEL, DockerSandbox

    descriptors, before = len(os.listdir("/proc/self/fd")), children()
    sandbox = DockerSandbox(containers=2, recycle_after=2_000)
    owned = {"label": f"{LABEL}.owner={sandbox.owner}"}
    known: list[str | None] = []
    sizes, most = [], 0
    client = docker.from_env()

    def source() -> Iterator[Job]:
        for job, output in jobs(PROGRAMS, random.Random(1)):
            known.append(output)
            yield job

    for number, verdict in enumerate(sandbox.run(source())):
        output, known[number] = known[number], None
        assert output is None or verdict.text == output, (number, verdict)
        if number % (PROGRAMS // 20) == PROGRAMS // 20 - 1:
            sizes.append(resident_kib())
            most = max(most, len(client.containers.list(all=True, sparse=True, filters=owned)))
            with capsys.disabled():
                print(f"\n{number + 1} programs, {sizes[-1]} KiB, {sandbox.counts}", flush=True)
    settled = sizes[4:]
    assert max(settled) <= 1.05 * min(settled), sizes
    assert 1 <= most <= 4, most  # two, and two that are on their way out
    sandbox.close()
    assert client.containers.list(all=True, sparse=True, filters=owned) == []
    client.close()
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # the folder's own
