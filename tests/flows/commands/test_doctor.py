"""The doctor names what is missing and what mends it, ends with 0 or 3, and never with a traceback."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.commands import doctor
from flows.store.file_store import FileStore

ROOT = Path(__file__).resolve().parents[3]
NO_DOCKER = {"DOCKER_HOST": "tcp://127.0.0.1:9"}  # the discard port: refuses at once


def run(*options: str, store: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The doctor in a process of its own, as the command runs it."""
    command = [sys.executable, *options, "-m", "flows.commands.doctor", *([store] if store else [])]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


def line(report: str, name: str) -> str:
    return next(line for line in report.splitlines() if f" {name}: " in line)


def test_a_silent_docker_is_named_with_its_mend(tmp_path):
    found = run(store=str(tmp_path), **NO_DOCKER)
    assert found.returncode == 3 and found.stderr == ""
    assert line(found.stdout, "Docker").startswith("✗ Docker: the daemon does not answer")
    assert line(found.stdout, "Docker").endswith("(mend: unset DOCKER_HOST)")
    assert found.stdout.splitlines()[-1].startswith("Not ready: ")


def test_a_plain_python_is_told_to_run_setup(tmp_path):
    found = run("-S", store=str(tmp_path), **NO_DOCKER)
    assert found.returncode == 3 and found.stderr == ""
    for name in ("packages", "torch", "Docker"):
        assert line(found.stdout, name).startswith("✗"), name
        assert line(found.stdout, name).endswith("(mend: make setup)"), name
    assert found.stdout.splitlines()[-1] == "Not ready: packages, torch, Docker, store guarantees. Run: make setup"


def test_a_terminal_without_unicode_gets_ascii(tmp_path):
    found = run(store=str(tmp_path), PYTHONIOENCODING="ascii", **NO_DOCKER)
    assert found.returncode == 3 and found.stderr == ""
    assert "ok Python: " in found.stdout and "NO Docker: " in found.stdout


@pytest.mark.parametrize("store", ["/dev/null/runs", "ftp://host/runs", "file:///proc/runs"])
def test_a_store_that_cannot_be_written_is_named(store):
    found = {finding.name: finding for finding in doctor.examine(store)}["store"]
    assert not found.good and found.mend and not found.optional


def test_a_store_with_a_space_in_its_name_is_the_folder_itself(tmp_path):
    (tmp_path / "my runs").write_text("a file, in which no run can be")
    found = {finding.name: finding for finding in doctor.examine((tmp_path / "my runs").as_uri())}["store"]
    assert not found.good and "my runs" in found.detail


def test_a_store_that_is_not_there_yet_is_fine_and_stays_so(tmp_path):
    found = {finding.name: finding for finding in doctor.examine(str(tmp_path / "deep" / "runs"))}["store"]
    assert found.good and "GB free" in found.detail
    assert list(tmp_path.iterdir()) == []


def test_the_guarantees_of_a_named_store_are_tested(tmp_path):
    found = {finding.name: finding for finding in doctor.examine(str(tmp_path / "runs"))}
    tested = [name for name in found if name.startswith("store: ")]
    assert {"store: never overwritten", "store: one of many writers wins", "store: lease and fence"} <= set(tested)
    assert all(found[name].good for name in tested) and list(tmp_path.iterdir()) == []
    assert not any(finding.name.startswith("store: ") for finding in doctor.examine(None))


def test_a_store_that_breaks_a_guarantee_is_not_ready(tmp_path, monkeypatch, capsys):
    def overwrite(self: FileStore, uri: str, data: bytes) -> str:
        place = self.root / uri
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return "written"

    monkeypatch.setattr(FileStore, "create", overwrite)
    assert doctor.doctor(str(tmp_path)) == 3
    said = capsys.readouterr().out
    assert "✗ store: never overwritten: a second write under one name was accepted\n" in said
    assert "store: never overwritten" in said.splitlines()[-1]


def test_what_is_optional_does_not_fail_the_machine(capsys):
    lacks = [finding for finding in doctor.examine(None) if finding.optional]
    assert {finding.name for finding in lacks} <= {"torch", "vLLM"}
    assert all(doctor._line(finding, ("✓", "✗", "○")).startswith("○") for finding in lacks if not finding.good)


def test_the_image_digest_is_the_one_that_setup_makes():
    script = """. infra/setup/lib.sh; digest $(find containers/sandbox -type f ! -name '*.pyc' | LC_ALL=C sort)"""
    made = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert doctor._digest("containers/sandbox") == made


@pytest.mark.docker
def test_a_machine_that_was_set_up_is_ready(tmp_path):
    found = run(store=str(tmp_path))
    assert found.returncode == 0, found.stdout
    assert found.stdout.splitlines()[-1] == "Ready."
    assert all(line.startswith(("✓", "○")) for line in found.stdout.splitlines()[:-1])


def test_cards_that_do_not_answer_are_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor, "CARDS_SECONDS", 0.1)
    [found] = doctor._torch()
    assert not found.good and found.optional and found.mend == "sudo nvidia-smi -pm 1"
    assert found.detail.endswith("nvidia-smi did not answer within 0.1 s")


@pytest.mark.parametrize(("free", "good"), [(64e6, False), (8e9, True)])
def test_small_shared_memory_is_named_with_what_vllm_uses_instead(tmp_path: Path, monkeypatch, free: float, good: bool) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    [found] = doctor._shared_memory(tmp_path)
    assert (found.good, found.optional) == (good, True) and f"{free / 1e9:.2f} GB free in {tmp_path}" in found.detail
    assert found.detail.endswith(f"go through {tempfile.gettempdir()}, which is slower") != good
    assert list(doctor._shared_memory(tmp_path / "missing")) == []
