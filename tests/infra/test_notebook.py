"""The cells of the notebook, run from top to bottom on the CPU with the seed model; only the installation is skipped."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.config import PROJECT
from tests.support.static_site import broken_links

NOTEBOOK = PROJECT / "infra" / "notebooks" / "first_run.ipynb"


def cells(kind: str = "code") -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_the_notebook_is_clean_and_says_what_its_sandbox_is_not() -> None:
    document = json.loads(NOTEBOOK.read_text())
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells())
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    assert "the local sandbox is not a wall" in source(cells("markdown")[0])
    assert [cell["id"] for cell in cells() if "sandbox.kind=local" in source(cell)] == ["plan"]
    for cell in cells():
        compile(source(cell), cell["id"], "exec")  # plain Python: no magic of a notebook


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_cells_run_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    names: dict[str, Any] = {}
    for cell in cells():
        tags = cell["metadata"].get("tags", [])
        if "install" in tags:
            continue
        exec(compile(source(cell), cell["id"], "exec"), names)  # the project's own notebook
        if "parameters" in tags:
            ours = {"PROJECT": PROJECT, "POPULORA": [sys.executable, "-m", "flows.cli"], "CONFIG": "chaos"}
            names.update(ours, SETTINGS=["generations=2"], STORE=tmp_path / "runs")
    said = capsys.readouterr().out
    assert "verdicts on proposals:" in said and "answers: " in said and "head       " in said
    assert (tmp_path / "runs" / "first.html").is_file()
    assert broken_links(tmp_path / "runs" / "first-site") == []
    folder = names["FOLDER"]
    assert {file.name for file in folder.iterdir()} == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    manifest = json.loads((tmp_path / "runs" / "first" / "generation=0000" / "verify.json").read_text())
    assert "false" in json.dumps(manifest["versions"]["sandbox"])
