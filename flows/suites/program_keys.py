"""Program keys of the probe and of public suites, by the sandbox's own code on this side: no model wrote these programs."""

import json
import subprocess
import sys
from collections.abc import Sequence

from flows.config import PROJECT

RUNNER = PROJECT / "containers" / "sandbox" / "runner"
KEYS = """
import ast, json, sys
from key import program_key

def key_of(program):
    try:
        return program_key(ast.parse(program))
    except SyntaxError:
        return None

print(json.dumps([key_of(program) for program in json.load(sys.stdin)]))
"""


def probe_keys(programs: Sequence[str]) -> frozenset[str]:
    """Keys of these programs, as a set."""
    return frozenset(key for key in program_keys(programs) if key)


def program_keys(programs: Sequence[str]) -> list[str | None]:
    """Return each program's key, None if it does not parse. Uses a separate process: the runner's modules are not a package."""
    done = subprocess.run(
        [sys.executable, "-c", KEYS], input=json.dumps(programs), capture_output=True, text=True, check=True, cwd=RUNNER
    )
    found: list[str | None] = json.loads(done.stdout)
    return found
