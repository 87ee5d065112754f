"""Metrics outside the runs: GPUs of this machine, and flow runs waiting at the Prefect server.

Both are optional. Without `nvidia-smi` there are no GPU metrics, and without PREFECT_API_URL no queue. A server that does not
answer in time gives one metric that reports it. Each source is queried at most every SECONDS, and a scrape waits at most PATIENCE
for all that it asks a source.
"""

import csv
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from flows.prefect_password import authorization

SECONDS, PATIENCE = 10.0, 3.0
STATES = ("Scheduled", "Late", "AwaitingConcurrencySlot", "Pending", "Running", "Paused")
_CARDS = ("nvidia-smi", "--query-gpu=index,memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits")

Number = tuple[str, str, dict[str, str], float]


class MachineMetrics:
    """The numbers of this machine and of its Prefect server, each cached for SECONDS."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, list[Number]]] = {}

    def numbers(self) -> Iterator[Number]:
        """(name, description, labels, value)."""
        yield from self._fresh("cards", cards)
        if api := os.environ.get("PREFECT_API_URL", ""):
            yield from self._fresh("queue", lambda: queue(api))

    def _fresh(self, name: str, ask: Callable[[], list[Number]]) -> list[Number]:
        asked, found = self._kept.get(name, (float("-inf"), []))
        if time.monotonic() - asked > SECONDS:
            found = ask()
            self._kept[name] = (time.monotonic(), found)
        return found


def cards() -> list[Number]:
    """Return memory and utilization of each NVIDIA GPU of this machine; nothing if there is none."""
    if shutil.which(_CARDS[0]) is None:
        return []
    try:
        answer = subprocess.run(_CARDS, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found: list[Number] = []
    for row in csv.reader(answer.splitlines(), skipinitialspace=True):
        if len(row) != 4:
            continue
        card = {"card": row[0]}
        for (name, says, factor), text in zip(_OF_CARDS, row[1:], strict=True):
            if text.replace(".", "", 1).isdigit():  # a GPU may report [N/A]
                found.append((name, says, card, float(text) * factor))
    return found


_OF_CARDS = (
    ("populora_gpu_memory_used_bytes", "Memory in use on a GPU of this machine.", 2.0**20),
    ("populora_gpu_memory_bytes", "Memory of a GPU of this machine.", 2.0**20),
    ("populora_gpu_use", "Share of the last sampling period in which a GPU of this machine was busy.", 0.01),
)


def queue(api: str) -> list[Number]:
    """Return the flow runs of each work pool by state, from the Prefect API at `api`, if all is answered within PATIENCE."""
    says, until = "Whether the Prefect server answers.", time.monotonic() + PATIENCE
    try:
        pools = [str(pool["name"]) for pool in _asked(f"{api}/work_pools/filter", {}, until)]
        found: list[Number] = [("populora_prefect_up", says, {}, 1.0)]
        for pool in sorted(pools):
            for state in STATES:
                count = _asked(
                    f"{api}/flow_runs/count",
                    {"work_pools": {"name": {"any_": [pool]}}, "flow_runs": {"state": {"name": {"any_": [state]}}}},
                    until,
                )
                labels = {"pool": pool, "state": state.lower()}
                found.append(("populora_queue_flow_runs", "Unfinished flow runs of a work pool.", labels, float(count)))
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError):
        return [("populora_prefect_up", says, {}, 0.0)]
    return found


def _asked(url: str, question: dict[str, object], until: float) -> Any:
    """Return the answer. Raises OSError where there is none at that time of the monotonic clock."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(url)
    headers = {"Content-Type": "application/json"} | authorization()
    request = urllib.request.Request(url, json.dumps(question).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=left) as answer:
        return json.loads(answer.read(1_000_000))
