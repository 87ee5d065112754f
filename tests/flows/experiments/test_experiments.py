"""Experiments: what a file may say, what a comparison says about runs that are not whole, and one that is killed and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.config import PROJECT, ConfigError, differences, dump
from flows.experiments.comparison import gather, problems
from flows.experiments.comparison_page import write_comparison
from flows.experiments.cost import plan_text
from flows.experiments.spec import Experiment, Planned, planned, read
from flows.run.lease import hold
from flows.run.manifest import Manifest
from flows.run.run import Run
from flows.storage import open_store
from stages.core import tables
from stages.core.statistics.metric_rows import value_row

FILE = """
name = "tiny"
question = "Is it <b>so</b>?"
seeds = [0, 1]

[settings.benchmark]
every = 1

[[arms]]
name = "many"
config = "chaos"

[[arms]]
name = "one"
config = "chaos"
seeds = [0, 1, 2]
settings = { mode = "single", population = { teachers = 1, students = 1 }, evolution = { every = 0 } }

[primary]
contrast = ["many", "one"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", sorted(path.name for path in (PROJECT / "infra" / "experiments").glob("*.toml")))
def test_every_committed_experiment_can_be_planned(name: str) -> None:
    described = read(PROJECT / "infra" / "experiments" / name)
    runs = planned(described)
    assert len({one.run_id for one in runs}) == len(runs) > len(described.arms)
    text = plan_text(described, runs, open_store("nowhere-at-all"))
    assert f"{len(runs)} runs" in text and not Path("nowhere-at-all").exists()


def test_a_plan_says_where_students_of_arms_make_unlike_numbers_of_attempts() -> None:
    texts = {}
    for name in ("curricula", "even", "population"):
        described = read(PROJECT / "infra" / "experiments" / f"{name}.toml")
        texts[name] = plan_text(described, planned(described), open_store("nowhere-at-all"))
    said = "attempts per student and generation, at most: "
    assert said + "384 in variance, supervised; 128 in uniform; equal generations are not equal attempts" in texts["curricula"]
    assert said not in texts["even"] + texts["population"]


def test_the_staircase_compares_the_generator_with_four_pairs_at_equal_tokens_per_adapter() -> None:
    described = read(PROJECT / "infra" / "experiments" / "staircase.toml")
    arms = {one.arm: one.config for one in planned(described)}
    assert (described.primary.contrast, described.primary.budget) == (("quad", "variance"), "generated_tokens_per_adapter")
    assert {name: config.adapters for name, config in arms.items() if config.adapters != 8} == {
        "variance": 4,
        "uniform": 4,
        "single": 1,
        "pair": 2,
    }
    assert {config.model.name for config in arms.values()} == {"infra/models/reasoner"}
    assert {config.benchmark.suite for config in arms.values()} == {"staircase-test"}
    assert {name for name, config in arms.items() if differences(dump(config), dump(arms["quad"]))} == set(arms) - {"quad"}


def test_an_arm_may_take_over_the_runs_of_another_experiment(tmp_path: Path) -> None:
    described = read(PROJECT / "infra" / "experiments" / "taught.toml")
    taken = [one for one in planned(described) if one.arm == "variance"]
    theirs = [one for one in planned(read(PROJECT / "infra" / "experiments" / "depth.toml")) if one.arm == "variance"]
    assert taken == theirs


def test_two_arms_never_have_the_same_run(file: Path) -> None:
    file.write_text(FILE.replace('name = "one"', 'name = "one"\nruns = "tiny-many"'))
    with pytest.raises(ConfigError, match="arms many and one both have the run tiny-many-s0"):
        planned(read(file))


def test_budgets_of_an_arm_without_teachers_are_those_of_its_students(file: Path, tmp_path: Path) -> None:
    single = 'settings = { mode = "single", population = { teachers = 1, students = 1 }, evolution = { every = 0 } }'
    without = 'settings = { population = { teachers = 0 }, propose = { curriculum = "uniform" } }'
    file.write_text(FILE.replace(single, without))
    runs = planned(read(file))[:2]
    for one in runs:
        write(str(tmp_path / "runs"), one)
    found = gather(open_store(str(tmp_path / "runs")), runs)
    names = ("generated_tokens", "generated_tokens_per_adapter", "trained_tokens_per_adapter")
    assert {one.planned.arm: [one.totals[name] for name in names] for one in found} == {
        "many": [2000, 500, 400],
        "one": [2000, 1000, 800],
    }


@pytest.mark.parametrize(("arm", "tokens"), [("many", 2 * 600 / 2), ("one", 2 * 700)])
def test_tokens_per_student_are_those_that_students_generated(arm: str, tokens: float, file: Path, tmp_path: Path) -> None:
    store, one = str(tmp_path / "runs"), next(one for one in planned(read(file)) if one.arm == arm)
    write(store, one)
    (found,) = gather(open_store(store), [one])
    assert found.totals["generated_tokens"] == 2000 and found.totals["generated_tokens_per_student"] == tokens
    assert [point["generated_tokens_per_student"] for point in found.points if point["what"] == "score"][-1] == tokens


def test_tokens_per_student_may_be_the_primary_budget(file: Path, tmp_path: Path) -> None:
    longer = FILE.replace('config = "chaos"\n', 'config = "chaos"\nsettings = { generations = 4 }\n', 1)
    file.write_text(longer + 'budget = "generated_tokens_per_student"')
    store, runs = str(tmp_path / "runs"), planned(read(file))
    for one in runs:
        write(store, one, gain=0.1)
    text, folder = compared(file, store)
    (row,) = (
        row
        for row in pq.read_table(folder / "differences.parquet").to_pylist()
        if row["budget"] == "generated_tokens_per_student" and row["over"] == "mean" and row["what"] == "score"
    )
    assert (row["at"], row["seeds"]) == (4 * 300, [0, 1])
    assert "at equal tokens written, per student" in text
    assert '"generated_tokens_per_student"' in (folder / "runs.csv").read_text().splitlines()[0]


def test_a_result_is_final_once_every_seed_of_both_arms_is_compared(file: Path, tmp_path: Path) -> None:
    file.write_text(FILE.replace('contrast = ["many", "one"]', 'contrast = ["one", "many"]'))  # seeds 0, 1, 2 minus 0, 1
    store, runs = str(tmp_path / "runs"), planned(read(file))
    for one in runs[:2]:
        write(store, one)
    assert "Only 1 of 2 planned pairs are available" in compared(file, store)[0]
    for one in runs[2:]:
        write(store, one)
    assert "planned pairs are available" not in compared(file, store)[0]


def test_arms_lie_over_the_experiment_over_the_configuration(file: Path) -> None:
    runs = planned(read(file))
    assert [one.run_id for one in runs] == ["tiny-many-s0", "tiny-one-s0", "tiny-many-s1", "tiny-one-s1", "tiny-one-s2"]
    many, one = runs[2].config, runs[3].config
    assert (many.seed, many.benchmark.every, many.population.teachers, many.evolution.every) == (1, 1, 2, 1)
    assert (one.seed, one.benchmark.every, one.population.teachers, one.mode) == (1, 1, 1, "single")
    assert read(file).compared() == [("many", "one")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("seeds = [0, 1]\n", "seeds = []\n"), "seeds: Tuple should have at least 1 item"),
        (('name = "one"', 'name = "many"'), "arms: many appears twice"),
        (('contrast = ["many", "one"]', 'contrast = ["many", "none"]'), "contrast: none is not one of the arms many, one"),
        (('contrast = ["many", "one"]', 'contrast = ["one", "one"]'), "contrast: one cannot be compared with itself"),
        (('question = "', 'questoin = "'), "question: Field required"),
        (('question = "', "question = "), "Invalid value"),
        (('config = "chaos"', 'config = "choas"'), "arm many: no configuration 'choas'"),
        (
            ("evolution = { every = 0 }", "evolution = { evry = 0 }"),
            "arm one: evolution.evry: there is no such setting; did you mean",
        ),
        (('name = "tiny"', f'name = "{"t" * 40}"'), "is longer than 40 characters"),
        (("[primary]\n", '[primary]\nbudget = "watts"\n'), "primary.budget: Input should be"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(file: Path, change: tuple[str, str], said: str) -> None:
    file.write_text(FILE.replace(*change, 1))
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        planned(read(file))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_ends_with_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "experiment", "no.toml"], cwd=PROJECT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "populora: no.toml: No such file or directory\n")


