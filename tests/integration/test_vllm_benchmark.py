"""Public mathematics with vLLM: inside a run, whose stages live in vLLM's interpreter, and beside it, from Prefect's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.config import PROJECT
from flows.suites.suite_data import SAMPLES
from tests.stages.core.engines.test_vllm_engine import PYTHON

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON.is_file(), reason="no .venv-vllm: run make vllm"),
]
ENGINE = ["engine.kind=vllm", f"engine.python={PYTHON}", "engine.compile=false"]
RUN = ["generations=1", "benchmark.style=azr", 'benchmark.suites=["gsm8k"]', "benchmark.limit=4", *ENGINE]
CALM = {"VLLM_CPU_KVCACHE_SPACE": "1", "KMP_BLOCKTIME": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}


def populora(*arguments: str) -> str:
    environment = os.environ | CALM | {"POPULORA_SUITES": str(SAMPLES)}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_four_problems_of_gsm8k_are_scored_inside_a_vllm_run_and_beside_it(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    settings = [word for setting in RUN for word in ("--set", setting)]
    populora("run", "-c", "chaos", "--run-id", "v", "--store", store, *settings)
    inside = sorted((tmp_path / "store/v/benchmarks/gsm8k").glob("asked/generation=0000-*/answers.parquet"))
    assert len(inside) == 1
    rows = pq.read_table(inside[0]).to_pylist()
    assert len({row["problem_id"] for row in rows}) == 4
    assert {row["status"] for row in rows} <= {"correct", "wrong", "format"}  # graded: none of them is an error
    said = populora("benchmark", "v", "--suite", "gsm8k", "--limit", "4", "--generation", "-1", "--store", store)
    assert "gsm8k, 4 problems, style azr" in said
    beside = json.loads(next((tmp_path / "store/v/benchmarks/gsm8k").glob("asked/start-*/benchmark.json")).read_text())
    assert beside["versions"]["engine"]["kind"] == "vllm"
    assert beside["versions"]["engine"]["vllm"]
    assert beside["versions"]["question"]["style"] == "azr"
