"""The list of stages is the only one: steps, files and the flow agree with it."""

import ast
from pathlib import Path

import pytest

from flows.config import load
from flows.execution.pools import Placement
from flows.execution.stage_process import interpreter
from flows.stages import STAGE_NAMES, stage_of
from flows.steps.steps import STEPS

ROOT = Path(__file__).resolve().parents[2]


def test_every_stage_has_a_step_and_a_file():
    assert tuple(STEPS) == ("start", *STAGE_NAMES)
    assert [name for name in STAGE_NAMES if not (ROOT / "stages" / f"{name}.py").is_file()] == []


def test_the_flow_runs_the_stages_in_their_order():
    tree = ast.parse((ROOT / "flows" / "generation.py").read_text())
    flow = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "run_generation")
    calls = [node for node in ast.walk(flow) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    steps = sorted((node for node in calls if node.func.id == "step"), key=lambda node: node.lineno)
    assert tuple(node.args[0].value for node in steps) == STAGE_NAMES


@pytest.mark.parametrize(
    ("stage", "part", "pool"),
    [
        ("start", None, "gpu"),
        ("match", None, ""),
        ("propose", "00", "gpu"),
        ("verify", None, "sandbox"),
        ("grade", None, "sandbox"),
        ("update", "00", "gpu"),
        ("update", None, ""),
        ("benchmark", None, "gpu"),
        ("evolve", None, ""),
    ],
)
def test_a_placement_follows_what_a_stage_needs(stage, part, pool):
    assert Placement(sandbox="sandbox", gpu="gpu").pool(stage, part) == pool


def test_joining_a_rollout_needs_no_gpu_but_the_tokenizer_that_judging_needs_too():
    placement = Placement(sandbox="sandbox", gpu="gpu")
    assert [placement.pool(name, None, joins=True) for name in ("propose", "solve", "update", "benchmark")] == [
        "sandbox", "sandbox", "", "gpu"
    ]  # fmt: skip
    assert Placement(gpu="gpu").pool("solve", None, joins=True) == ""
    config = load("smoke", ["engine.kind=vllm", "engine.python=vllm/bin/python", "engine.shards=2"])
    assert [interpreter(config, "solve", *step) for step in (("00",), (None,), (None, True))] == ["vllm/bin/python"] * 2 + [""]


def test_what_needs_no_engine_stays_on_this_machine():
    generated = load("smoke", ["population.teachers=0", "propose.curriculum=uniform"]).engineless
    assert generated == {"propose"} and load("smoke").engineless == set()
    placement = Placement(sandbox="sandbox", gpu="gpu")
    assert [placement.pool(name, "00", generated) for name in ("propose", "solve", "update")] == ["", "gpu", "gpu"]


def test_only_generating_stages_run_under_vllms_interpreter():
    config = load("smoke", ["engine.kind=vllm", "engine.python=vllm/bin/python"])
    assert [name for name in ("start", *STAGE_NAMES) if interpreter(config, name)] == ["start", "propose", "solve", "benchmark"]


def test_an_unknown_stage_is_refused():
    with pytest.raises(KeyError):
        stage_of("dream")
