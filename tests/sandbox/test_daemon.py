"""What is said when Docker does not answer: where it was expected, why, and what to do; nothing of Python's own."""

import socket
from pathlib import Path

import docker
import pytest

from flows.commands.doctor import _docker
from stages.core.sandbox.daemon import unreachable
from stages.core.sandbox.docker import DockerSandbox
from stages.core.sandbox.local import LocalSandbox, unsuited
from stages.core.sandbox.protocol import SandboxUnavailable


def test_a_socket_that_does_not_exist_is_named_and_so_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxUnavailable) as error:
        DockerSandbox()
    said = "Docker does not answer (unix:///nowhere/docker.sock: no such socket); "
    assert str(error.value) == said + "`populora doctor` prints the command that starts it"
    assert [one.detail for one in _docker()] == ["the daemon does not answer (unix:///nowhere/docker.sock: no such socket)"]


def test_why_a_daemon_does_not_answer_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as left, socket.socket() as held:
        left.bind(str(tmp_path / "left.sock"))  # a daemon that died
        held.bind(("127.0.0.1", 0))
        for address in (f"unix://{tmp_path}/left.sock", f"tcp://127.0.0.1:{held.getsockname()[1]}"):
            monkeypatch.setenv("DOCKER_HOST", address)
            with pytest.raises(docker.errors.DockerException) as error:
                docker.from_env(timeout=5)
            assert unreachable(error.value) == f"{address}: nothing listens there"


def test_the_local_sandbox_is_refused_off_linux_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unsuited("linux") == ""
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SandboxUnavailable, match=r"^the local sandbox needs Linux, this is darwin: use Docker \(docs/install"):
        LocalSandbox()


def test_other_reasons_keep_their_words() -> None:
    there = {"DOCKER_HOST": "unix:///d.sock"}
    assert unreachable(PermissionError(13, "Permission denied"), there) == "unix:///d.sock: this user may not use the socket"
    assert unreachable(TimeoutError("timed out"), there) == "unix:///d.sock: no answer in time"
    assert unreachable(ValueError("bad version\nmore"), {}) == "unix:///var/run/docker.sock: bad version"
