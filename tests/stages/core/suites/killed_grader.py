"""A process that starts as the grader of mathematical answers does, and is killed at its first question."""

import json
import os
import signal
import sys

print(json.dumps({"ready": True, "missing": []}), flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