def write(
    store: str,
    one: Planned,
    generations: int | None = None,
    model: str = "m",
    gain: float = 0.0,
    start: float | None = 0.1,
    suite: str = "",
    rule: dict[str, int] | None = None,
) -> None:
    """A run's manifests, metrics and scores: what a comparison reads. Each letter of `suite` is a version, the last one stays."""
    opened = open_store(store)
    with hold(opened, one.run_id) as epoch:
        run = Run(opened, one.run_id, epoch)
        run.describe(dump(one.config), {"code": "c0de"}, {"started": 1.0})
        seeds = run.write_table(None, "seeds", tables.SEEDS.empty_table())
        run.commit("start", None, [], [seeds], {}, {"base_model": model * 64, **(rule or {})}, {})
        if start is not None:
            score(run, one, None, start, suite[:1])
        for generation in range(one.config.generations if generations is None else generations):
            rows = [value_row("cost.generated_tokens", 1000), value_row("cost.trained_tokens", 800), value_row("solve.rate", 0.5)]
            rows += members(one)
            metrics = run.write_table(generation, "metrics", tables.table(rows, tables.METRICS))
            run.commit("update", generation, [], [metrics], clock={"seconds": 2.0})
            score(run, one, generation, (start or 0.1) + gain * (generation + 1) + one.seed / 100, suite[: generation + 1][-1:])
            run.commit("evolve", generation, [], [run.write_table(generation, "offspring", tables.OFFSPRING.empty_table())])


