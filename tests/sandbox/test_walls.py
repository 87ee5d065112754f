"""Which walls stand is read back and said: user namespaces, shared ids, and the local backend, which is no wall."""

import contextlib
import io
import json
import subprocess
import sys
from ast import literal_eval
from dataclasses import replace
from pathlib import Path

import pytest

from flows.audit.attack import attack, chosen
from flows.backend import Backend
from flows.config import PROJECT, load
from stages.core.sandbox.local import NOTICE, RUNNER, LocalSandbox
from tests.sandbox.test_faults import ADD, SUMS, texts


def test_the_local_backend_says_in_manifests_and_on_the_terminal_that_it_is_not_a_wall() -> None:
    backend = Backend(load("smoke", ["sandbox.kind=local"]))
    with contextlib.closing(backend):
        recorded = backend.walls()
    assert (recorded["kind"], recorded["wall"]) == ("local", False) and "container" in recorded["missing"]  # type: ignore[operator]
    command = [sys.executable, "-m", "flows.cli", "verify", "--sandbox", "local"]
    task = json.dumps({"id": 1, "program": "def f(x):\n    return x", "input": "1"})
    done = subprocess.run(command, cwd=PROJECT, input=task + "\n", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["status"] == "valid" and done.stderr.count(NOTICE) == 1


def test_the_command_says_which_walls_held_and_ends_with_one_where_one_did_not() -> None:
    def populora(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows.cli", "attack", "--sandbox", "local", *arguments]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)

    done = populora("43", "77", "57")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and [line.split()[:2] for line in lines[:3]] == [["held", "43"], ["held", "57"], ["held", "77"]]
    assert lines[-4:-1] == ["tampering: 1 of 1 held", "forging: 2 of 2 held", "answers: 11 of 11 held"]
    assert lines[-1].startswith("walls not in place (local): container")
    unknown = populora("43", "999")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1) and "999" in unknown.stderr


def test_a_wall_that_fell_is_lost_and_the_code_is_one() -> None:
    """An attack that may do nothing: whatever it does is then more."""
    (network,) = chosen(["43"], False)
    out = io.StringIO()
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        code = attack(sandbox, out, [replace(network, want=frozenset())], True)
    first, *_, last = [json.loads(line) for line in out.getvalue().splitlines()]
    assert code == 1 and not first["held"] and (last["attacks"], last["lost"]) == (12, 1) and last["walls"]["wall"] is False


@pytest.mark.docker
def test_manifests_of_docker_say_that_it_is_a_wall_and_what_is_missing() -> None:
    backend = Backend(load("smoke", []))
    with contextlib.closing(backend):
        recorded = backend.walls()
    assert recorded["wall"] is True and set(recorded["missing"]) <= {"user_namespace"}  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("mapped", "wanted", "first"),
    [
        ("0 0 4294967295\n", 70_000_000, 70_000_000),  # no user namespace
        ("0 100000 65536\n", 70_000_000, None),  # remapped
        ("0 1000 1\n1 100000 65536\n", 70_000_000, None),  # rootless
        ("0 100000 65536\n", 40_000, 40_000),
        ("0 1000 1\n", 70_000_000, 0),  # nothing but its own
        ("", 70_000_000, 0),
    ],
)
def test_program_uids_are_mapped_ones(mapped: str, wanted: int, first: int | None, tmp_path: Path) -> None:
    (tmp_path / "uid_map").write_text(mapped)
    code = "import sys, uids; print([uids.first_mapped(int(sys.argv[1]) + 64 * n, 64, sys.argv[2]) for n in range(20)])"
    command = [sys.executable, "-c", code, str(wanted), str(tmp_path / "uid_map")]
    chosen = literal_eval(subprocess.run(command, cwd=RUNNER.parent, capture_output=True, text=True, check=True).stdout)
    if first == 0:
        assert chosen == [None] * 20
    elif first is not None:
        assert chosen == [first + 64 * number for number in range(20)]
    else:
        assert len(set(chosen)) == 20 and all(uid >= 1_000 and uid + 64 <= 65_536 for uid in chosen)


USER_NAMESPACE = """
import ctypes, os, sys
parent, ready, go = os.getpid(), os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(ready[0], 1)
    for kind in ("uid", "gid"):
        with open(f"/proc/{parent}/{kind}_map", "w") as file:
            file.write(sys.argv[1])
    os.write(go[1], b"x")
    os._exit(0)
assert ctypes.CDLL(None).unshare(0x10000000) == 0
os.write(ready[1], b"x")
assert os.wait()[1] == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""


def in_user_namespace(mapping: str) -> LocalSandbox:
    """A sandbox whose supervisor is root of a user namespace with that mapping; skips where none can be made."""
    sandbox = LocalSandbox(1)
    own = ["unshare", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    sandbox.prefix = [sys.executable, "-c", USER_NAMESPACE, mapping, *own]
    tried = subprocess.run([*sandbox.prefix, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no such user namespace here: {tried.stderr.strip().splitlines()[-1:]}")
    return sandbox


def test_a_user_namespace_with_few_ids_gives_every_program_an_own_one() -> None:
    sandbox = in_user_namespace("0 0 65536")
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD[:20])) == SUMS[:20]
        attested = sandbox.attestation()
    assert attested["missing"] == ["container", "own_filesystem", "memory_cgroup", "pids_cgroup"]
    assert 1_000 <= attested["uids"][0] < 65_536  # type: ignore[index]


def test_a_user_namespace_of_one_id_leaves_programs_no_capability_and_says_what_they_can_do() -> None:
    """This one's only id is root's outside, too, which the limit on processes does not hold: that is said."""
    sandbox = in_user_namespace("0 0 1")
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD[:20])) == SUMS[:20]
        attested = sandbox.attestation()
    assert {"own_uid", "no_fork"} <= set(attested["missing"])  # type: ignore[call-overload]
    key_server: dict[str, dict[str, str]] = attested["key_server"]  # type: ignore[assignment]
    assert key_server["child"]["CapEff"] == "0" * 16 and key_server["missing"] == ["own_uid"]
