"""Imports point one way. Each room's `__init__.py` says what it may import, and this test reads it.

A room is a sub-package of `flows/` or `stages/`. The last sentence of its docstring is `May import: NAME, NAME (module module).`:
a package or module of the project, or one of LIMITED; modules in parentheses are the only ones of the room that may.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "vllm", "transformers", "peft", "accelerate"}
LIMITED = HEAVY | {"prefect", "docker", "matplotlib", "ray", "boto3", "botocore"}
"""Packages that a room must name to import."""
COMPOSITION_ROOT = "flows/backend.py"
PREFECT_AT_THE_TOP = {"flows/train.py", "flows/generation.py"}
PREFECT_FREE = ("flows.worker", "flows.storage", "flows.backend", "flows.config", "flows.commands.doctor")
GPU_CHECKS = tuple(
    f"flows.gpu_check.{name}" for name in ("attention", "kernels", "machine", "policy", "strong_adapters", "update_pace")
)
RECIPES = tuple(f"flows.pretraining.{name}" for name in ("seed_recipe", "reasoner_recipe", "scoring", "checkpoint", "suites"))
LATE_ONLY = ("flows.bench", *GPU_CHECKS, *RECIPES)
"""They import torch at their top, so everything else imports them inside functions."""
IMPURE = {"boto3", "datetime", "glob", "io", "os", "pathlib", "random", "requests", "secrets", "shutil", "socket", "subprocess"}
IMPURE |= {"tempfile", "threading", "time", "urllib", "uuid"}


@dataclass(frozen=True)
class Import:
    """One imported module; `late` when a function imports it."""

    name: str
    late: bool


@dataclass(frozen=True)
class Permission:
    """What a room may import, and which of its modules may (empty: all)."""

    name: str
    modules: frozenset[str]


def imports(source: str) -> list[Import]:
    """Every import of a file; `from a import b` counts as `a.b` where that is a module of ours, as `a` otherwise."""
    found = []

    def walk(node: ast.AST, late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(alias.name, late) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0 and child.module, f"relative import on line {child.lineno}"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    found.append(Import(whole if is_ours(whole) else child.module, late))
            walk(child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    walk(ast.parse(source), False)
    return found


def is_ours(module: str) -> bool:
    place = ROOT / module.replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


@cache
def rooms() -> dict[str, tuple[Permission, ...]]:
    """Every room with what it may import, by its folder, e.g. `flows/run`."""
    return {
        path.parent.relative_to(ROOT).as_posix(): permissions(path.read_text())
        for top in ("flows", "stages")
        for path in sorted((ROOT / top).rglob("__init__.py"))
        if path.parent.relative_to(ROOT).as_posix() not in {"flows", "stages", "stages/core"}
    }


@cache
def permissions(source: str) -> tuple[Permission, ...]:
    """The permissions that a room's docstring grants."""
    said = re.search(r"May import: (.*)\.\s*$", " ".join((ast.get_docstring(ast.parse(source)) or "").split()))
    assert said is not None, f"no sentence `May import: ….` in {source!r}"
    if said[1] == "nothing of the project":
        return ()
    entries = [re.fullmatch(r"([\w.]+)(?: \(([\w ]+)\))?", entry) for entry in said[1].split(", ")]
    assert all(entries), said[1]
    return tuple(Permission(entry[1], frozenset((entry[2] or "").split())) for entry in entries if entry)


def room_of(path: str) -> str | None:
    folder = Path(path).parent.as_posix()
    return folder if folder in rooms() else None


def fault(path: str, found: Import) -> str | None:
    """Why the file at `path` (relative to the project) may not import this, None when it may."""
    return _fault_of_layer(path, found) or _fault_of_room(path, found)