def members(one: Planned) -> list[dict]:
    """Metrics of the members: of 1,000 tokens the teachers generated 400, and the single agent wrote only 700."""
    wrote = {"a0": 700} if one.config.mode == "single" else {"t0": 150, "t1": 250, "s0": 200, "s1": 400}
    rows = [value_row("cost.generated_tokens", tokens, member_id=name) for name, tokens in wrote.items()]
    roles = [("solve", "student", "as"), ("propose", "teacher", "at")]
    return rows + [
        value_row(f"{stage}.completion_tokens", 7.0, member_id=name, role=role)
        for stage, role, letters in roles
        for name in wrote
        if name[0] in letters
    ]


def score(run: Run, one: Planned, generation: int | None, value: float, suite: str = "") -> Manifest:
    member = "a0" if one.config.mode == "single" else "s0"
    adapter = f"{member}-start" if generation is None else f"{member}-g{generation:04d}"
    row = {
        "suite": "probe-dev",
        "member_id": member,
        "role": "student",
        "adapter_id": adapter,
        "adapter_sha256": "0",
        "group": "all",
    }
    row |= {"measure": "pass@1 greedy", "score": value, "problems": 12, "attempts": 1, "stderr": 0.1}
    place = f"probe-dev/generation={generation:04d}" if generation is not None else f"probe-dev/asked/{adapter}-n12-k0"
    ref = run.write_table_at(f"benchmarks/{place}/scores.parquet", tables.table([row], tables.SCORES), tables.SCORES)
    if generation is None:
        return run.commit_benchmark(place, [], [ref], {}, {"suite": suite}, {})
    return run.commit("benchmark", generation, [], [ref], {}, {"suite": suite}, clock={"seconds": 5.0})


