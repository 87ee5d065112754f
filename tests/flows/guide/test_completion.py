"""What a shell offers at Tab, asked as bash and zsh ask."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import PROJECT, configurations, setting_keys

SCRIPTS = Path(sys.executable).parent


def offered(line: str, shell: str = "zsh") -> list[str]:
    """The completions of a command line, as argcomplete's function for the shell reads them."""
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": shell, "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "PYTHONPATH": str(PROJECT)}
    script = 'exec "$@" 8>&1 9>&2 1>/dev/null'
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "flows.cli"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env=os.environ | asked)
    assert done.returncode == 0, done.stderr
    return [one.partition(":")[0] for one in done.stdout.split("\n") if one]


def test_commands_and_options() -> None:
    assert offered("populora sta") == ["status"] and offered("populora try") == ["try-prompts"]
    assert {"--set", "--store", "--dry-run", "--resume"} <= set(offered("populora run --"))


def test_keys_of_set_and_the_values_of_a_choice() -> None:
    assert offered("populora run --set learning.learning") == ["learning.learning_rate="]
    assert offered("populora run --set ") == [f"{key}=" for key in setting_keys()]
    assert offered("populora run --set solve.top_up=") == ["solve.top_up=false", "solve.top_up=true"]
    assert offered("populora run --set evolution.mix=d") == ["evolution.mix=draw"]
    assert offered("populora run --set generations=") == offered("populora run --set nothing=") == []
    assert offered("populora verify --set cpu") == ["cpu_seconds="]


def test_configurations_and_files(tmp_path: Path) -> None:
    assert offered("populora run -c one-") == ["one-gpu", "one-one"]
    assert set(configurations()) <= set(offered("populora simulate -c "))
    (tmp_path / "mine.toml").touch()
    (tmp_path / "mine.txt").touch()
    assert offered(f"populora run -c {tmp_path}/mi") == [f"{tmp_path}/mine.toml"]


def test_keys_to_explain_suites_and_runs(tmp_path: Path) -> None:
    assert offered("populora explain learning.k") == ["learning.kl"] and "learning" in offered("populora explain lear")
    assert {"probe-dev", "probe-test-deduction"} < set(offered("populora benchmark --suite probe"))
    for name in ("first", "second", "no-run"):
        (tmp_path / name).mkdir()
    for name in ("first", "second"):
        (tmp_path / name / "run.json").write_text("{}")
    assert offered(f"populora status --store {tmp_path} ") == ["first", "second"]
    assert offered("populora run --store s3://bucket/runs --resume ") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_line_of_the_page_switches_it_on_in_bash() -> None:
    page = (PROJECT / "docs" / "install.md").read_text()
    (line,) = [line for line in page.splitlines() if "register-python-argcomplete" in line and line.startswith("eval")]
    line = line.replace(".venv/bin/", f"{SCRIPTS}/")
    words = "populora run --set learning.learning"
    asked = f'COMP_LINE="{words}" COMP_POINT={len(words)} COMP_TYPE=9'
    ask = f'{asked}; _python_argcomplete {SCRIPTS}/populora; printf "%s\\n" "${{COMPREPLY[@]}}"'
    script = f"{line}\ncomplete -p populora >&2\n{ask}"
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert "-F _python_argcomplete populora" in done.stderr, done.stderr
    assert done.stdout == "learning.learning_rate=\n"
