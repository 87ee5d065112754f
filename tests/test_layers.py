"""Imports point one way: flows -> stages -> stages.core, and what is heavy or worldly stays in the files made for it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "vllm", "transformers", "peft", "accelerate"}
GPU_FILES = {
    f"stages/core/{name}.py"
    for name in (
        "cpu",
        "grouped_lora",
        "hf_engine",
        "lora",
        "lora_algebra",
        "lora_backends",
        "lora_paper",
        "loss",
        "muon",
        "pretraining",
        "torch_trainer",
        "vllm_engine",
    )
}
# The composition root reaches for torch inside functions. The other two kinds are commands of their own: they may import it
# anywhere, because nothing else imports them but inside a function.
ROOT_FILE = "flows/backend.py"
COMMANDS = ("flows/bench_*.py", "flows/commands/export.py", "flows/commands/pretrain.py")
DOCKER_FILES = {"stages/core/sandbox/docker.py", "flows/commands/doctor.py", "flows/bench/sandbox.py"}
PREFECT_FREE = ("flows.worker", "flows.storage", "flows.backend", "flows.config", "flows.commands.doctor")
# A stage has no clock, no randomness of its own and no I/O.
IMPURE = {"boto3", "datetime", "glob", "io", "os", "pathlib", "random", "requests", "secrets", "shutil", "socket", "subprocess"}
IMPURE |= {"tempfile", "threading", "time", "urllib", "uuid"}


@dataclass(frozen=True)
class Import:
    """One imported module; `late` when a function imports it."""

    name: str
    late: bool


def imports(source: str) -> list[Import]:
    """Every import of a file. `from a import b` counts as both a and a.b, because b may be a module."""
    found = []

    def walk(node: ast.AST, late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(alias.name, late) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"relative import on line {child.lineno}"
                found.extend(
                    Import(name, late) for alias in child.names for name in (child.module, f"{child.module}.{alias.name}")
                )
            walk(child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    walk(ast.parse(source), False)
    return found


def is_command(path: str) -> bool:
    return any(Path(path).match(pattern) for pattern in COMMANDS)


def fault(path: str, found: Import) -> str | None:
    """Why the file at `path` (relative to the project) may not import this, None when it may."""
    package = found.name.split(".")[0]
    is_flow, is_core = path.startswith("flows/"), path.startswith("stages/core/")
    if package in HEAVY and path not in GPU_FILES and not is_command(path):
        if path != ROOT_FILE:
            return f"{package} belongs to the GPU files of stages/core"
        return None if found.late else f"{package} may be imported inside functions only"
    if not found.late and not is_command(path) and is_command(found.name.replace(".", "/") + ".py"):
        return "a command of its own may be imported inside functions only"
    if package == "docker" and path not in DOCKER_FILES:
        return "docker belongs to the Docker sandbox and the doctor"
    if package == "matplotlib" and is_flow and not found.late:
        return "matplotlib belongs to stages/figures/figures.py"
    if is_flow:
        return None
    if package in {"flows", "prefect"}:
        return f"stages know nothing of {package}"
    if package == "stages" and found.name != "stages" and not found.name.startswith("stages.core"):
        return "a stage imports no stage" if not is_core else "the core knows nothing of stages"
    if package in IMPURE and not is_core:
        return f"a stage is pure: no {package}"
    return None


def files() -> Iterator[Path]:
    for folder in ("flows", "stages"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_imports_point_one_way():
    faults = []
    for path in files():
        place = path.relative_to(ROOT).as_posix()
        faults += [f"{place}: {found.name}: {why}" for found in imports(path.read_text()) if (why := fault(place, found))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("path", "source", "why"),
    [
        ("stages/rate.py", "from stages.match import match", "a stage imports no stage"),
        ("stages/rate.py", "from stages import match", "a stage imports no stage"),
        ("stages/core/method/rating.py", "import stages.rate", "the core knows nothing of stages"),
        ("stages/rate.py", "def rate():\n    import prefect", "stages know nothing of prefect"),
        ("stages/core/method/rating.py", "from flows.config import RunConfig", "stages know nothing of flows"),
        ("stages/reward.py", "import torch.nn", "torch belongs to the GPU files of stages/core"),
        ("stages/loss.py", "import torch", "torch belongs to the GPU files of stages/core"),
        ("flows/train.py", "def run():\n    from transformers import AutoTokenizer", "transformers belongs to the GPU files"),
        ("flows/backend.py", "import torch", "torch may be imported inside functions only"),
        ("flows/benchmarks/score.py", "import torch", "torch belongs to the GPU files of stages/core"),
        ("flows/cli.py", "from flows import pretrain", "a command of its own may be imported inside functions only"),
        (
            "flows/commands/commands.py",
            "from flows.bench.update import main",
            "a command of its own may be imported inside functions only",
        ),
        ("stages/verify.py", "import docker", "docker belongs to the Docker sandbox and the doctor"),
        ("flows/report/report.py", "import matplotlib.pyplot", "matplotlib belongs to stages/figures/figures.py"),
        ("stages/match.py", "from time import time", "a stage is pure: no time"),
        ("stages/match.py", "class A:\n    if True:\n        import random", "a stage is pure: no random"),
    ],
)
def test_a_forbidden_import_is_told(path, source, why):
    assert [told for found in imports(source) if (told := fault(path, found)) and told.startswith(why)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("stages/rate.py", "from stages.core import rating\nfrom stages.core.tables import MATCHES\nimport pyarrow, numpy"),
        ("stages/core/engines/hf_engine.py", "import torch\nfrom transformers import AutoModelForCausalLM"),
        ("stages/core/sandbox/docker.py", "import docker, os, time"),
        ("flows/backend.py", "def engine():\n    import torch\n    from stages.core.engines.hf_engine import HfEngine"),
        ("flows/cli.py", "def pretrain():\n    from flows.commands.pretrain import main"),
        ("flows/commands/pretrain.py", "import torch\nfrom stages.core.seed_model.pretraining import train"),
        ("flows/train.py", "import prefect\nfrom stages import match, rate"),
    ],
)
def test_an_honest_import_passes(path, source):
    assert not [fault(path, found) for found in imports(source) if fault(path, found)]


def within_flows(module: str) -> set[str]:
    """Modules of flows that importing `module` can load, itself included."""
    seen, open_ends = set(), [module]
    while open_ends:
        path = ROOT / f"{open_ends[-1].replace('.', '/')}.py"
        if (name := open_ends.pop()) not in seen and path.is_file():
            seen.add(name)
            open_ends += [found.name for found in imports(path.read_text()) if found.name.startswith("flows.")]
    return seen


@pytest.mark.parametrize("module", PREFECT_FREE)
def test_the_stage_subprocess_needs_no_prefect(module):
    reached = within_flows(module)
    assert module in reached
    for name in sorted(reached):
        source = (ROOT / f"{name.replace('.', '/')}.py").read_text()
        assert not [found for found in imports(source) if found.name.split(".")[0] == "prefect"], f"{module} reaches {name}"
