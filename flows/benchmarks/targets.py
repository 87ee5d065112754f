"""Targets of a benchmark: members of a run, a model with or without PEFT folders, or completions made elsewhere."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load

from flows.backend import Backend
from flows.base_model import hub
from flows.config import ConfigError, RunConfig, apply, parse
from flows.run.held_adapters import HeldAdapters
from flows.run.manifest import Ref
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import Store
from flows.suites.suite_data import rows
from stages.benchmark import PROGRAMS, StoredCompletion
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import WEIGHTS_FILE, rank_of
from stages.core.suites.problems import Problem
from stages.core.suites.scores import Contestant

LONGEST = 100  # letters of a folder's name

Text = str | None
MORE_THAN_LORA = ("use_dora", "alpha_pattern", "rank_pattern", "modules_to_save", "layers_to_transform")
"""What a PEFT folder may ask for that would change its scores if it were ignored."""


@dataclass(frozen=True)
class BenchmarkTarget:
    """Who is scored, where the results are kept, and what makes the completions (`given`: they exist already)."""

    run: Run
    who: str
    config: RunConfig
    contestants: tuple[Contestant, ...]
    adapters: Mapping[str, Adapter]
    inputs: tuple[Ref, ...] = ()
    given: tuple[StoredCompletion, ...] | None = None
    model: Mapping[str, Any] = field(default_factory=dict)  # commit and files of a hub model that belongs to no run


def of_run(run: Run, contestants: Iterable[Contestant], who: str, held: HeldAdapters | None = None) -> BenchmarkTarget:
    """Members of a run (flows.benchmarks.members chooses them). `held` has adapters that need not be read."""
    description = run.history.description()
    assert description is not None
    config = parse(description["config"])
    listed = tuple(contestants)
    io = StageIO(run, "benchmark", None, None, config.model.name, config.model.alpha, held=held)
    adapters = io.adapters([one.adapter_id for one in listed if one.adapter_id])
    return BenchmarkTarget(run, who, config, listed, adapters, tuple(io.inputs()))


def of_model(store: Store, model: str, folders: list[Path], settings: Iterable[str] = ()) -> BenchmarkTarget:
    """A model (folder or hub name) alone and with each PEFT folder. Raises ConfigError; all adapters have one rank and alpha."""
    found = [_peft(folder) for folder in folders]
    shapes = {(rank, alpha, targets) for _, rank, alpha, targets, _ in found}
    if len(shapes) > 1:
        raise ConfigError("the adapters differ in rank, alpha or adapted layers: score them one at a time")
    values: dict[str, Any] = {"model": {"name": model_name(model)}}
    values["population"] = {"teachers": 1, "students": max(1, len(found))}  # the number of adapters an engine allocates for
    if shapes:
        rank, alpha, targets = shapes.pop()
        values["model"] |= {"rank": rank, "alpha": alpha, "targets": list(targets)}
    config = hub.pinned(apply(values, settings))
    digest = Backend(config).model_digest()
    contestants = [Contestant("base", "base", None, digest)]
    contestants += [Contestant(name, "adapter", name, sha256) for name, _, _, _, (_, sha256) in found]
    adapters = {name: weights for name, _, _, _, (weights, _) in found}
    if len(adapters) < len(found):
        raise ConfigError("two adapter folders have the same name")
    who = "-".join([Path(model).name, digest[:8], *(f"{name}.{sha256[:8]}" for name, _, _, _, (_, sha256) in found)])
    run = Run(store, f"model-{_slug(Path(model).name)}-{digest[:8]}")
    return BenchmarkTarget(run, _folder(who), config, tuple(contestants), adapters, model=hub.description(config))


def model_name(model: str) -> str:
    """Return a folder as an absolute path, a hub name as it is."""
    return str(Path(model).absolute()) if Path(model).is_dir() else model


def _slug(name: str) -> str:
    """A model's name as part of a run id, which consists of lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:25].strip("-") or "unnamed"


