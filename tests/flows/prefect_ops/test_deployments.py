"""The form of the UI: every setting described and bounded, presets that fit it, wrong values refused before a run exists."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validation

from flows.config import PROJECT, RUNS, ConfigError, configurations, dump, load
from flows.execution.pools import check_pools, stage
from flows.prefect_ops import deployments, prefect_api
from flows.prefect_ops.flows import benchmark, benchmark_member, compare, fork, report, restart
from flows.prefect_ops.forms import FORMS
from flows.train import train


def schema_of(flow: Any) -> dict[str, Any]:
    """What a deployment hands to the server, which makes the form of it and refuses by it."""
    return parameter_schema(flow).model_dump()


def refused(values: dict[str, Any]) -> list[str]:
    """What Prefect's own validation says of a form's values; empty when it takes them."""
    try:
        validation.validate(values, schema_of(train), raise_on_error=True)
    except validation.ValidationError as error:
        return [str(error)]
    return []


def form(preset: str = "smoke", **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"config": dump(load(preset)), "run_id": preset, "store": "runs"} | changes
    return copy.deepcopy(values)


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    for group, definition in schema_of(train)["definitions"].items():
        for name, field in definition["properties"].items():
            yield f"{group}.{name}", field


def test_every_field_of_the_form_has_a_title_and_every_group_a_description() -> None:
    definitions = schema_of(train)["definitions"]
    assert len(dict(fields())) > 60
    assert [name for name, field in fields() if "$ref" not in field and field["title"][:1].islower()] == []
    assert [name for name, definition in definitions.items() if not definition.get("description")] == []


def test_numbers_have_limits_and_choices_are_listed() -> None:
    found = dict(fields())
    assert found["RunConfig.generations"]["minimum"] == 1
    assert (found["Propose.num_inputs"]["minimum"], found["Propose.num_inputs"]["maximum"]) == (2, 20)
    assert found["Model.style"]["enum"] == ["auto", "compact", "trace", "document", "chat", "azr"]
    assert found["Learning.learning_rate"]["minimum"] == 0
    assert found["Learning.gradient_checkpointing"]["anyOf"] == [
        {"title": "by the plan", "type": "string", "const": "auto", "enum": ["auto"]},
        {"title": "as chosen", "type": "boolean"},
    ]


@pytest.mark.parametrize("choice", [True, False, "auto"])
def test_a_field_of_two_types_takes_both(choice: object) -> None:
    values = form()
    assert values["config"]["learning"]["gradient_checkpointing"] == "auto"
    values["config"]["learning"]["gradient_checkpointing"] = choice
    assert refused(values) == []


@pytest.mark.parametrize("preset", sorted(file.stem for file in RUNS.glob("*.toml")))
def test_a_preset_fills_its_form_with_values_that_are_taken(preset: str) -> None:
    assert refused(form(preset)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (("config", "generations"), 0),
        (("config", "generations"), "many"),
        (("config", "model", "style"), "english"),
        (("config", "solve", "attempts"), 1),
        (("config", "learning", "learning_rate"), -1.0),
        (("config", "learning", "learnig_rate"), 1e-4),
        (("config", "learning", "gradient_checkpointing"), "sometimes"),
        (("config", "learning", "gradient_checkpointing"), 1.5),
        (("config", "learning", "row_tokens"), 0),
        (("config", "population", "teachers"), 0),
        (("config", "evolution", "gamma"), 1.5),
        (("run_id",), "Über Run"),
        (("run_id",), "a" * 41),
        (("store",), ""),
        (("placement",), {"sandbx": "cpu"}),
    ],
)
def test_a_wrong_value_is_refused(key: tuple[str, ...], value: Any) -> None:
    values = form()
    place = values
    for part in key[:-1]:
        place = place[part]
    place[key[-1]] = value
    assert refused(values)


def test_what_holds_between_fields_is_refused_too() -> None:
    single = form("single")
    single["config"]["population"]["teachers"] = 2
    vllm = form()
    vllm["config"]["engine"]["kind"] = "vllm"
    skipping = form()
    skipping["config"]["learning"] |= {"skip_zero_groups": True, "entropy_bonus": 0.001}
    off_policy = form()
    off_policy["config"]["learning"] |= {"off_policy_steps": 1, "importance_cap": 0.0}
    assert refused(single) and refused(vllm) and refused(skipping) and refused(off_policy)
    off_policy["config"]["learning"]["importance_cap"] = 2.0
    assert refused(off_policy) == []
    skipping["config"]["learning"]["entropy_bonus"] = 0.0
    assert refused(skipping) == []
    vllm["config"]["engine"]["python"] = ".venv-vllm/bin/python"
    assert refused(vllm) == []


def test_a_stage_flow_takes_what_the_run_sends() -> None:
    properties = schema_of(stage)["properties"]
    assert list(properties) == [
        "store",
        "run_id",
        "stage",
        "generation",
        "part",
        "epoch",
        "generations",
        "cost",
        "version",
        "joins",
    ]


@pytest.mark.parametrize("flow", [train, benchmark, report, fork, restart, benchmark_member, compare, stage])
def test_every_parameter_is_explained(flow: Any) -> None:
    assert [name for name, field in schema_of(flow)["properties"].items() if not field.get("description")] == []


CALLS = """
import inspect, json, threading
from contextlib import suppress
from flows.execution.pools import stage
from flows.prefect_ops.flows import benchmark, report
from flows.prefect_ops.forms import FORMS
from flows.train import train

