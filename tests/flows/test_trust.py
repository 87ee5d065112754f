"""A stored run makes this machine execute nothing that its user has not named: no function, interpreter or unwalled sandbox."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.audit.fsck import audit
from flows.choices import sources
from flows.cli import main
from flows.config import PROJECT, ConfigError, RunConfig, apply, dump
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from flows.trust import check, refusals, remember
from tests.support import example_run

RULE = """from pathlib import Path

Path({mark!r}).write_text("executed")

def rule(*given):
    raise ValueError("it was called")
"""
VLLM = ("engine.kind=vllm", "engine.python={python}")


@pytest.fixture(autouse=True)
def _nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def stored(folder: Path, *settings: str, generations: int = 1) -> Run:
    """A run that somebody shared, with what these settings choose."""
    with hold(open_store(str(folder)), "shared") as epoch:
        made = Run(open_store(str(folder)), "shared", epoch)
        config = apply(dump(example_run.CONFIG), ["sandbox.kind=docker", *settings])
        made.describe(dump(config), {"choices": sources(config)}, {})
        return example_run.build(made, generations, config)


def config_of(run: Run) -> RunConfig:
    description = run.history.description()
    assert description is not None
    return apply(description["config"], ())


@pytest.fixture
def evil(tmp_path: Path) -> SimpleNamespace:
    """A function next to a shared run, which leaves a mark when it is loaded."""
    mark, file = tmp_path / "mark", tmp_path / "runs" / "shared" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text(RULE.format(mark=str(mark)))
    return SimpleNamespace(file=file, mark=mark, store=tmp_path / "runs")


@pytest.mark.parametrize("key", ["reward.rule", "learning.estimator"])
def test_fsck_loads_no_function_that_a_shared_run_brought(
    key: str, evil: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(evil.store, f"{key}={evil.file}:rule")
    assert main(["fsck", "shared", "--store", str(evil.store)]) == 0
    assert not evil.mark.exists()
    said = capsys.readouterr().out
    assert said.startswith(f"not checked: rewards and advantages of the samples; {key}: {evil.file}:rule was chosen by")
    assert f"add --functions {evil.file.parent}\n" in said and "shared: 0 findings" in said
    found = audit(Run(run.store, "shared"), [evil.file.parent])
    assert evil.mark.exists() and found.unchecked == ()
    assert "it was called" in found.findings[0].problem


def test_a_plan_loads_no_function_that_a_shared_run_brought(evil: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    stored(evil.store, f"reward.rule={evil.file}:rule")
    words = ["run", "--resume", "shared", "--dry-run", "--set", "generations=9", "--store", str(evil.store)]
    assert main(words) == 2
    assert not evil.mark.exists() and f"add --functions {evil.file.parent}" in capsys.readouterr().err
    assert main([*words, "--functions", str(evil.file.parent)]) == 0 and evil.mark.exists()


def test_fsck_draws_with_no_curriculum_that_a_shared_run_brought(evil: SimpleNamespace) -> None:
    shipped = ["population.teachers=0", "evolution.every=0"]
    run = stored(evil.store, *shipped, f"propose.curriculum={evil.file}:rule")
    (reason,) = audit(run).unchecked
    assert reason.startswith("the draws of the generator; propose.curriculum: ") and not evil.mark.exists()


def test_a_function_that_is_not_here_is_no_finding(evil: SimpleNamespace) -> None:
    run = stored(evil.store, f"reward.rule={evil.file}:rule")
    evil.file.unlink()
    found = audit(run)
    assert found.findings == [] and len(found.unchecked) == 1


def test_fsck_still_checks_the_rest(evil: SimpleNamespace) -> None:
    run = stored(evil.store, f"reward.rule={evil.file}:rule")
    config = config_of(run).model_copy(update={"solve": config_of(run).solve.model_copy(update={"attempts": 7})})
    place = evil.store / "shared" / "run.json"
    text = json.loads(place.read_text())
    place.write_text(json.dumps(text | {"config": dump(config)}))
    assert any("not attempted 7 times" in finding.problem for finding in audit(run).findings)


def test_a_run_is_resumed_without_more_words_once_its_user_has_named_its_function(tmp_path: Path, evil: SimpleNamespace) -> None:
    run = stored(evil.store, f"reward.rule={evil.file}:rule")
    config = config_of(run)
    with pytest.raises(ConfigError, match=rf"^reward\.rule: .* add --functions {evil.file.parent}$"):
        check(config, run)
    check(config, run, [evil.file.parent])
    check(config, run, settings=[f"reward.rule={evil.file}:rule"])
    remember(config, run)
    check(config, run)
    other = tmp_path / "elsewhere"
    check(config, Run(open_store(str(other)), "r"))  # the same file with the same contents
    evil.file.write_text("def rule(event):\n    return 1.0\n")
    with pytest.raises(ConfigError, match="was chosen by the stored run"):
        check(config, run)


def test_functions_of_the_project_are_loaded_and_links_out_of_it_are_not(tmp_path: Path, evil: SimpleNamespace) -> None:
    run = stored(evil.store)
    shipped = apply(dump(config_of(run)), ["learning.estimator=infra/experiments/placebo.py:permuted"])
    assert refusals(shipped, run) == []
    outside = apply(dump(shipped), [f"reward.rule=infra/../{evil.file.relative_to('/')}:rule", "learning.estimator=grpo"])
    (refusal,) = refusals(outside, run)
    assert refusal.key == "reward.rule"
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    (trusted / "link.py").symlink_to(evil.file)
    linked = apply(dump(shipped), [f"reward.rule={trusted}/link.py:rule"])
    assert [one.key for one in refusals(linked, run, [trusted])] == ["reward.rule"]


def test_an_interpreter_is_the_projects_own_or_the_users(tmp_path: Path) -> None:
    run = Run(open_store(str(tmp_path)), "shared")
    for good in (sys.executable, ".venv-vllm/bin/python", "/vllm/bin/python"):
        check(apply(dump(example_run.CONFIG), [*VLLM[:1], f"engine.python={good}", "sandbox.kind=docker"]), run)
    for bad in ("/tmp/python", "runs/shared/python", f"runs/link/../{'../' * 3}.venv-vllm/bin/python", "python"):
        config = apply(dump(example_run.CONFIG), [*VLLM[:1], f"engine.python={bad}", "sandbox.kind=docker"])
        with pytest.raises(ConfigError, match=r"^engine\.python: .* add --functions "):
            check(config, run)
        remember(config, run)
        check(config, run)


def test_a_sandbox_without_walls_is_remembered_for_its_run_only(tmp_path: Path) -> None:
    own, other = (Run(open_store(str(tmp_path)), name) for name in ("own", "other"))
    config = apply(dump(example_run.CONFIG), ["sandbox.kind=local"])
    remember(config, own, [])
    with pytest.raises(ConfigError, match=r"add --set sandbox\.kind=local$"):
        check(config, own)
    remember(config, own, ["sandbox.kind=local"])
    check(config, own)
    with pytest.raises(ConfigError, match=r"^sandbox\.kind: local was chosen by the stored run"):
        check(config, other)
    check(config, other, settings=["sandbox.kind=local"])


@pytest.mark.parametrize(
    "words", [("benchmark", "shared", "--suite", "probe-dev"), ("run", "--resume", "shared"), ("clones", "shared")]
)
@pytest.mark.parametrize("chosen", ["interpreter", "sandbox"])
def test_benchmark_and_resume_execute_nothing_of_a_shared_run(
    words: tuple[str, ...], chosen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python, mark = tmp_path / "python", tmp_path / "mark"
    python.write_text(f"#!/bin/sh\ntouch {mark}\n")
    python.chmod(0o755)
    settings = [one.format(python=python) for one in VLLM] if chosen == "interpreter" else ["sandbox.kind=local"]
    stored(tmp_path / "runs", *settings, "generations=3")
    assert main([*words, "--store", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "was chosen by the stored run, not by you" in said and not mark.exists()


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("benchmark", "shared", "--suite", "probe-dev", "--dry-run"), "apply to --model"),
        (("clones", "shared"), "keep the settings of their runs"),
    ],
)
def test_what_a_user_agrees_to_is_no_way_to_change_a_run(
    words: tuple[str, ...], refused: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "runs", "sandbox.kind=local")
    agreed = [*words, "--store", str(tmp_path / "runs"), "--set", "sandbox.kind=local"]
    if words[0] == "benchmark":
        assert main(agreed) == 0
    assert main([*agreed, "--set", "threads=8"]) == 2
    assert refused in capsys.readouterr().err


def test_a_resume_names_the_option_for_a_function_of_a_shared_run(
    evil: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(evil.store, f"reward.rule={evil.file}:rule", "generations=3")
    words = ["run", "--resume", "shared", "--store", str(evil.store)]
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"if you trust it, add --functions {evil.file.parent}\n")
    evil.file.write_text("changed\n")
    assert main(words) == 2
    assert "has changed since run shared began" in capsys.readouterr().err
    assert not evil.mark.exists()


def test_a_fork_of_a_run_is_as_trusted_as_the_run(evil: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    parent = stored(evil.store, f"reward.rule={evil.file}:rule")

    def forked(name: str, *words: str) -> list[str]:
        assert main(["fork", "shared", "--generation", "0", "--run-id", name, "--store", str(evil.store), *words]) == 0
        made = Run(parent.store, name)
        return [one.key for one in refusals(config_of(made), made)]

    assert forked("one", "--set", "generations=2") == ["reward.rule"]
    assert forked("two", "--set", "sandbox.kind=local", "--set", "generations=2") == ["reward.rule"]
    remember(config_of(parent), parent)
    assert forked("three", "--set", "generations=2") == []
    capsys.readouterr()


def test_a_message_has_nothing_that_a_terminal_or_a_shell_would_obey(tmp_path: Path) -> None:
    run = Run(open_store(str(tmp_path)), "shared")
    config = apply(dump(example_run.CONFIG), ["sandbox.kind=docker"])
    nasty = config.model_copy(update={"reward": config.reward.model_copy(update={"rule": "/tmp/a; b\x1b[2J/x.py:f"})})
    (refusal,) = refusals(nasty, run)
    assert refusal.message.endswith("add --functions '/tmp/a; b?[2J'") and refusal.message.isprintable()


def test_a_command_line_is_recorded_and_a_plan_is_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def rule(event):\n    return 1.0\n")
    words = [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--store", str(tmp_path / "runs")]
    words += ["--set", f"reward.rule={file}:rule"]
    assert subprocess.run([*words, "--dry-run"], cwd=PROJECT, capture_output=True).returncode == 0
    assert not (tmp_path / "state").exists()
    file.write_text("broken(")
    assert subprocess.run(words, cwd=PROJECT, capture_output=True).returncode == 2, "the file cannot be loaded"
    (record,) = (tmp_path / "state" / "populora" / "named").iterdir()
    assert record.read_text().startswith(f"function {file} ")
