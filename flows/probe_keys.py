"""Program keys of the probe, by the sandbox's own code on this side: its programs come from our generator, not from a model."""

import json
import subprocess
import sys
from collections.abc import Sequence

from flows.config import PROJECT

RUNNER = PROJECT / "containers" / "sandbox" / "runner"
KEYS = (
    "import ast, json, sys; from key import program_key; "
    "print(json.dumps([program_key(ast.parse(program)) for program in json.load(sys.stdin)]))"
)


def probe_keys(programs: Sequence[str]) -> frozenset[str]:
    """Keys of these programs, in a process of their own, since the runner's modules are no package."""
    done = subprocess.run(
        [sys.executable, "-c", KEYS], input=json.dumps(programs), capture_output=True, text=True, check=True, cwd=RUNNER
    )
    return frozenset(json.loads(done.stdout))