def _fault_of_layer(path: str, found: Import) -> str | None:
    package = found.name.split(".")[0]
    if path.startswith("stages/"):
        if package in {"flows", "prefect"}:
            return f"stages know nothing of {package}"
        core = path.startswith("stages/core/")
        if core and package == "stages" and not found.name.startswith("stages.core"):
            return "the core knows nothing of stages"
        if not core and room_of(path) is None and package == "stages" and not found.name.startswith("stages.core"):
            return "a stage imports no stage"
        if not core and package in IMPURE and (package, room_of(path)) != ("io", "stages/figures"):  # pictures are bytes
            return f"a stage is pure: no {package}"
    if not found.late and _within(found.name, LATE_ONLY) and not _within(_module(path), LATE_ONLY):
        return f"{found.name} may be imported inside functions only"
    return None


def _fault_of_room(path: str, found: Import) -> str | None:
    package, room = found.name.split(".")[0], room_of(path)
    if package not in LIMITED and package not in {"flows", "stages"}:
        return None
    if room is None:
        return _fault_outside_rooms(path, found) if package in LIMITED else None
    if _within(found.name, (room.replace("/", "."),)):
        return None
    package = "boto3" if package == "botocore" else found.name
    for permission in permissions((ROOT / room / "__init__.py").read_text()):
        if _within(package, (permission.name,)) and (not permission.modules or Path(path).stem in permission.modules):
            return None
    return f"{room} may not import {found.name}"


def _fault_outside_rooms(path: str, found: Import) -> str | None:
    package = found.name.split(".")[0]
    if package == "prefect" and path in PREFECT_AT_THE_TOP:
        return None
    if path == COMPOSITION_ROOT and package != "prefect":
        return None if found.late else f"{package} may be imported inside functions only"
    return f"{package} belongs to the rooms that name it"


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def files() -> Iterator[Path]:
    for folder in ("flows", "stages"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_imports_point_one_way():
    faults = []
    for path in files():
        place = path.relative_to(ROOT).as_posix()
        faults += [f"{place}: {why}" for found in imports(path.read_text()) if (why := fault(place, found))]
    assert not faults, "\n".join(faults)


def test_every_permission_is_used():
    unused = []
    for room, allowed in rooms().items():
        used = {(found.name, path.stem) for path in (ROOT / room).glob("*.py") for found in imports(path.read_text())}
        for permission in allowed:
            users = {stem for name, stem in used if _within(name.replace("botocore", "boto3"), (permission.name,))}
            if not users or not permission.modules <= users:
                unused.append(f"{room}: {permission.name} {sorted(permission.modules - users)}")
    assert not unused, "\n".join(unused)


def test_rooms_import_each_other_in_one_direction():
    """No circle among rooms. A permission for one module of another room does not count: it is a named exception."""
    graph = {room: {p.name.replace(".", "/") for p in allowed} & set(rooms()) for room, allowed in rooms().items()}
    order: list[str] = []
    while left := {room for room in graph if room not in order}:
        free = sorted(room for room in left if not graph[room] - set(order))
        assert free, f"a circle among {sorted(left)}"
        order += free


def test_no_folder_is_a_corridor():
    """Neither a room nor the folders above them, nor one of the tests: who looks for a file reads at most 25 names."""
    counts = Counter(path.parent for top in ("flows", "stages", "tests") for path in (ROOT / top).rglob("*.py"))
    crowded = {folder.relative_to(ROOT).as_posix(): count for folder, count in counts.items() if count > 25}
    assert not crowded, crowded


def private_names(source: str) -> set[str]:
    """The private names that a file defines: functions, methods, variables, and attributes of its own objects."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return {name for name in found if _is_private(name)}


def borrowed(source: str, elsewhere: set[str]) -> list[str]:
    """The private names of other modules of the product that a file imports or reaches through an object."""
    own, found = private_names(source), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {"flows", "stages"}:
            found += [f"line {node.lineno}: {alias.name} of {node.module}" for alias in node.names if _is_private(alias.name)]
        elif isinstance(node, ast.Attribute) and node.attr in elsewhere - own and not _is_own(node.value):
            found.append(f"line {node.lineno}: .{node.attr}")
    return found


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def test_no_module_borrows_the_private_names_of_another():
    """Libraries' private names are not meant: only those that a module of ours defines."""
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files()}
    known = set().union(*map(private_names, sources.values()))
    faults = [f"{place}, {one}" for place, source in sources.items() for one in borrowed(source, known)]
    assert not faults, "\n".join(faults)