def compared(file: Path, store: str) -> tuple[str, Path]:
    described = read(file)
    out = file.parent / "out.html"
    write_comparison(described, file, planned(described), open_store(store), out)
    return out.read_text(), out.with_suffix("")


def test_whole_runs_are_compared_at_equal_budgets(file: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one, gain=0.1 if one.arm == "many" else 0.02)
    text, folder = compared(file, store)
    rows = pq.read_table(folder / "differences.parquet").to_pylist()
    primary = rows[0]
    assert (primary["budget"], primary["n"], primary["seeds"]) == ("generations", 2, [0, 1])
    assert (primary["first_mean"], primary["second_mean"]) == (pytest.approx(0.305), pytest.approx(0.145))
    assert primary["label"] == "exploratory"  # the file is not committed
    by_budget = {row["budget"]: row for row in rows if row["what"] == "score" and row["over"] == "mean"}
    # 4 adapters share 2000 tokens; the single agent is first scored after 1000 to itself
    assert by_budget["generated_tokens"]["at"] == 2000 and "generated_tokens_per_adapter" not in by_budget
    assert by_budget["seconds"]["at"] == 4.0  # benchmarks cost nothing
    totals = {row["run"]: row for row in pq.read_table(folder / "runs.parquet").to_pylist()}
    assert totals["tiny-one-s2"]["trained_tokens"] == 1600 and totals["tiny-one-s2"]["state"] == "finished"
    moved = {(row["arm"], row["measure"]): row for row in pq.read_table(folder / "changes.parquet").to_pylist()}
    assert {arm for arm, _ in moved} == {"many", "one"} and 'id="changes"' in text
    assert "&lt;b&gt;so" in text and "<b>so" not in text and "https:" not in text and "src=" not in text
    assert (folder / "curves.csv").read_text().startswith('"arm","seed","model","trained","name"')
    assert "5 of 5 runs are finished" in text and "Incomplete data" not in text


def test_what_is_missing_is_said_and_unlike_runs_are_not_averaged(file: Path, tmp_path: Path) -> None:
    store, runs = str(tmp_path / "runs"), planned(read(file))
    write(store, runs[0])
    write(store, runs[1], model="n")
    write(store, runs[2])
    write(store, runs[3], generations=1)
    text, folder = compared(file, store)
    assert "tiny-one-s2: not started." in text
    assert "tiny-one-s1: half finished, 1 of 2 generations." in text
    assert "different base models" in text and "mmmmmmmm: tiny-many-s0" in text
    assert pq.read_table(folder / "differences.parquet").num_rows == 0
    assert "No seed has scores of both arms at an equal amount yet." in text
    found = gather(open_store(store), runs)
    assert [one.state for one in found] == ["finished", "finished", "finished", "half finished", "not started"]


def test_a_run_of_another_configuration_is_left_out(file: Path, tmp_path: Path) -> None:
    store, runs = str(tmp_path / "runs"), planned(read(file))
    other = runs[0].config.model_copy(update={"threads": 3})
    write(store, Planned("many", 0, runs[0].run_id, other))
    (one, *_) = gather(open_store(store), runs[:1])
    assert one.state == "unlike" and problems([one]) == [
        "tiny-many-s0: left out: the store contains a run of this name with a different configuration (threads)."
    ]


def test_seconds_of_a_benchmark_s_shards_are_no_training(file: Path, tmp_path: Path) -> None:
    store, (one, *_) = str(tmp_path / "runs"), planned(read(file))
    write(store, one)
    (before,) = gather(open_store(store), [one])
    with hold(open_store(store), one.run_id) as epoch:
        run = Run(open_store(store), one.run_id, epoch)
        for stage in ("benchmark", "solve"):
            run.commit(stage, 0, [], [], clock={"seconds": 100.0}, part="00")
    (after,) = gather(open_store(store), [one])
    assert (before.totals["seconds"], after.totals["seconds"]) == (4.0, 104.0)


