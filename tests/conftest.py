"""What every test shares: a quiet Prefect on a throw-away home, one test server a run, and skips that are loud under CI.

A test that needs something of the machine says so with a marker (pyproject.toml lists them). Where it is missing the test is
skipped with a reason; under CI (`CI=true`) a skipped `docker` test is a failure, so that the judge is never passed untested.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.core.sandbox.protocol import IMAGE as SANDBOX_IMAGE
from tests.support.ray_nodes import ray_gap

_PREFECT_HOME = Path(tempfile.mkdtemp(prefix="populora-tests-"))
atexit.register(shutil.rmtree, _PREFECT_HOME, ignore_errors=True)
os.environ.update(
    PREFECT_HOME=str(_PREFECT_HOME),
    PREFECT_SERVER_ANALYTICS_ENABLED="false",  # with it on, the server's start sometimes finds its database locked
    PREFECT_LOGGING_LEVEL="WARNING",
    HF_HUB_OFFLINE="1",  # no test may reach for a hub
    MPLBACKEND="Agg",
    POPULORA_COPIES_GB="0",  # no test reads what another one left
    XDG_STATE_HOME=str(_PREFECT_HOME / "state"),  # what tests name is not trusted on the developer's machine
)
os.environ.pop("PREFECT_API_URL", None)  # never talk to the developer's own server
os.environ.pop("POPULORA_PROCESSES", None)  # tests that want several processes say so

REAL_MODEL = "coder-0.5b"
LONG = (("real",), ("flow", "docker", "ray"))
"""Markers of long tests, the longest first."""


def _under_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def _docker_gap() -> str | None:
    """What keeps Docker tests from running here, None when nothing does."""
    import docker

    try:
        client = docker.from_env(timeout=10)
        try:
            client.images.get(SANDBOX_IMAGE)
        finally:
            client.close()
    except docker.errors.ImageNotFound:
        return f"the image {SANDBOX_IMAGE} is missing; run: make setup"
    except docker.errors.DockerException as error:
        return f"Docker does not answer ({error}); run: make setup"
    return None


def _gpu_gap() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no NVIDIA GPU here"


def _real_model() -> Path | str:
    """The folder of a pretrained instruct model, or why there is none here."""
    if named := os.environ.get("POPULORA_REAL_MODEL"):
        folder = Path(named)
        return folder if (folder / "config.json").is_file() else f"POPULORA_REAL_MODEL={named}: no model is in that folder"
    folder = Path.home() / ".cache" / "real-models" / REAL_MODEL
    if (folder / ".whole").is_file():
        return folder
    script = Path(__file__).resolve().parents[2] / "shared" / "tools" / "real-model.sh"
    if not script.is_file():
        return "no real model: set POPULORA_REAL_MODEL to the folder of a pretrained instruct model"
    try:
        done = subprocess.run(
            ["bash", str(script), REAL_MODEL],
            env=os.environ | {"PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=600,
        )
    except subprocess.TimeoutExpired:
        return f"{script.name} {REAL_MODEL} took more than ten minutes"
    if done.returncode:
        return f"{script.name} {REAL_MODEL} failed: {(done.stderr.strip().splitlines() or ['silently'])[-1][:200]}"
    return Path(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of a pretrained instruct model: POPULORA_REAL_MODEL, the one made before, or made now where a script can."""
    found = _real_model()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def docker_gap() -> str | None:
    """Asked once a run."""
    return _docker_gap()


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """One Prefect test server for all flow tests: starting one costs many seconds."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(autouse=True)
def _machine(request: pytest.FixtureRequest) -> None:
    """Gives a marked test what its marker promises, or skips it."""
    if request.node.get_closest_marker("docker") and (gap := request.getfixturevalue("docker_gap")):
        pytest.skip(gap)
    if request.node.get_closest_marker("gpu") and (gap := _gpu_gap()):
        pytest.skip(gap)
    if request.node.get_closest_marker("ray") and (gap := ray_gap()):
        pytest.skip(gap)
    if request.node.get_closest_marker("real"):
        request.getfixturevalue("real_model")
    if request.node.get_closest_marker("flow"):
        request.getfixturevalue("prefect_server")


@pytest.hookimpl(trylast=True)  # when it is known which tests will run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with long tests first, so that several processes end together, and allow for what a test waits for.

    The first flow test also waits for the server's start, the first real one for the model: long on a busy machine.
    """
    ranks: dict[Path, int] = {}
    for item in items:
        ranks[item.path] = min(_rank(item), ranks.get(item.path, len(LONG)))
    items.sort(key=lambda item: ranks[item.path])
    for item in items:
        if item.get_closest_marker("flow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))
        if item.get_closest_marker("real") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))  # the first one may make the model


def _rank(item: pytest.Item) -> int:
    """Return the place of the item's markers in LONG; other tests come last."""
    return next((rank for rank, names in enumerate(LONG) if any(map(item.get_closest_marker, names))), len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in one process, and all files of the real model in the same one: two models at once fight for the cores."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduler(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "real" if "/test_real_" in file else file

    return Scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI a skipped Docker test counts as failed: a green run must mean that the judge was tried."""
    report = yield
    if report.skipped and item.get_closest_marker("docker") and _under_ci() and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr}"
    return report
