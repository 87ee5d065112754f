"""docs/extending.md is executed: every example is a file that a configuration can name, and every claim about it holds."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from flows.choices import choose, estimator_of, operators_of, sources
from flows.config import PROJECT, RunConfig
from stages.core import tables
from stages.core.method.curriculum import CURRICULA
from stages.core.method.gates import GATES
from stages.core.method.rewards import RULES, Rule
from stages.core.prompts.compact import CompactPrompts
from stages.evolve import EvolutionPolicy, evolve
from stages.match import MATCHMAKERS
from stages.reward import reward
from stages.solve import SolvePlan, solve
from tests.support.example_run import CONFIG, adapter, build
from tests.support.report_run import made

DOC = (PROJECT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n# (\S+)\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
EXAMPLES = {name: text for name, text in BLOCKS if name != "try"}
TRIALS = [text for name, text in BLOCKS if name == "try"]


@pytest.fixture(autouse=True)
def examples(tmp_path, monkeypatch):
    """The examples as files below a folder of the reader's, on which the trials' imports start."""
    for name, text in EXAMPLES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "examples"]:
        del sys.modules[name]


def test_no_block_is_left_out():
    assert DOC.count("```python") == len(BLOCKS) and len(EXAMPLES) == len(TRIALS) == 8


@pytest.mark.parametrize("trial", TRIALS, ids=list(EXAMPLES))
def test_an_example_does_what_the_page_says(trial):
    exec(compile(trial, "docs/extending.md", "exec"), {})


def named(key):
    """The choice that the page gives for a configuration key, as `/the/readers/folder/file.py:function`."""
    found = next(name for name in re.findall(rf"{re.escape(key)}=(?:\[[^\n]*?\"(?=examples))?([\w./]+\.py:\w+)", DOC))
    return str(Path.cwd() / found)


def configured():
    rules = {"reward": {"rule": named("reward.rule"), "gates": [named("reward.gates")]}}
    rules |= {
        "learning": {"estimator": named("learning.estimator")},
        "population": {"matchmaker": named("population.matchmaker")},
    }
    return RunConfig.model_validate(rules | {"evolution": {"mutations": ["M1", named("evolution.mutations")]}})


def test_a_configuration_can_name_all_of_them_and_run_json_keeps_their_digests():
    config = configured()
    assert choose("reward.rule", config.reward.rule, RULES).__name__ == "half"
    assert choose("population.matchmaker", config.population.matchmaker, MATCHMAKERS).__name__ == "ladder"
    assert [choose("reward.gates", gate, GATES).__name__ for gate in config.reward.gates] == ["trivial"]
    assert estimator_of(config).__name__ == "rloo"
    assert operators_of(config)[named("evolution.mutations")].__name__ == "shrink"
    without = {"population": config.population.model_copy(update={"teachers": 0})}
    without["propose"] = config.propose.model_copy(update={"curriculum": named("propose.curriculum")})
    assert choose("propose.curriculum", without["propose"].curriculum, CURRICULA).__name__ == "edge"
    kept = sources(config.model_copy(update=without))
    files = {name.partition(":")[0].removeprefix(f"{Path.cwd()}/") for name in kept}
    assert files == set(EXAMPLES) - {"examples/arithmetic.py", "examples/letters.py"}
    assert all(len(digest) == 64 for digest in kept.values())


def test_reward_and_estimator_go_through_the_stage(tmp_path):
    rule: Rule = choose("reward.rule", named("reward.rule"), RULES)
    with made(tmp_path / "store", "run", 1) as run:
        read = [run.read_table(0, name) for name in ("proposals", "tasks", "rollouts", "grades")]
    samples = reward(*read, rule, estimator_of(configured()), "group", 0).to_pylist()
    students = [row for row in samples if row["role"] == "student"]
    group = [row for row in students if row["group_id"] == students[0]["group_id"]]
    others = [np.mean([other["reward"] for other in group if other is not row]) for row in group]
    np.testing.assert_allclose(
        [row["advantage"] for row in group], [row["reward"] - one for row, one in zip(group, others, strict=True)]
    )
    assert all(0 <= row["reward"] <= 1 or row["reward"] == -1 for row in samples if row["role"] == "teacher")


def test_the_operator_goes_through_the_stage():
    from stages.core.method.rating import Rating
    from stages.core.population import initial_members

    name = named("evolution.mutations")
    weights = {f"{role}{number}-start": adapter(number, 0) for role in "ts" for number in range(2)}
    population = initial_members(2, 2, "population", dict.fromkeys(weights, "0" * 64), Rating())
    policy = EvolutionPolicy(every=1, mutations=(name,), crossover_share=0.0)
    operators = {name: choose("evolution", name, {})}
    rows, children = evolve(population, weights, 0, 5, policy, operators, lambda _: "0" * 64)
    for row in rows.to_pylist():
        factor = 1 - row["relative_change"]
        assert row["operator"] == name and 0.5 <= factor <= 1 and row["cosine"] == pytest.approx(1, abs=1e-6)
        assert f'"factor": {factor:.4f}'[:14] in row["parameters"]
    assert set(children) == set(rows["adapter_id"].to_pylist())


def test_the_engine_goes_through_the_stage(tmp_path):
    from examples.letters import Letters  # type: ignore[import-not-found]

    from flows.run.lease import hold
    from flows.run.run import Run
    from flows.store.file_store import FileStore

    with hold(FileStore(tmp_path / "store"), "run") as epoch:
        run = build(Run(FileStore(tmp_path / "store"), "run", epoch), 1, CONFIG)
    matches, tasks = run.read_table(0, "matches"), run.read_table(0, "tasks")
    engine = Letters(dict.fromkeys(matches["student_adapter_id"].to_pylist(), "return x + 1\n"))
    digests = dict.fromkeys(matches["student_adapter_id"].to_pylist(), "0" * 64)
    rollouts = solve(matches, digests, tasks, engine, CompactPrompts(), SolvePlan(2, 16, 1.0), 5, 0)
    valid = sum(status == "valid" for status in tasks["status"].to_pylist())
    assert rollouts.num_rows == 2 * valid > 0 and rollouts.schema.equals(tables.ROLLOUTS)


def test_every_file_that_names_a_kind_is_on_the_list():
    listed = set(re.findall(r"`((?:stages|flows)/[\w/]+\.py)`", DOC[DOC.index("## A kind of task") :]))
    name = re.compile(r"Kind\.[A-Z]|[\"'](?:deduction|abduction|induction)[\"']")
    files = [path for folder in ("stages", "flows") for path in (PROJECT / folder).rglob("*.py")]
    assert {path.relative_to(PROJECT).as_posix() for path in files if name.search(path.read_text(encoding="utf-8"))} == listed


def test_what_the_page_names_exists():
    for name in re.findall(r"`((?:stages|flows|infra|tests)/[\w/]+\.\w+)`", DOC):
        assert (PROJECT / name).is_file(), name
    for key in re.findall(r"`((?:reward|learning|population|evolution|propose)\.\w+)`", DOC):
        group, _, field = key.partition(".")
        assert field in type(getattr(RunConfig.model_validate({}), group)).model_fields, key
