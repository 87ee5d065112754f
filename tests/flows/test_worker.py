"""The command that runs one step without Prefect: the fields it requires, and its message about a wrong step."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flows.config import PROJECT, ConfigError
from flows.execution.run_stage import Spec, read_spec
from flows.execution.stage_process import known_error, result_of
from flows.run.lease import Fenced
from flows.run.run import Retired
from flows.storage import Damaged, NotStored, StoreRefused, StoreUnavailable
from flows.store.errors import AccessRefused
from flows.worker import _answer

STEP = asdict(Spec("runs", "r", "solve", 0, None, 1, 2))


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in STEP.items() if name != field}


def test_a_step_is_read() -> None:
    assert read_spec(STEP) == Spec("runs", "r", "solve", 0, None, 1, 2)
    assert read_spec(STEP | {"stage": "start", "generation": None, "cost": {"kwh": 0.3}, "verdicts": "v"}).cost == {"kwh": 0.3}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "step: give a JSON object with store, run_id, stage, generation, part, epoch, generations"),
        (without("generations"), "step: generations missing; it requires store, "),
        (STEP | {"run": "r"}, "step: there is no field run; it takes store, run_id, "),
        (STEP | {"generation": "three"}, "step: generation: Input should be a valid integer"),
        (STEP | {"stage": "slove"}, "step: there is no stage 'slove'; choose one of start, match, propose, "),
    ],
)
def test_what_is_no_step_is_refused_in_one_line(values: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_spec(values)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def worker(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "flows.worker", *words], cwd=PROJECT, capture_output=True, text=True, check=False
    )


def test_the_command_refuses_a_wrong_step_in_one_line_with_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    for text, said in (
        (json.dumps(without("epoch")), "step: epoch missing; "),
        ("{", f"{file}: "),
    ):
        file.write_text(text)
        done = worker("solve", "--spec", str(file))
        assert (done.returncode, done.stderr) == (2, "")
        (line,) = done.stdout.splitlines()
        answer = json.loads(line)
        assert answer["error"] == "ConfigError" and answer["message"].startswith(said)


def test_the_help_names_the_fields_of_a_step() -> None:
    told = " ".join(worker("--help").stdout.split())
    assert "JSON object with store, run_id, generation, part, epoch, generations; cost, verdicts, joins may be left out" in told


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("seed: give a number"), 2),
        (StoreRefused("no such folder"), 2),
        (AccessRefused("store s3://b: generation=0003/x: the credentials have expired"), 2),
        (StoreUnavailable("no route"), 3),
        (NotStored("r/a: no such artifact"), 1),
        (Retired("a was retired: old"), 1),
        (Fenced("run r was taken over"), 1),
        (Damaged("r/a", "not a Parquet file: no magic"), 1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_error_that_says_what_to_do_reaches_the_flow_as_what_it_is(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> dict[str, Any]:
        raise error

    answer, exit_code = _answer(work)
    assert exit_code == code and capsys.readouterr().err == "", "one line, which the flow prints, and no traceback"
    with pytest.raises(type(error)) as raised:
        result_of(answer)
    of_a_pool = known_error(f"Flow run encountered an exception: {type(error).__name__}: {error}")
    for found in (raised.value, of_a_pool):
        assert type(found) is type(error) and str(found) == str(error)
    if isinstance(raised.value, Damaged):
        assert (raised.value.uri, raised.value.detail) == ("r/a", "not a Parquet file: no magic")


def test_an_error_that_explains_nothing_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    answer, code = _answer(lambda: {}["done"])
    assert (answer, code) == ({"error": "KeyError", "message": "'done'"}, 1) and "Traceback" in capsys.readouterr().err
