"""A new run configuration from five answers: a shipped one, changed only where the answers say, each key with its title.

The store is no setting: the file's first lines name it in the command that starts the run.
"""

import re
import shlex
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.config import PROJECT, RUNS, ConfigError, RunConfig, apply, dump, load
from flows.guide.setting_list import as_toml, groups, settings, value_at
from flows.near_names import hint
from flows.plan.estimate import hours
from flows.storage import StoreRefused, open_store

HARDWARE = {
    "quickstart": "two CPU cores, with the shipped model that shows its steps",
    "smoke": "two CPU cores, with the shipped seed model",
    "laptop": "two CPU cores and 10 GB of memory",
    "pair": "two CPU cores and 10 GB of memory, a quarter of an hour, tasks with mixed results",
    "one-gpu": "one GPU with 24 GB",
    "paper": "one GPU with 80 GB",
    "paper-8gpu": "8 GPUs with 80 GB",
}
"""The shipped configurations to start from, by the machine that each fits."""
SHIPPED = {"infra/models/reasoner": "quickstart", "infra/models/seed": "smoke"}
"""The models in this repository, each with the configuration that was made for it."""
MANY_CARDS = 8  # of `paper-8gpu`
SMALL_CARD, LARGE_CARD = 22_000, 76_000  # MiB that nvidia-smi shows for 24 GB and 80 GB
POPULATION = re.compile(r"([1-9]\d{0,2})T?\+([1-9]\d{0,2})S?", re.IGNORECASE)
BUDGET = re.compile(r"([1-9]\d{0,6})|(\d{1,6}(?:\.\d+)?)h")
WIDTH = 118

Answers = Mapping[str, str]
Ask = Callable[[str, str], str]
"""Asks a person, and returns the answer; the second text is why the last one could not be used (empty: there was none)."""


@dataclass(frozen=True)
class Question:
    """One question of `populora init`. `check` raises ConfigError or StoreRefused for an answer that cannot be used."""

    name: str
    asked: str
    default: Callable[[Answers], str]
    check: Callable[[str, Answers], None]


def questions(machine: str, store: str) -> tuple[Question, ...]:
    """Return the questions in their order; `machine` and `store` are the defaults of this machine."""
    return (
        Question("model", "Model: a folder, or a name on the Hugging Face hub; empty: the one for the hardware", _none, _accept),
        Question("hardware", _hardware_text(), lambda answers: _hardware_for(answers["model"], machine), _check_hardware),
        Question(
            "population",
            "Population: teachers+students, such as 4+4, or single (one adapter in both roles)",
            _members,
            _check_population,
        ),
        Question(
            "budget", "Budget: generations, or hours such as 8h (by the estimate of --dry-run)", _generations, _check_budget
        ),
        Question("store", "Store: folder, file:///folder or s3://bucket/prefix", lambda _: store, _check_store),
    )


def answered(asked: Sequence[Question], given: Mapping[str, str | None], ask: Ask | None) -> Answers:
    """Return an answer to each question: the given one, else what `ask` returns, else the default.

    Raises ConfigError or StoreRefused for a given answer that cannot be used; one from `ask` is asked for again.
    """
    answers: dict[str, str] = {}
    for question in asked:
        answer, default = given[question.name], question.default(answers)
        if answer is None:
            answers[question.name] = default if ask is None else _asked(question, default, answers, ask)
        else:
            question.check(answer, answers)
            answers[question.name] = answer
    return answers


def _asked(question: Question, default: str, answers: Answers, ask: Ask) -> str:
    said = ""
    while True:
        answer = ask(f"{question.asked} [{default}]: ", said).strip() or default
        try:
            question.check(answer, answers)
            return answer
        except (ConfigError, StoreRefused) as error:
            said = str(error)


def fitting_hardware(cards: Sequence[str], memory: int) -> str:
    """Return the shipped configuration for a machine: lines of `nvidia-smi` (name, driver, memory), and bytes of memory."""
    sizes = [int(found[1]) for card in cards if (found := re.search(r"(\d+) MiB\s*$", card))]
    large = sum(size >= LARGE_CARD for size in sizes)
    if large:
        return "paper-8gpu" if large >= MANY_CARDS else "paper"
    if any(size >= SMALL_CARD for size in sizes):
        return "one-gpu"
    return "laptop" if memory >= 12 * 10**9 else "quickstart"


def changes(answers: Answers) -> dict[str, Any]:
    """Return the settings in which the new configuration differs from the shipped one, by dotted key."""
    base = load(answers["hardware"])
    wanted: dict[str, Any] = {}
    if answers["model"]:
        wanted["model.name"] = _model_name(answers["model"])
        if wanted["model.name"] != base.model.name and base.model.style == "azr":
            wanted["model.style"] = "auto"  # of the shipped styles, the one that not every model follows
    members = POPULATION.fullmatch(answers["population"])
    mode, teachers, students = ("population", *map(int, members.groups())) if members else ("single", 1, 1)
    wanted |= {"mode": mode, "population.teachers": teachers, "population.students": students}
    values = dump(base)
    different = {key: value for key, value in wanted.items() if value_at(values, key) != value}
    generations = _budgeted(answers, different)
    return different | ({"generations": generations} if generations != base.generations else {})


