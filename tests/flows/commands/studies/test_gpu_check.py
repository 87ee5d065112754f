"""`populora gpu-check` as a person runs it, on this machine's processor."""

import json
import re
from pathlib import Path

import pytest

from flows.cli import main

SMALL = ["population.teachers=1", "population.students=2", "sandbox.kind=local", "sandbox.containers=1"]
WITHOUT_VLLM = "engine.python=/nowhere/python"


def test_the_page_and_the_file_hold_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found" / "gpu-check.json"
    options = [option for setting in (*SMALL, WITHOUT_VLLM) for option in ("--set", setting)]
    code = main(["gpu-check", "-c", "smoke", *options, "--tokens", "24", "--out", str(out)])
    page = capsys.readouterr().out
    held = json.loads(out.read_text())
    found = {finding["name"]: finding for finding in held["findings"]}
    failed = [finding for finding in held["findings"] if finding["good"] is False]
    assert (code == 0) == (not failed)
    assert [finding for finding in failed if finding["name"] not in ("Docker", "store")] == [], page  # what doctor misses
    assert {"device", "kernel lora_bmm", "rollout", "drift after wake", "update", "generation", "generation's store"} <= set(
        found
    )
    assert set(found["generation"]["figures"]["seconds"]) >= {"propose", "verify", "solve", "grade", "update"}
    assert found["update"]["figures"]["share_of_peak"] > 0
    assert len(page.splitlines()) == len(held["findings"]) + 1
    elapsed = [finding["elapsed_s"] for finding in held["findings"]]
    assert elapsed == sorted(elapsed) and elapsed[-1] > 0
    assert held["config"]["population"]["students"] == 2
    assert found["engine vllm"]["detail"] == "not checked: vLLM is not installed; make vllm"


def test_a_check_that_breaks_is_a_finding_and_the_others_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu-check.json"
    settings = ["population.teachers=1", "population.students=1", "engine.kind=vllm", WITHOUT_VLLM]
    options = [option for setting in settings for option in ("--set", setting)]
    assert main(["gpu-check", "-c", "smoke", *options, "--tokens", "8", "--out", str(out)]) == 1
    page = capsys.readouterr().out
    assert "FAILED  vLLM" in page
    assert "ok      kernel lora_loop" in page
    assert "ok      transformers: drift after wake" in page  # the other engine is checked all the same
    assert "FAILED  generation" in page
    assert re.search(r" checks failed in \d+ (s|min): ", page.splitlines()[-1])


def test_no_tokens_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-check", "--tokens", "0"]) == 2
    assert capsys.readouterr().err == "populora: --tokens must be positive\n"
