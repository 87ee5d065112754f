"""The command line: a user's mistake is one line and code 2, an unreachable service 3, never a traceback, nothing written."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefect.exceptions import TerminationSignal

from flows.cli import UNTRACKED, _parser, main
from flows.commands.reading import status
from flows.config import PROJECT
from flows.execution.orphan_guard import Terminated
from flows.run.lease import LeaseLost
from tests.support.report_run import made


def populora(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=PROJECT, capture_output=True, text=True, env=os.environ | environment
    )


def listen() -> None:
    """Take SIGINT and SIGHUP as a process of a terminal does: whoever runs the tests in the background has them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ignore_the_end_of_the_terminal() -> None:
    """As nohup does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run", "-c", "nothing"), "nothing"),
        (("run", "-c", "one-gpo"), "; did you mean one-gpu?"),
        (("run", "--set", "populaton.teachers=2"), "; did you mean population.teachers?"),
        (("run", "--set", "population.teacherz=1"), "population.teacherz"),
        (("run", "--set", "generations=many"), "generations"),
        (("run", "--set", "model.name=nowhere/at/all"), "model.name"),
        (("run", "--set", "reward.rule=generous"), "reward.rule"),
        (("run", "--set", "evolution.mutations=['M9']"), "M9"),
        (("run", "--set", "benchmark.suite=unheard"), "benchmark.suite"),
        (("run", "--run-id", "../elsewhere"), "elsewhere"),
        (("run", "--store", "ftp://somewhere"), "ftp"),
        (("status", "no-such-run"), "no-such-run"),
        (("fly",), "fly"),
        (("statsu",), "; did you mean status?"),
        (("bench", "everything"), "everything"),
    ],
)
def test_a_users_mistake_is_one_line_and_code_2(arguments: tuple[str, ...], word: str, tmp_path: Path) -> None:
    store = () if arguments[0] in ("fly", "statsu", "bench") or "--store" in arguments else ("--store", str(tmp_path / "store"))
    done = populora(*arguments, *store)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert word in done.stderr
    assert not (tmp_path / "store" / "quickstart").exists()


@pytest.mark.parametrize("words", [("status", "r"), ("run", "--resume", "r"), ("run", "-c", "chaos", "--run-id", "r")])
def test_what_is_damaged_is_one_line_that_says_who_knows_more(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text("{")
    assert main([*words, "--store", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("populora: r/run.json: not a JSON object with a schema version; ")
    assert line.endswith(f"populora fsck r --store {tmp_path} says what depends on it")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--json"], "--json prints the configuration of a --dry-run"),
        (["run", "--dry-run", "--detach"], "--dry-run cannot be combined with --detach"),
        (["run", "--dry-run", "--set", 'benchmark.suites=["nosuch"]'], "nosuch"),
        (["run", "--dry-run", "--store", "FILE"], "FILE' is a file; give a folder"),
        (
            ["run", "--dry-run", "--set", "model.name=./nowhere"],
            f"model.name: folder {PROJECT}/nowhere does not exist; a relative path starts at the project's folder",
        ),
        (["benchmark", "--model", "m", "--suite", "cruxeval", "--attempts", "-5"], "--attempts -5: give 0 or more"),
        (["benchmark", "--model", "m", "--suite", "cruxeval", "--max-new-tokens", "-5"], "--max-new-tokens -5: give 0 or more"),
        (["simulate", "--runs", "0"], "--runs 0: give 1 or more"),
        (["run", "--dry-run", "--set", "benchmark.suite=nosuch"], "benchmark.suite: 'nosuch' is not one of"),
        (["run", "--dry-run", "--set", 'benchmark.suites=["probe-dev"]'], "set benchmark.suite=probe-dev"),
        (["run", "--dry-run", "--set", "reward.rule=mine"], "reward.rule: 'mine' is not one of"),
        (["run", "--dry-run", "--set", "reward.rule=my.py:f"], "reward.rule: "),
        (["run", "--dry-run", "--set", "learning.estimator=rloo"], "learning.estimator: 'rloo' is not one of"),
        (["run", "--dry-run", "--set", 'reward.gates=["nope"]'], "reward.gates: 'nope' is not one of"),
        (["experiment", "FOLDER/nonsense.toml", "--dry-run"], "reward.rule: 'nonsense' is not one of"),
        (["run", "--dry-run", "--store", ""], "store '': give a folder"),
        (["run", "--dry-run", "--store", "/dev/null"], "'/dev/null' is a file; give a folder"),
        (["run", "--dry-run", "--store", "a" * 300], "File name too long"),
        (["bench", "update", "--total", "100", "--group-size", "8"], "--total 100: 32 adapters need 16384, 512 tokens each"),
        (["run", "-c", ""], "no configuration ''"),
        (["run", "--set", "learning.rate=1"], "; did you mean learning.learning_rate?"),
        (["run", "--set", "cost.price=1"], "; cost has machine_hour, kwh, currency, watts"),
        (
            ["serve", "--home", "FOLDER", "--port", "70000", "--browser-port", "70000"],
            "--port 70000: must be between 1 and 65535",
        ),
        (["simulate", "-c", "reasoner"], "reasoner: it has no teachers, and skill is simulated of matches"),
        (["simulate", "-c", "one-one"], "one-one: a role with one member replaces nobody"),
        (["simulate", "--set", "evolution.every=0"], "paper: evolution.every=0 replaces nobody"),
        (["simulate", "--set", "evolution.gamma=0"], "paper: evolution.gamma=0 replaces nobody"),
        (["serve", "--home", "FILE"], "--home FILE: file exists; choose a folder"),
        (["serve", "--home", "FOLDER", "--port", "4321", "--browser-port", "4321"], "are both 4321; choose two"),
        (["experiment", "infra/runs/chaos.toml", "--dry-run"], "is a run's configuration, not an experiment; start it with"),
        (["experiment", "FOLDER/typo.toml", "--dry-run"], "is a run's configuration, not an experiment; start it with"),
        (["run", "--dry-run", "--set", "engine.window=256", "--set", "solve.max_new_tokens=999"], "999 tokens leave no room"),
        (["experiment", "infra/runs/smoke.toml", "--dry-run"], "is a run's configuration, not an experiment; start it with"),
        (["init", "FOLDER/new.toml", "--hardware", "smoke", "--budget", "0h"], "0h leaves no time for a generation"),
        (["cost", "some", "--by", "generation", "--generation", "1"], "--by generation cannot be combined with --generation"),
        (["inspect", "some", "--task", "a", "--adapter", "b"], "not allowed with argument"),
        (["status"], " alone says where the latest run stands"),
        (["export", "some", "a", "b", "--dtype", "float32"], "export: --dtype needs --merge"),
        (["bench", "storage", "--nosuch"], "populora bench storage: unrecognized arguments: --nosuch"),
    ],
)
def test_a_request_that_means_nothing_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "typo.toml").write_text("generations = 10\nseed = 1\nfoo = 1\n")
    rules = ("populora", "nonsense")
    arms = "".join(f'[[arms]]\nname = "{rule}"\nconfig = "chaos"\nsettings = {{ reward.rule = "{rule}" }}\n' for rule in rules)
    primary = 'primary = { contrast = ["populora", "nonsense"], budget = "generated_tokens" }'
    (tmp_path / "nonsense.toml").write_text(f'name = "n"\nquestion = "?"\nseeds = [0]\n{primary}\n{arms}')
    places = {"FILE": str(tmp_path / "file"), "FOLDER": str(tmp_path)}
    given = words
    for name, place in places.items():
        given, message = [word.replace(name, place) for word in given], message.replace(name, place)
    try:
        code = main(given)
    except SystemExit as end:  # argparse's own
        code = int(str(end.code))
    said = capsys.readouterr().err
    assert code == 2 and said.count("\n") == 1 and message in said


def test_docker_that_does_not_answer_is_code_3_and_nothing_is_written(tmp_path: Path) -> None:
    done = populora("run", "--store", str(tmp_path / "store"), DOCKER_HOST="unix:///nowhere/docker.sock")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert not (tmp_path / "store" / "quickstart").exists()


def test_a_store_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = populora("run", "--store", str(tmp_path / "file" / "store"), "--set", "sandbox.kind=local")
    assert done.returncode in (2, 3), done.stderr
    assert "Traceback" not in done.stderr


def test_dry_run_prints_the_plan_and_what_is_no_default_or_all_settings_as_json(tmp_path: Path) -> None:
    words = ("run", "-c", "paper", "--set", "seed=7", "--dry-run", "--store", str(tmp_path / "store"))
    done = populora(*words)
    assert done.returncode == 0, done.stderr
    plan, _, settings = done.stdout.partition("\nsettings         the defaults (populora explain), except\n")
    assert plan.startswith(
        "members          8 (4 teachers, 4 students)\nper generation   768 proposals, at most 6,144 attempts, "
    )
    assert "fits             1 x 80 GB" in plan and "  seed=7" in settings.splitlines() and "teachers" not in settings
    done = populora(*words, "--json")
    assert json.loads(done.stdout)["population"]["teachers"] == 4 and json.loads(done.stdout)["seed"] == 7
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("place", ["gpu=gpu", "ray=head:6379"])
def test_a_dry_run_plans_what_cards_elsewhere_compute(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", "paper-8gpu", "--dry-run", "--json"]) == 0
    here = capsys.readouterr().out
    assert main(["run", "-c", "paper-8gpu", "--dry-run", "--json", "--place", place]) == 0
    there = capsys.readouterr().out
    assert '"gradient_checkpointing": "auto"' in here and '"gradient_checkpointing": true' in there
    chosen = ["--set", "learning.gradient_checkpointing=true", "--set", "learning.recompute_above=0"]
    assert main(["run", "-c", "paper-8gpu", "--dry-run", "--json", *chosen]) == 0
    assert capsys.readouterr().out == there
    assert main(["run", "-c", "paper-8gpu", "--dry-run", "--place", "moon=gpu"]) == 2


def test_a_dry_run_refuses_what_resuming_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with made(tmp_path, "one", 2, until="solve"):
        pass
    words = ["run", "--resume", "one", "--set", "seed=7", "--store", str(tmp_path)]
    for more in ([], ["--dry-run"]):
        assert main([*words, *more]) == 2
        said = capsys.readouterr().err
        assert said == "populora: run one exists with another configuration: seed; fork the run, or start another with --run-id\n"


@pytest.mark.parametrize("given", ["--run-id", "-c"])
def test_a_resumed_run_takes_no_other_name_or_configuration(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--resume", "one", given, "other", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said == f"populora: {given} cannot be combined with --resume one: a resumed run keeps its name and configuration\n"


@pytest.mark.parametrize(
    "words",
    [
        ["one"],
        ["one", "s0-start"],
        ["one", "--tasks", "a", "--site", "b"],
        ["one", "s0-start", "a", "--tasks", "b"],
        ["one", "--tasks", "a", "--merge"],
        ["one", "--tasks", "a", "--files-up-to", "3"],
    ],
)
def test_an_export_writes_one_thing_and_ignores_no_option(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *words]) == 2
    assert capsys.readouterr().err.startswith("populora: export: ")


def test_a_run_that_is_not_there_is_followed_by_the_nearest_one(tmp_path: Path) -> None:
    with made(tmp_path, "gentler", 1, until="match"):
        pass
    done = populora("report", "gentle", "--store", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"populora: no run gentle in {tmp_path}; did you mean gentler?\n")


def test_without_a_command_it_says_what_is_next_and_loads_neither_torch_nor_prefect(tmp_path: Path) -> None:
    heavy = "bool({'torch', 'prefect'} & set(sys.modules))"
    script = f"import sys; from flows.cli import main; code = main([]); sys.exit(code + 10 * {heavy})"
    environment = os.environ | {"POPULORA_STORE": str(tmp_path), "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    machine, store, following = done.stdout.splitlines()
    assert machine.startswith("machine    not ready: Docker: the daemon does not answer")
    assert (store, following) == (f"store      {tmp_path}: no runs", "next       unset DOCKER_HOST")


@pytest.mark.docker
def test_on_a_machine_that_is_set_up_the_next_command_is_about_the_newest_run(tmp_path: Path) -> None:
    empty = populora(POPULORA_STORE=str(tmp_path)).stdout
    assert empty == f"machine    ready\nstore      {tmp_path}: no runs\nnext       populora run\n"
    with made(tmp_path, "smoke", 2, until="solve"):
        pass
    done = populora(POPULORA_STORE=str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()[2:]) == (
        0,
        [
            "latest     smoke: stopped inside generation 1; 1 of 2 generations; last finished: solve of generation 1",
            "next       populora run --resume smoke",
        ],
    )


def test_prefect_sends_no_usage_data_unless_the_user_says_otherwise() -> None:
    script = "import os; from flows.cli import main; main(['--version-of-nothing'])"
    shown = "import os, sys; print(os.environ.get('DO_NOT_TRACK'), os.environ.get('PREFECT_SERVER_ANALYTICS_ENABLED'))"
    script = f"import atexit; atexit.register(lambda: exec({shown!r})); {script}"
    clean = {name: value for name, value in os.environ.items() if name not in UNTRACKED}
    for environment, said in ((clean, "1 false"), (clean | {"DO_NOT_TRACK": "0"}, "0 false")):
        done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == said


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("number", "code", "how"),
    [
        (signal.SIGTERM, 143, "stopped by SIGTERM"),
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 143, "stopped by SIGTERM"),
    ],
)
def test_a_stopped_run_says_how_it_is_resumed(number: signal.Signals, code: int, how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--store", str(tmp_path), "--set", "sandbox.kind=local"]
    quiet = {name: value for name, value in os.environ.items() if name != "PREFECT_LOGGING_LEVEL"}  # as a user has it
    process = subprocess.Popen(command, cwd=PROJECT, env=quiet, stderr=subprocess.PIPE, text=True, preexec_fn=listen)
    try:
        while not (tmp_path / "chaos" / "run.json").exists():  # inside Prefect's flow, which handles SIGTERM itself
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, said
    assert f"populora: {how}; the same command resumes from here" in said.splitlines(), said


@pytest.mark.parametrize(
    "stop", [KeyboardInterrupt(), Terminated(), TerminationSignal(signal.SIGTERM)], ids=["SIGINT", "SIGTERM", "SIGTERM in a flow"]
)
def test_a_signal_in_the_middle_of_prefects_bookkeeping_is_still_a_signal(
    stop: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bookkeeping(_: argparse.Namespace) -> int:
        try:
            raise stop
        finally:
            raise ValueError("Task run is not set")  # as Prefect's task engine does, whatever it was interrupted by

    monkeypatch.setattr(status, "standing", bookkeeping)
    code, how = (130, "interrupted") if isinstance(stop, KeyboardInterrupt) else (143, "stopped by SIGTERM")
    assert (main([]), capsys.readouterr().err) == (code, f"populora: {how}\n")


def test_a_lost_lease_that_stops_the_process_is_not_called_a_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bookkeeping(_: argparse.Namespace) -> int:
        try:
            raise Terminated
        except Terminated as error:
            raise LeaseLost("the lease could not be renewed") from error
        finally:
            raise ValueError("Task run is not set")

    monkeypatch.setattr(status, "standing", bookkeeping)
    assert (main([]), capsys.readouterr().err) == (3, "populora: the lease could not be renewed\n")


def test_a_command_that_resumes_nothing_does_not_say_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "watch", "one", "--store", str(tmp_path)]
    with made(tmp_path, "one", 2, until="solve"):
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline().startswith("one: running grade of generation 1")
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "populora: stopped by SIGTERM\n")


def test_the_end_of_the_terminal_leaves_a_command_under_nohup_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "watch", "one", "--store", str(tmp_path)]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with made(tmp_path, "one", 2, until="solve"):
        process = subprocess.Popen(command, cwd=PROJECT, preexec_fn=ignore_the_end_of_the_terminal, **more)
        assert process.stdout is not None and process.stdout.readline().startswith("one: running grade of generation 1")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "populora: stopped by SIGTERM\n")


SPEAK = """
import sys
from flows import cli
from flows.commands import doctor, export
def spoken(parsed):
    for _ in range(10_000):
        print("a line that nobody reads")
    return 0
def done(parsed):
    print("a line that nobody reads")
    return 0
doctor.doctor, export.export = spoken, done if sys.argv[2:] else spoken
sys.exit(cli.main(sys.argv[1].split()))
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(["doctor"], 0, ""), (["export r"], 1, "populora: [Errno 32] Broken pipe\n"), (["export r", "short"], 0, "")],
)
def test_a_reader_that_has_gone_is_a_success_only_where_nothing_is_left_undone(words: list[str], code: int, said: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command, buffered = [sys.executable, "-c", SPEAK, *words], os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, cwd=PROJECT, env=buffered, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("export", ["id of the run", "`populora inspect RUN` lists them", "folder to write"]),
        ("verify", ["id, program and input"]),
        ("grade", ["examples", "deduction, abduction or induction"]),
    ],
)
def test_help_names_what_a_command_takes(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in said] == []


def test_help_lists_every_command() -> None:
    done = populora("--help")
    known = next(action.choices for action in _parser()._actions if action.dest == "command")
    assert done.returncode == 0
    assert re.findall(r"^    ([a-z][a-z-]+)(?:  |$)", done.stdout, flags=re.MULTILINE) == list(known or ())