def text(answers: Answers, start: Sequence[str]) -> str:
    """Return the file. `start` is the command that starts the run, for the first lines. Raises ConfigError."""
    name, changed = answers["hardware"], changes(answers)
    values = tomllib.loads((RUNS / f"{name}.toml").read_text(encoding="utf-8"))
    for key, value in changed.items():
        group, _, field = key.rpartition(".")
        (values.setdefault(group, {}) if group else values)[field] = value
    apply(values, ())  # what the run would refuse is refused here
    base = dump(load(name))
    alone = [key for key in RunConfig.model_fields if key in values and not isinstance(values[key], dict)]
    lines = [
        *_comment(
            f"A run configuration: infra/runs/{name}.toml ({HARDWARE[name]}). A changed line ends with the value in {name}."
        ),
        *_comment(f"Start or resume it: {shlex.join(start)}"),
        *_comment("`populora explain KEY` says more about a setting, `populora explain` lists those that are not here."),
    ]
    for group, own in [("", {key: values[key] for key in alone}), *((key, values[key]) for key in groups() if key in values)]:
        lines += ["", f"[{group}]", *_comment(groups()[group])] if group else [""]
        for field in own:
            lines += _setting_lines(f"{group}.{field}" if group else field, own[field], name, changed, base)
    assert tomllib.loads("\n".join(lines)) == values, lines
    return "\n".join(lines) + "\n"


def _setting_lines(key: str, value: Any, name: str, changed: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Return a key under its title; a changed one is followed by the value of the shipped configuration."""
    before = f"  # {name}: {as_toml(value_at(base, key))}" if key in changed else ""
    return [*_comment(settings()[key].meaning), f"{key.rpartition('.')[2]} = {as_toml(value)}{before}"]


def _comment(words: str) -> list[str]:
    return textwrap.wrap(
        words, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False, break_long_words=False
    )


# the questions: defaults and checks -------------------------------------------------------------------------------------------


def _accept(_answer: str, _: Answers) -> None:
    """Accept any answer: whether a model can be used is found out when a run plans with it."""


def _none(_: Answers) -> str:
    return ""


def _hardware_text() -> str:
    return "\n".join(["Hardware:", *(f"  {name:10} {about}" for name, about in HARDWARE.items()), "Which of these"])


def _hardware_for(model: str, machine: str) -> str:
    if shipped := _shipped(model):
        return SHIPPED[shipped]
    return "laptop" if model and machine in SHIPPED.values() else machine


def _check_hardware(answer: str, answers: Answers) -> None:
    if answer not in HARDWARE:
        raise ConfigError(f"hardware: {answer!r} is not one of {', '.join(HARDWARE)}{hint(answer, HARDWARE)}")
    model = answers["model"]
    made_for = SHIPPED.get(_shipped(model), "")
    if model and answer != made_for and (made_for or answer in SHIPPED.values()):
        need = made_for or "laptop, pair, one-gpu, paper or paper-8gpu"
        raise ConfigError(f"hardware: {answer} does not fit the model {model}; choose {need}")


def _members(answers: Answers) -> str:
    population = load(answers["hardware"]).population
    return f"{population.teachers}+{population.students}"


def _check_population(answer: str, _: Answers) -> None:
    if answer != "single" and not POPULATION.fullmatch(answer):
        raise ConfigError(f"population: {answer!r} is neither teachers+students, such as 4+4, nor single")


def _generations(answers: Answers) -> str:
    return str(load(answers["hardware"]).generations)


def _check_budget(answer: str, answers: Answers) -> None:
    if not BUDGET.fullmatch(answer):
        raise ConfigError(f"budget: {answer!r} is neither a number of generations nor hours such as 8h")
    if answer.endswith("h") and not float(answer[:-1]):
        raise ConfigError(f"budget: {answer} leaves no time for a generation; give a number of generations, or hours such as 8h")
    changes({**answers, "budget": answer})  # hours need a model of known size


def _check_store(answer: str, _: Answers) -> None:
    open_store(answer)


def _budgeted(answers: Answers, different: Mapping[str, Any]) -> int:
    """Return the number of generations of the budget. Hours are divided by the estimate for one generation."""
    found = BUDGET.fullmatch(answers["budget"])
    assert found is not None, answers["budget"]
    if found[1]:
        return int(found[1])
    name = answers["hardware"]
    one = load(name, [f"{key}={as_toml(value)}" for key, value in different.items()] + ["generations=1"])
    estimates = hours(one)
    if not estimates:
        model = one.model.name
        why = f"there is no folder {model}" if Path(model).is_absolute() and not Path(model).is_dir() else f"{model} is unknown"
        raise ConfigError(f"budget: {why}, so hours cannot be estimated; give a number of generations instead")
    wanted = "80 GB" if name.startswith("paper") else "24 GB"
    each = next((value for machine, value in estimates.items() if wanted in machine), next(iter(estimates.values())))
    return max(1, int(float(found[2]) / each))


def _shipped(model: str) -> str:
    """Return the name of a shipped model as configurations have it, however its folder was written; empty for other models."""
    return next((name for name in SHIPPED if model and (model == name or Path(model).resolve() == PROJECT / name)), "")


def _model_name(model: str) -> str:
    """Return a folder as an absolute path, since runs take a relative one as below the project; hub names stay as they are."""
    if shipped := _shipped(model):
        return shipped
    return str(Path(model).absolute()) if Path(model).is_dir() else model