def test_a_run_from_before_a_setting_existed_is_compared(file: Path, tmp_path: Path) -> None:
    store, (one, *_) = str(tmp_path / "runs"), planned(read(file))
    write(store, one)
    path = tmp_path / "runs" / one.run_id / "run.json"
    description = json.loads(path.read_text())
    del description["config"]["learning"]["warmup"], description["config"]["engine"]
    path.write_text(json.dumps(description))
    (found,) = gather(open_store(store), [one])
    assert found.state == "finished" and problems([found]) == []


@pytest.mark.parametrize("choice", [True, False])
def test_a_run_is_compared_whatever_automatic_recomputation_meant_for_it(choice: bool, file: Path, tmp_path: Path) -> None:
    store, (one, *_) = str(tmp_path / "runs"), planned(read(file))
    assert one.config.learning.gradient_checkpointing == "auto"
    write(store, replace(one, config=one.config.recomputing(choice)))
    (found,) = gather(open_store(store), [one])
    assert found.state == "finished" and problems([found]) == []


def test_nothing_at_all_gives_a_page_that_says_so(file: Path, tmp_path: Path) -> None:
    text, folder = compared(file, str(tmp_path / "runs"))
    assert text.count("not started.") == 5 and (folder / "runs.csv").is_file()


def test_a_file_committed_before_its_runs_makes_the_primary_contrast_confirmatory(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / "tiny.toml"
    file.write_text(FILE)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "plan"]):
        environment = os.environ | {"GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z"}
        subprocess.run(["git", "-C", str(folder), *command], check=True, env=environment)
    store, described = str(tmp_path / "runs"), read(file)
    for one in planned(described):
        write(store, one)
    cases = [((1.0, 1e9), "exploratory"), ((1e9, 1.0), "exploratory"), ((1e9, 1e9), "confirmatory")]  # an arm before, or none
    for starts, label in cases:
        for one in planned(described):
            start = starts[one.arm == "many"]
            path = tmp_path / "runs" / one.run_id / "run.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"clock": {"started": start}}))
        _, tables_at = compared(file, store)
        assert pq.read_table(tables_at / "differences.parquet")["label"][0].as_py() == label


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(2400)
def test_an_experiment_is_killed_and_two_processes_go_on_with_it(file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "experiment", str(file), "--store", str(tmp_path / "runs")]
    process = subprocess.Popen(command, cwd=PROJECT, start_new_session=True)
    second = tmp_path / "runs" / "tiny-one-s0" / "generation=0000" / "propose.json"
    while not second.exists():
        assert process.poll() is None
        time.sleep(0.5)
    first = (tmp_path / "runs" / "tiny-many-s0" / "generation=0001" / "evolve.json").stat().st_mtime_ns
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    said = [tmp_path / "0.txt", tmp_path / "1.txt"]
    with ExitStack() as files:
        outputs = [files.enter_context(out.open("w")) for out in said]
        home = os.environ | {"PREFECT_HOME": str(tmp_path / "home")}  # a new one, which both servers share
        two = [subprocess.Popen(command, cwd=PROJECT, env=home, stdout=out) for out in outputs]
    assert [one.wait() for one in two] == [0, 0]
    assert "in use by another process" in said[0].read_text() + said[1].read_text()
    assert (tmp_path / "runs" / "tiny-many-s0" / "generation=0001" / "evolve.json").stat().st_mtime_ns == first
    page = (tmp_path / "runs" / "tiny-comparison.html").read_text()
    assert "5 of 5 runs are finished" in page
    scores = pq.read_table(tmp_path / "runs" / "tiny-comparison" / "scores.parquet").to_pylist()
    assert {row["trained"] for row in scores if row["arm"] == "one" and row["seed"] == 1} == {0, 1, 2}


def test_experiments_are_plain_values() -> None:
    assert Experiment.model_json_schema()["required"] == ["name", "question", "seeds", "arms", "primary"]