def test_borrowing_is_seen_in_imports_and_through_objects():
    known = private_names("_CURRENT = 1\n\ndef _apply(): ...\n\nclass A:\n    def __init__(self): self._ends = 0")
    assert known == {"_CURRENT", "_apply", "_ends"}
    assert borrowed("from flows.config import _apply", known) and borrowed("session._CURRENT.set(1)", known)
    assert borrowed("def bench(engine):\n    engine._ends = 1", known) and borrowed("import a\nprint(a._apply())", known)
    assert not borrowed("from re import _parser\nimport os\nos._exit(0)\nmodel.config._attn = 1", known)
    assert not borrowed("class B:\n    def __init__(self, other): self._ends = other._ends", known)


@pytest.mark.parametrize(
    ("path", "source", "why"),
    [
        ("stages/rate.py", "from stages.match import match", "a stage imports no stage"),
        ("stages/rate.py", "from stages import match", "a stage imports no stage"),
        ("stages/core/method/rating.py", "import stages.rate", "the core knows nothing of stages"),
        ("stages/rate.py", "def rate():\n    import prefect", "stages know nothing of prefect"),
        ("stages/core/method/rating.py", "from flows.config import RunConfig", "stages know nothing of flows"),
        ("stages/reward.py", "import torch.nn", "torch belongs to the rooms that name it"),
        ("stages/core/method/rewards.py", "import torch", "stages/core/method may not import torch"),
        (
            "stages/core/values/literals.py",
            "from stages.core import tables",
            "stages/core/values may not import stages.core.tables",
        ),
        ("flows/train.py", "def run():\n    from transformers import AutoTokenizer", "transformers belongs to the rooms"),
        ("flows/backend.py", "import torch", "torch may be imported inside functions only"),
        ("flows/benchmarks/score.py", "import torch", "flows/benchmarks may not import torch"),
        ("flows/cli.py", "from flows.pretraining import seed_recipe", "flows.pretraining.seed_recipe may be imported inside"),
        (
            "flows/commands/studies/bench.py",
            "from flows.bench.update import main",
            "flows.bench.update may be imported inside functions only",
        ),
        ("stages/verify.py", "import docker", "docker belongs to the rooms that name it"),
        ("stages/core/sandbox/local.py", "import docker", "stages/core/sandbox may not import docker"),
        ("flows/report/report.py", "import matplotlib.pyplot", "flows/report may not import matplotlib.pyplot"),
        ("flows/run/lease.py", "from flows.execution import session", "flows/run may not import flows.execution.session"),
        ("flows/execution/session.py", "import prefect", "flows/execution may not import prefect"),
        ("stages/match.py", "from time import time", "a stage is pure: no time"),
        ("stages/match.py", "class A:\n    if True:\n        import random", "a stage is pure: no random"),
    ],
)
def test_a_forbidden_import_is_reported(path, source, why):
    assert [told for found in imports(source) if (told := fault(path, found)) and told.startswith(why)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "stages/rate.py",
            "from stages.core.method import rating\nfrom stages.core.tables import MATCHES\nimport pyarrow, numpy",
        ),
        ("stages/core/engines/hf_engine.py", "import torch\nfrom transformers import AutoModelForCausalLM"),
        ("stages/core/sandbox/docker.py", "import docker, os, time"),
        ("flows/backend.py", "def engine():\n    import torch\n    from stages.core.engines.hf_engine import HfEngine"),
        ("flows/commands/pretrain.py", "def pretrain():\n    from flows.pretraining.seed_recipe import main"),
        ("flows/pretraining/checkpoint.py", "import torch\nfrom stages.core.seed_model.pretraining import train"),
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