def _folder(text: str) -> str:
    """Return a text as the name of a folder. A long one ends with its digest in place of the rest."""
    name = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in text).strip("-.")
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 13]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _peft(folder: Path) -> tuple[str, int, float, tuple[str, ...], tuple[Adapter, str]]:
    """Name, rank, alpha, layers and weights of a PEFT folder. Raises ConfigError."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text())
        data = (folder / WEIGHTS_FILE).read_bytes()
        weights = load(data)
        rank, targets = rank_of(weights), tuple(sorted(config["target_modules"]))
        if other := [name for name in MORE_THAN_LORA if config.get(name)] or config.get("bias", "none") != "none":
            raise ValueError(f"{other[0] if isinstance(other, list) else 'bias'} is not supported, only plain LoRA")
        return (
            folder.name,
            rank,
            float(config["lora_alpha"]) * (sqrt(rank) if config.get("use_rslora") else 1.0),  # the scale is alpha / rank
            targets,
            (
                Adapter({name: array.astype("float32") for name, array in weights.items()}, {}, 0),
                hashlib.sha256(data).hexdigest(),
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ConfigError(
            f"--adapter {folder}: not a PEFT folder with safetensors: {str(error).splitlines()[0][:100]}"
        ) from error


def of_completions(store: Store, file: Path, problems: list[Problem]) -> BenchmarkTarget:
    """Completions made elsewhere: JSON lines with `problem_id` (or `task_id`) and one of `text`, `completion`, `solution`.

    `text` is what a model wrote; `solution` the answer itself; `completion` continues where the problem's code ends. Lines of one
    problem are its attempts; a line may state which (`attempt`, 0 being the greedy one). Where each problem has one line, that is
    the greedy attempt; in a file with more, lines that state none are samples, from 1. Raises ConfigError naming the line.
    """
    if not file.is_file():
        raise ConfigError(f"--completions {file}: the file does not exist")
    known = {problem.problem_id: problem for problem in problems}
    who = Contestant("completions", "elsewhere", None, hashlib.sha256(file.read_bytes()).hexdigest())
    listed = [(f"{file.name}, line {number}", row) for number, row in enumerate(rows(file), 1)]
    named = [(where, _problem_of(row, known, where), row) for where, row in listed]
    lines = Counter(problem.problem_id for _, problem, _ in named)
    sampled = max(lines.values(), default=0) > 1
    given, seen, unstated = [], set(), Counter[str]()
    for where, problem, row in named:
        name = problem.problem_id
        attempt = row.get("attempt", unstated[name] + sampled)
        if not isinstance(attempt, int) or (name, attempt) in seen:
            raise ConfigError(f"{where}: problem {name!r} has attempt {attempt!r} twice, or it is not a number")
        seen.add((name, attempt))
        unstated[name] += "attempt" not in row
        given.append(_given(who, problem, attempt, row, where))
    greedy = {name for name, attempt in seen if attempt == 0}
    if greedy and (without := [name for name in lines if name not in greedy]):
        raise ConfigError(f"{file.name}: {without[0]!r} has no greedy attempt (attempt 0), and {min(greedy)!r} has one")
    absent = [name for name in known if not lines[name]]
    if absent:
        raise ConfigError(f"{file.name}: {len(absent)} problems have no completion, the first is {absent[0]!r}")
    run = Run(store, f"completions-{who.adapter_sha256[:12]}")
    # Earlier versions numbered the lines of such a file from 0: their answers stay apart.
    folder = "samples" if sampled and unstated.total() else "completions"
    return BenchmarkTarget(run, folder, RunConfig(), (who,), {}, given=tuple(given))


def _problem_of(row: dict[str, Any], known: Mapping[str, Problem], where: str) -> Problem:
    name = row.get("problem_id", row.get("task_id"))
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"{where}: no problem {str(name)[:80]!r} in the suite (with this --limit)")
    return known[name]


def _given(who: Contestant, problem: Problem, attempt: int, row: dict[str, Any], where: str) -> StoredCompletion:
    for name in ("text", "solution", "completion"):
        if isinstance(row.get(name), str):
            if name == "completion" and problem.form not in PROGRAMS:
                raise ConfigError(
                    f"{where}: a `completion` continues code, and {problem.problem_id!r} asks for none; give `text`, or "
                    "`solution` for the answer alone"
                )
            text = problem.program + row[name] if name == "completion" else row[name]
            return StoredCompletion(who, problem.problem_id, attempt, text, bare=name != "text")
    raise ConfigError(f"{where}: no text, solution or completion")
