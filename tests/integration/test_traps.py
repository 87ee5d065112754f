"""Traps of Prefect, one test each; docs/operations.md lists them all, and the last test here keeps that list true."""

import ast
import json
import os
import re
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import prefect
import pytest
from packaging.version import Version
from prefect.cache_policies import INPUTS
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from flows import generation, train
from flows.bench import orchestration
from flows.config import PROJECT, load
from flows.execution import pools, session
from flows.execution.stage_process import StageFailed
from flows.notes import publish as notes
from flows.prefect_ops import flows as flows_
from flows.prefect_ops import prefect_api, ui_server
from flows.prefect_ops.forms import FORMS
from flows.stages import STAGE_NAMES

FLOWS = [train.train, generation.run_generation, flows_.benchmark, flows_.report, *FORMS.values(), pools.stage]
TASKS = [train.start, generation.run_stage, generation.run_part, generation.run_part_on_node, flows_.score]


def test_the_installed_versions_are_those_with_which_the_server_starts_and_schedules_fire() -> None:
    assert Version(version("prefect")) >= Version("3.8.8")
    assert Version("0.139") <= Version(version("fastapi")) < Version("0.151")
    assert Version("2.0") <= Version(version("sqlalchemy")) < Version("2.1")
    pinned = (PROJECT / "constraints.txt").read_text()
    for name in ("prefect", "fastapi", "sqlalchemy"):
        assert f"\n{name}=={version(name)}\n" in pinned.lower()


@pytest.mark.flow
def test_no_result_is_cached_or_kept(tmp_path: Path) -> None:
    """Two calls with equal inputs are two calls, and their results lie nowhere; where Prefect keeps results, one."""
    calls: list[str] = []

    @prefect.flow(persist_result=False)
    def twice(task: Any) -> None:
        for _ in range(2):
            task(1)

    def called(task: Any, **options: Any) -> int:
        made = task.with_options(task_run_name="trap", **options)
        made.fn = lambda given: calls.append(task.name) or {"rows": given}
        calls.clear()
        twice(made)
        return len(calls)

    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        assert {task.name: called(task) for task in TASKS} == {task.name: 2 for task in TASKS}
        assert not list(tmp_path.rglob("*"))
        assert called(TASKS[0], cache_policy=INPUTS, persist_result=True) == 1 and list(tmp_path.rglob("*"))


@pytest.mark.flow
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.fn.__name__)
def test_flows_keep_no_results_and_are_not_retried_whole_by_prefect(flow: Any, tmp_path: Path) -> None:
    """With its own options a flow that fails is called once, and what one returns lies nowhere; with Prefect's, neither holds."""
    calls: list[bool] = []
    kept: list[bool] = []

    def body(fails: bool) -> dict[str, int]:
        calls.append(fails)
        if fails:
            raise ValueError("as asked")
        return {"rows": 1}

    def called(**options: Any) -> int:
        made = flow.with_options(flow_run_name="trap", validate_parameters=False, **options)
        made.fn = body
        calls.clear()
        before = len(list(tmp_path.rglob("*")))  # Prefect keeps the error of a failed flow, whatever the flow's options
        made(False, return_state=True)
        kept.append(len(list(tmp_path.rglob("*"))) > before)
        made(True, return_state=True)
        return calls.count(True)

    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        assert called() == 1
        assert called(retries=1, retry_delay_seconds=0, persist_result=True) == 2
    assert kept == [False, True]


def test_flows_are_in_modules_whose_annotations_are_values() -> None:
    for file in (PROJECT / "flows").rglob("*.py"):
        imported = [node.module for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)]
        assert "__future__" not in imported, file


