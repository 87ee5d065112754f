"""A Ray cluster of two nodes on this machine, in a network of its own: nobody else reaches it, and it ends with its command.

Ray's servers listen on every address of a machine and ask for no password. A new namespace has none but loopback.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flows.config import PROJECT
from tests.support.fault_tools import namespace_gap
from tests.support.stack import NO_GIT

PORT = 6401
ADDRESS = f"127.0.0.1:{PORT}"
APART = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc")
COMMON = ("--num-cpus=1", "--object-store-memory=100000000", "--block", "--disable-usage-stats")


def ray_gap() -> str | None:
    """What keeps a cluster from running here; None when nothing does."""
    if find_spec("prefect_ray") is None:
        return "the extra ray is not installed: pip install -c constraints.txt -e '.[ray]'"
    return namespace_gap(*APART)


def on_two_nodes(
    gpus: int, commands: Sequence[Sequence[str]], environment: Mapping[str, str], of_nodes: Mapping[str, str] | None = None
) -> list["subprocess.CompletedProcess[str]"]:
    """Runs each command beside two nodes with so many GPUs each: node 0 sees card 0, node 1 card 1.

    The variables are for all, those of `of_nodes` for the nodes alone.
    """
    order = json.dumps({"gpus": gpus, "commands": commands, "of_nodes": of_nodes or {}})
    up = 'ip link set lo up && exec "$0" "$@"'
    command = ["unshare", *APART, "sh", "-c", up, sys.executable, "-m", "tests.support.ray_nodes", order]
    here = (
        os.environ
        | NO_GIT
        | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "PYTHONPATH": str(PROJECT)}
        | environment
    )
    here.pop("PREFECT_API_URL", None)  # the command starts its own server, inside
    done = subprocess.run(command, cwd=PROJECT, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [subprocess.CompletedProcess(*values) for values in json.loads(done.stdout)]


def _node(folder: str, number: int, order: dict[str, Any], *more: str) -> "subprocess.Popen[bytes]":
    gpus: int = order["gpus"]
    seen = {"CUDA_VISIBLE_DEVICES": str(number)} if gpus else {}
    start = "from ray.scripts.scripts import main; main()"  # the script beside the interpreter may belong to another environment
    command = [sys.executable, "-c", start, "start", *more, f"--num-gpus={gpus}", *COMMON]
    with Path(folder, f"node{number}").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | order["of_nodes"] | seen, stdout=log, stderr=log)


def _started(folder: str, number: int, order: dict[str, Any], *more: str) -> "subprocess.Popen[bytes]":
    """A node that says that it has started. Ray gives up after 30 s, which is too soon on a busy machine: then again."""
    for attempt in range(5):
        node, log = _node(folder, number, order, *more), Path(folder, f"node{number}")
        while node.poll() is None:
            if b"Ray runtime started" in log.read_bytes():
                return node
            time.sleep(0.2)
        time.sleep(attempt)
    raise AssertionError(log.read_text()[-3000:])


def main() -> None:
    """Inside the namespace: start the nodes, run the commands one after another, and print what they returned."""
    order = json.loads(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Ray's sockets need a short path
    nodes = [_started(folder, 0, order, "--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}/t")]
    try:
        nodes.append(_started(folder, 1, order, f"--address={ADDRESS}"))
        done = [subprocess.run(command, capture_output=True, text=True) for command in order["commands"]]
        print(json.dumps([[one.args, one.returncode, one.stdout, one.stderr] for one in done]))
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