names, leaving = [], []
for flow in (train, benchmark, report, *FORMS.values(), stage):
    names.append(flow.name)
    with suppress(Exception):
        flow.fn(**dict.fromkeys(inspect.signature(flow.fn).parameters))
    if sum(one.name == "leave-with-parent" for one in threading.enumerate()) > len(leaving):
        leaving.append(flow.name)
print(json.dumps([names, leaving]))
"""


def test_every_flow_that_a_worker_starts_leaves_with_it() -> None:
    """Otherwise nobody could cancel it, and a benchmark would keep its card. The flows fail: they have nothing to work on."""
    nobody = {"PREFECT__FLOW_RUN_ID": "00000000-0000-4000-8000-000000000001", "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = subprocess.run([sys.executable, "-c", CALLS], cwd=PROJECT, env=os.environ | nobody, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    names, leaving = json.loads(done.stdout.splitlines()[-1])
    assert leaving == names and len(names) == 8


@pytest.mark.parametrize("flow", [benchmark, report])
def test_the_store_of_a_form_that_no_worker_writes_cannot_be_changed(flow: Any) -> None:
    assert schema_of(flow)["properties"]["store"]["readOnly"] is True


@pytest.mark.flow
def test_a_worker_of_which_the_server_heard_lately_may_be_alive_unless_it_is_its_own() -> None:
    from prefect.client.orchestration import get_client

    deployments.deploy("/tmp/a")
    assert not deployments.workers_heard(within=timedelta(0))  # whatever other tests have left
    with get_client(sync_client=True) as client:
        for name in ("serve", "elsewhere"):
            response = client.request("POST", "/work_pools/cpu/workers/heartbeat", json={"name": name})
            response.raise_for_status()
            assert deployments.workers_heard("serve") == (name == "elsewhere")
        assert deployments.workers_heard() and not deployments.workers_heard(within=timedelta(0))


@pytest.mark.flow
def test_deploying_twice_makes_each_deployment_once_with_its_schedule_and_its_queue() -> None:
    from prefect.client.orchestration import get_client

    first, second = deployments.deploy("/tmp/a"), deployments.deploy("/tmp/b")
    assert first == second
    with get_client(sync_client=True) as client:
        found = {item.name: item for item in client.read_deployments()}
        queues = {queue.name: queue.concurrency_limit for queue in client.read_work_queues(work_pool_name="cpu")}
        automations = client.read_automations_by_name(deployments.flow_cleanup.LOST_RUNS)
    assert {name.split("/")[1] for name in first} == set(found)
    assert {*configurations(), "train", "benchmark", "report", *FORMS, "cpu", "gpu"} == set(found)
    assert found["train"].parameters["config"] == dump(load(deployments.DEFAULT_PRESET))
    assert found["train"].parameters["store"] == "/tmp/b"
    assert found["train"].enforce_parameter_schema
    assert found["train"].entrypoint == "flows.train.train"
    assert [item.schedule.cron for item in found["benchmark"].schedules] == [deployments.NIGHTLY]
    assert {name: queues[name] for name in deployments.QUEUES} == deployments.QUEUES
    assert len(automations) == 1 and automations[0].enabled


@pytest.mark.flow
def test_a_schedule_that_somebody_changed_stays_so() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    every = (
        CronSchedule(cron="0 5 * * 1", timezone="Europe/Zurich", day_or=False),
        IntervalSchedule(interval=timedelta(hours=6), anchor_date=datetime(2026, 1, 1, tzinfo=UTC), timezone="UTC"),
    )
    deployments.deploy("/tmp/a")
    with get_client(sync_client=True) as client:
        for changed in every:
            found = client.read_deployment_by_name("benchmark/benchmark")
            client.update_deployment_schedule(found.id, found.schedules[0].id, active=False, schedule=changed)
            deployments.deploy("/tmp/a")
            (kept,) = client.read_deployment_by_name("benchmark/benchmark").schedules
            assert (kept.active, kept.slug, kept.schedule) == (False, deployments.SLUG, changed)


@pytest.mark.flow
def test_a_schedule_that_somebody_deleted_does_not_come_back_and_an_added_one_stays() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.schedules import CronSchedule

    deployments.deploy("/tmp/a")
    weekly = CronSchedule(cron="0 5 * * 1", timezone="UTC")
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name("benchmark/benchmark")
        for schedule in found.schedules:
            client.delete_deployment_schedule(found.id, schedule.id)
        deployments.deploy("/tmp/a")
        try:
            assert not client.read_deployment_by_name("benchmark/benchmark").schedules
            client.create_deployment_schedules(found.id, [(weekly, True)])  # without a slug, as in the UI
            deployments.deploy("/tmp/a")
            (kept,) = client.read_deployment_by_name("benchmark/benchmark").schedules
            assert (kept.slug, kept.schedule.cron) == (None, weekly.cron)
        finally:
            client.delete_deployment(found.id)  # the next one has its schedule again


@pytest.mark.flow
def test_stages_in_pools_that_others_made_beat_as_often_as_the_automation_expects() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    takes = {
        "job_configuration": {"env": "{{ env }}"},
        "variables": {"type": "object", "properties": {"env": {"type": "object"}}},
    }
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="theirs", type="process", base_job_template=takes))
        try:
            deployments.deploy("/tmp/a")
            found = {pool: client.read_deployment_by_name(f"stage/{pool}").job_variables for pool in ("theirs", "cpu", "gpu")}
            client.delete_deployment(client.read_deployment_by_name("stage/theirs").id)
        finally:
            client.delete_work_pool("theirs")
    assert found == {"theirs": {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}, "cpu": {}, "gpu": {}}
    ours = int(prefect_api.WORKER_SETTINGS["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    assert 3 * ours == deployments.flow_cleanup.LOST_AFTER_SECONDS


@pytest.mark.flow
def test_a_pool_that_the_server_does_not_have_is_refused() -> None:
    deployments.deploy("/tmp/a")
    check_pools({"gpu": "gpu", "sandbox": "", "ray": "here:10001"})
    with pytest.raises(ConfigError, match=r"placement.gpu: the Prefect server has no work pool nopool; it has .*gpu"):
        check_pools({"gpu": "nopool"})


@pytest.mark.flow
def test_a_pool_that_takes_no_stages_yet_is_refused_with_the_command_that_sets_it_up() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="new", type="process"))
        try:
            with pytest.raises(
                ConfigError, match=r"no deployment stage/new; .*: python -m flows\.prefect_ops\.pool_worker setup STORE$"
            ):
                check_pools({"sandbox": "new"})
        finally:
            client.delete_work_pool("new")
