"""A process that starts as the grader of mathematical answers does, on a machine without walls, and then never answers."""

import json
import sys

print(json.dumps({"ready": True, "missing": ["limit_as", "system_call_filter"]}), flush=True)
for _ in sys.stdin:
    pass