def served(code: str, home: Path) -> Any:
    """What the code prints, as JSON, in a process with the settings of our server."""
    known = {**os.environ, **ui_server.SETTINGS, "PREFECT_HOME": str(home), "PREFECT_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


PAGE_AND_SLOTS = """
import asyncio, datetime, json, uuid
from fastapi.testclient import TestClient
from prefect.server.api.server import create_ui_app
from prefect.server.concurrency.lease_storage import get_concurrency_lease_storage
async def held():
    storage = get_concurrency_lease_storage()
    found = await storage.read_active_lease_ids()
    if not found:
        await storage.create_lease([uuid.uuid4()], datetime.timedelta(minutes=5))
    return len(found)
page = TestClient(create_ui_app(ephemeral=False)).get("/ui-settings").json()
print(json.dumps([page["api_url"], asyncio.run(held())]))
"""
FORGET = """
import asyncio, datetime, json
from prefect.server.database import provide_database_interface
from prefect.server.schemas.states import StateType
from prefect.server.services.db_vacuum import vacuum_old_flow_runs
from prefect.settings.context import get_current_settings
async def main():
    db, now = provide_database_interface(), datetime.datetime.now(datetime.timezone.utc)
    await db.create_db()
    async with db.session_context(begin_transaction=True) as session:
        flow = db.Flow(name="f")
        session.add(flow)
        await session.flush()
        for days in (1, 13, 15, 40):
            ended = now - datetime.timedelta(days=days)
            session.add(db.FlowRun(flow_id=flow.id, name=str(days), state_type=StateType.COMPLETED, end_time=ended))
        session.add(db.FlowRun(flow_id=flow.id, name="running", state_type=StateType.RUNNING))
    await vacuum_old_flow_runs(db=db)
    async with db.session_context() as session:
        import sqlalchemy
        left = (await session.execute(sqlalchemy.select(db.FlowRun.name))).scalars().all()
    return sorted(left), sorted(get_current_settings().server.services.db_vacuum.enabled)
print(json.dumps(asyncio.run(main())))
"""


def test_the_page_finds_its_server_behind_any_port_and_slots_outlive_a_restart(tmp_path: Path) -> None:
    assert [served(PAGE_AND_SLOTS, tmp_path) for _ in range(2)] == [["/api", 0], ["/api", 1]]  # the next process finds the slot


def test_the_server_forgets(tmp_path: Path) -> None:
    """Runs that ended more than 14 days ago are gone after a vacuum, which is switched on for runs and events."""
    left, enabled = served(FORGET, tmp_path)
    assert left == ["1", "13", "running"] and set(enabled) >= {"events", "flow_runs"}


def test_prefect_knows_every_setting_that_we_give_it() -> None:
    from prefect.settings import Settings

    known = set()

    def walk(model: Any) -> None:
        for name, field in model.model_fields.items():
            prefix = str(model.model_config.get("env_prefix", "PREFECT_"))
            known.add(f"{prefix}{name}".upper())
            aliases = getattr(field.validation_alias, "choices", [field.validation_alias] if field.validation_alias else [])
            known.update(str(alias).upper() for alias in aliases if isinstance(alias, str))
            if hasattr(field.annotation, "model_fields"):
                walk(field.annotation)

    walk(Settings)
    ours = set(ui_server.SETTINGS) | set(ui_server.ALONE) | set(prefect_api.WORKER_SETTINGS)
    assert {name for name in ours if name.startswith("PREFECT_")} - known == set()


def test_every_task_is_called_where_a_cancel_reaches_it_or_can_be_told_of_one() -> None:
    """A submitted task never sees the signal: while it waits for another machine it listens to its flow instead."""
    leaving = threading.Event()
    leaving.set()
    with pytest.raises(StageFailed, match="was cancelled"):
        pools.end_of(None, uuid4(), "gpu", leaving)


def test_no_task_starts_a_task() -> None:
    """A bounded thread pool would wait for itself."""
    for file in (PROJECT / "flows").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and any("task" in ast.unparse(one) for one in node.decorator_list):
                assert ".submit(" not in ast.unparse(node), f"{file}: {node.name}"


@pytest.mark.flow
@pytest.mark.parametrize("adapters", [1, 8])
def test_a_generation_costs_tens_of_tasks_without_tags(adapters: int) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId

    @prefect.flow(persist_result=False)
    def whole() -> None:
        with notes.tagged(f"budget-{adapters}", "population", 0):
            generation.run_generation(f"budget-{adapters}", 0, {})
        ids.append(str(prefect.runtime.flow_run.id))

    ids: list[str] = []
    config = load("chaos", ["benchmark.every=1"])
    with session.as_current(orchestration.NoStages(config, adapters)):  # type: ignore[arg-type]
        whole()
    with get_client(sync_client=True) as client:
        inner = client.read_flow_runs(limit=200)
        found = next(run for run in inner if run.name == f"budget-{adapters}-g0000")
        wanted = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[found.id]))
        until = time.monotonic() + 30  # the server writes tasks down after the flow has gone on
        while True:
            tasks = client.read_task_runs(task_run_filter=wanted, limit=200)
            written = len(tasks) == 10 + adapters and all("-g0000" in run.name for run in tasks)
            if written or time.monotonic() > until:
                break
            time.sleep(0.2)
    names = [run.name for run in tasks]
    stages = [name for name in names if not name.startswith("update-g0000-")]
    assert sorted(stages) == sorted(f"{stage}-g0000" for stage in STAGE_NAMES)
    assert len(names) == 10 + adapters
    assert set(found.tags) == {f"run:budget-{adapters}", "mode:population", "gen:0"}
    assert not any(run.tags for run in tasks)


def test_every_trap_has_a_remedy_and_tests_that_exist() -> None:
    page = (PROJECT / "docs" / "operations.md").read_text()
    table = page.partition("## Traps of Prefect")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| trap")]
    assert len(lines) > 25
    for line in lines:
        named = re.findall(r"`(test_\w+)\.(test_\w+)`", line)
        assert named, line
        for file, name in named:
            (path,) = (PROJECT / "tests").rglob(f"{file}.py")
            assert f"def {name}(" in path.read_text(), f"{file}.{name}"
