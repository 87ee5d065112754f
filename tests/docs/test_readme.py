"""What the README says is true: its tree, its configurations, its commands, its tables."""

import re
import shlex
import subprocess

import pytest

from flows.cli import _parser
from flows.commands.run import USUAL
from flows.commands.studies.bench import BENCHES
from flows.config import PROJECT, RUNS, load
from flows.run.retention import forkable, policy_of
from stages.core.tables import GENERATION_TABLES

README = (PROJECT / "README.md").read_text(encoding="utf-8")


def listed() -> list[str]:
    """The folders that the tree names, as paths: two spaces are one level."""
    above: list[str] = []
    found = []
    for indent, name in re.findall(r"^( *)(\w+)/ ", README.split("## The tree")[1].split("```")[1], flags=re.MULTILINE):
        above = [*above[: len(indent) // 2], name]
        found.append("/".join(above))
    return found


def test_the_tree_is_what_lies_there() -> None:
    packages = {path.parent.relative_to(PROJECT) for top in ("flows", "stages") for path in PROJECT.glob(f"{top}/**/__init__.py")}
    made = {"build", "dist", "runs"}
    tops = {path.name for path in PROJECT.iterdir() if path.is_dir() and path.name.isidentifier() and path.name not in made}
    assert sorted(listed()) == sorted({path.as_posix() for path in packages} | tops)


def test_every_configuration_is_named_and_no_other() -> None:
    table = README.split("## Configurations")[1].split("## ")[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, flags=re.MULTILINE)) == {path.stem for path in RUNS.glob("*.toml")}


def test_the_tables_of_a_generation_are_named() -> None:
    line = next(line for line in README.splitlines() if "{table}.parquet" in line)
    assert set(line.split()[1:]) == {*GENERATION_TABLES, "groups"}


def test_the_default_run_is_the_one_described() -> None:
    config = load(USUAL)
    forked = min(forkable(policy_of(config), config.generations), key=lambda one: abs(one - (config.generations // 2 - 1)))
    rate = f"{config.learning.learning_rate / 2:g}"
    assert f"fork {USUAL} --generation {forked} --run-id {USUAL}-fork --set learning.learning_rate={rate}\n" in README
    assert f"The run of {config.generations} generations takes" in README
    assert f"train {config.population.teachers} teachers and {config.population.students} students" in README
    assert f"the change on {config.benchmark.limit} held-out problems" in README


def test_the_commands_parse() -> None:
    lines = [line for line in README.splitlines() if line.startswith(".venv/bin/populora")]
    assert len(lines) >= 5
    for line in lines:
        _parser().parse_args(shlex.split(line.partition("#")[0])[1:])


def test_make_bench_runs_every_measurement() -> None:
    done = subprocess.run(["make", "--dry-run", "bench"], cwd=PROJECT, capture_output=True, text=True, check=True)
    loop = re.search(r"for name in ([a-z ]+);", done.stdout)
    assert loop is not None and sorted(loop[1].split()) == sorted(BENCHES)


def test_what_the_documented_commands_write_here_is_ignored_by_git() -> None:
    if not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout")
    names = [
        "my-run.toml",
        "gpu-check.json",
        "quickstart-report.html",
        "big-report.html",
        "figures/rating.svg",
        "merged/config.json",
    ]
    names += [
        f"{folder}/README.md"
        for folder in ("quickstart-site", "quickstart-tasks", "quickstart-s0-g0004", "first-s12-start", "one-a0-g0001")
    ]
    kept = ["README.md", "flows/figures/rating.svg", "infra/runs/my-run.toml", "docs/evidence/smoke-site/index.html"]
    listed = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        cwd=PROJECT,
        input="\n".join(names + kept),
        capture_output=True,
        text=True,
    )
    assert listed.stdout.split() == names


def test_the_make_targets_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
