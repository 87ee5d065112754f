"""What a run that came in through a server may bring and name: no command, no environment, no file outside allowed folders."""

import asyncio
from pathlib import Path

import pytest

from flows import allowed
from flows.choices import choose, sources
from flows.config import ConfigError, load
from flows.execution.run_stage import Spec
from flows.execution.stage_process import Workers
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core.method.rewards import RULES
from tests.support import example_run


@pytest.mark.flow
def test_a_worker_takes_nothing_that_a_run_brings() -> None:
    from prefect.workers.process import ProcessJobConfiguration

    from flows.prefect_ops.deployments import TEMPLATE

    brought = {
        "command": "touch /tmp/owned",
        "env": {"PATH": "/tmp"},
        "env.LD_PRELOAD": "x.so",
        "working_dir": "/tmp",
        "name": "x",
    }
    made = asyncio.run(ProcessJobConfiguration.from_template_and_values(TEMPLATE, brought))
    assert made.command == "python -m prefect.engine" and made.env == {} and made.working_dir is None and made.name is None


@pytest.mark.flow
def test_the_server_refuses_a_run_that_brings_a_command() -> None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    from flows.prefect_ops import deployments

    deployments.deploy("/tmp/doors")
    with get_client(sync_client=True) as client:
        train = client.read_deployment_by_name("train/train")
        assert client.read_work_pool("cpu").base_job_template["variables"]["additionalProperties"] is False
        for brought in ({"command": "touch /tmp/owned"}, {"env": {"PATH": "/tmp"}}, {"working_dir": "/tmp"}):
            with pytest.raises(PrefectHTTPStatusError, match=r"40\d|42\d"):
                client.create_flow_run_from_deployment(train.id, job_variables=brought)


def test_a_command_line_may_name_any_function_and_a_worker_those_of_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
        (folder / "rule.py").write_text("def rule():\n    return 1\n")
    (mine / "link.py").symlink_to(theirs / "rule.py")
    monkeypatch.delenv(allowed.FOLDERS, raising=False)
    assert choose("reward.rule", f"{theirs}/rule.py:rule", RULES)() == 1
    monkeypatch.setenv(allowed.FOLDERS, str(mine))
    assert choose("reward.rule", f"{mine}/rule.py:rule", RULES)() == 1
    assert choose("reward.rule", "azr", {"azr": dict}) is dict
    for name in (f"{theirs}/rule.py:rule", f"{mine}/../theirs/rule.py:rule", f"{mine}/link.py:rule", f"{tmp_path}/none.py:f"):
        with pytest.raises(ValueError, match="outside the folders that this worker allows"):
            choose("reward.rule", name, RULES)
        with pytest.raises(ValueError, match="outside the folders that this worker allows"):
            sources(load("chaos", [f"reward.rule={name}"]))
    monkeypatch.setenv(allowed.FOLDERS, "")
    with pytest.raises(ValueError, match="outside the folders"):
        choose("reward.rule", f"{mine}/rule.py:rule", RULES)


@pytest.mark.parametrize(
    ("setting", "said"),
    [("sandbox.kind=local", "'local' does not isolate programs"), ("engine.python=/tmp/python", "outside the folders")],
)
def test_a_run_of_a_server_keeps_its_walls_and_its_interpreter(
    setting: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(allowed.FOLDERS, raising=False)
    load("chaos", [setting])
    monkeypatch.setenv(allowed.FOLDERS, str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        load("chaos", [setting])
    for good in (".venv-vllm/bin/python", "/vllm/bin/python", f"{tmp_path}/bin/python"):
        load("chaos", [f"engine.python={good}"])


ELSEWHERE = "00000000-0000-4000-8000-000000000001"


def test_a_run_that_prefects_own_worker_started_has_the_same_walls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a worker sets no folders."""
    (tmp_path / "rule.py").write_text("def rule():\n    return 1\n")
    monkeypatch.delenv(allowed.FOLDERS, raising=False)
    monkeypatch.setenv(allowed.FLOW_RUN, ELSEWHERE)
    for setting in ("sandbox.kind=local", "engine.python=/tmp/python"):
        with pytest.raises(ConfigError, match=r"runs on a server require docker|outside the folders"):
            load("chaos", [setting])
    load("chaos", ["engine.python=/vllm/bin/python"])
    with pytest.raises(ValueError, match="outside the folders that this worker allows"):
        choose("reward.rule", f"{tmp_path}/rule.py:rule", RULES)
    monkeypatch.setenv(allowed.FOLDERS, str(tmp_path))
    assert choose("reward.rule", f"{tmp_path}/rule.py:rule", RULES)() == 1


def test_the_processes_of_such_a_run_have_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 1)
    monkeypatch.delenv(allowed.FOLDERS, raising=False)
    monkeypatch.setenv(allowed.FLOW_RUN, ELSEWHERE)
    with Workers(1) as workers, pytest.raises(ConfigError, match="'local' does not isolate programs"):
        workers.run(Spec(run.store.url, "smoke", "match", 1, None, run.epoch, 3))


@pytest.mark.flow
def test_a_flow_that_a_command_calls_is_no_run_of_a_server() -> None:
    import prefect

    @prefect.flow
    def called() -> bool:
        return allowed.limited()

    assert called() is False


def test_after_a_link_two_dots_lead_elsewhere_than_the_text_says() -> None:
    assert allowed.is_known_interpreter(".venv-vllm/bin/python", [])
    assert not allowed.is_known_interpreter("runs/link/../../.venv-vllm/bin/python", [])


def test_every_worker_limits_what_its_runs_name() -> None:
    assert allowed.worker_settings({}) == {allowed.FOLDERS: ""}
    assert allowed.worker_settings({allowed.FOLDERS: "/mine"}) == {allowed.FOLDERS: "/mine"}
