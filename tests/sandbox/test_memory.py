"""What a template does to its memory before it serves: a program sees nothing of it, and a fork copies fewer pages."""

import json
import subprocess
from pathlib import Path

import pytest

from stages.core.sandbox.docker import IMAGE

pytestmark = pytest.mark.docker
RUNNER = Path(__file__).resolve().parents[2] / "containers/sandbox/runner"
SCRIPT = """
import json, os, sys
sys.path.insert(0, "/runner")
import ctypes, gc
import memory

PROGRAM = "def f(x):\\n    return sorted([str(i) * 3 for i in range(x)], key=len), {i: [i] for i in range(x)}"


def work():
    scope = {}
    exec(compile(PROGRAM, "program", "exec"), scope)
    try:
        scope["f"]("no number")
    except TypeError:
        return repr(scope["f"](40))


def faults():
    times = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            work()
            os._exit(0)
        times.append(os.wait4(child, 0)[2].ru_minflt)
    return sorted(times)[2]


def shared():
    pass


for _ in range(50):
    before = work()
first = faults()
memory.join_areas()
memory.move_text()
memory.settle()
held = None, shared, shared.__code__, PROGRAM, work.__code__.co_consts
counts = [ctypes.c_uint32.from_address(id(item)).value for item in held]
print(json.dumps({
    "same": work() == before, "before": first, "after": faults(), "counts": counts, "version": sys.version_info[:2],
    "collecting": gc.isenabled(), "areas": open("/proc/self/maps").read(), "huge": memory._huge_bytes(),
}))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    command = ["docker", "run", "--rm", "--network", "none", "-v", f"{RUNNER}:/runner:ro", "-e", "PYTHONMALLOC=malloc"]
    return json.loads(
        subprocess.run(
            [*command, "--entrypoint", "/python", IMAGE, "-s", "-S", "-B", "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def test_the_interpreter_works_as_before(found: dict) -> None:
    assert found["same"]
    assert not found["collecting"]


def test_what_the_template_holds_has_the_count_of_none_where_that_is_immortal(found: dict) -> None:
    assert (len(set(found["counts"])) == 1) == (found["version"] >= [3, 12])


def test_a_fork_copies_and_maps_fewer_pages(found: dict) -> None:
    assert found["after"] < 0.85 * found["before"], found


def test_no_text_is_writable_afterwards(found: dict) -> None:
    assert not [line for line in found["areas"].splitlines() if "wx" in line.split()[1]]


def test_a_library_takes_two_areas_at_most(found: dict) -> None:
    named = [line.split()[5] for line in found["areas"].splitlines() if len(line.split()) > 5 and ".so" in line.split()[5]]
    assert named and max(named.count(name) for name in named) <= 2, found["areas"]


def test_text_lies_on_huge_pages_where_the_kernel_gives_them(found: dict) -> None:
    if found["huge"]:
        assert not [
            line for line in found["areas"].splitlines() if "r-xp" in line and line.rpartition("/")[2].startswith("libc.so")
        ]
