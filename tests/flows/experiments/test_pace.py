"""How long an experiment's runs will take, from runs that have begun."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.config import RunConfig, dump, load
from flows.experiments.cost import plan_text
from flows.experiments.pace import Pace, hours_left, measured
from flows.experiments.spec import planned, read
from flows.run.lease import hold
from flows.run.run import Run
from flows.settings import Cost
from flows.storage import open_store
from tests.flows.experiments.test_experiments import FILE, write

SCORED = {"benchmark.every": 2, "benchmark.limit": 12, "benchmark.attempts": 1}
"""Eight generations of `chaos`: a benchmark of 12 problems, greedy and with one sample, in every second one."""
STAGES = {"propose": 4.0, "verify": 1.0, "solve": 2.0, "grade": 1.0, "update": 3.0, "evolve": 0.5}


def configured(**changed: object) -> RunConfig:
    return load("chaos", [f"{key}={value}" for key, value in {"generations": 8, **SCORED, **changed}.items()])


def begun(store: Path, config: RunConfig, generations: list[dict[str, float]], pause: float = 0.0) -> Run:
    """A run whose stages took these seconds, one after another, with a pause before each generation."""
    opened, now = open_store(str(store)), 100.0
    with hold(opened, "begun") as epoch:
        run = Run(opened, "begun", epoch)
        run.describe(dump(config), {"code": "c0de"}, {"started": 1.0})
        run.commit("start", None, [], [], {}, {}, {})
        for number, stages in enumerate(generations):
            now += pause
            for stage, seconds in stages.items():
                run.commit(stage, number, [], [], clock={"seconds": seconds, "started": now, "host": "a"})
                now += seconds
    return run


def test_the_first_generation_does_not_count_where_there_are_later_ones(tmp_path: Path) -> None:
    slow = {stage: 10 * seconds for stage, seconds in STAGES.items()}
    done, pace = measured(begun(tmp_path, configured(), [slow, STAGES, STAGES]), configured())
    assert (done, pace) == (3, Pace(configured(), STAGES, 0.0))
    assert measured(begun(tmp_path / "one", configured(), [slow]), configured()) == (1, Pace(configured(), slow, 0.0))


def test_the_time_between_stages_counts(tmp_path: Path) -> None:
    _, pace = measured(begun(tmp_path, configured(), [STAGES, STAGES, STAGES], pause=1.5), configured())
    assert pace is not None and pace.between == pytest.approx(1.5)


def test_a_run_that_has_not_begun_has_no_pace(tmp_path: Path) -> None:
    assert measured(Run(open_store(str(tmp_path)), "nobody"), configured()) == (0, None)


def test_an_arm_goes_on_at_its_own_pace_and_its_benchmarks_count_as_often_as_they_come() -> None:
    pace = Pace(configured(), STAGES | {"benchmark": 6.0}, 0.5)
    assert hours_left(configured(), 3, [pace]) == pytest.approx((5 * (11.5 + 0.5) + 3 * 6.0) / 3600)  # generations 3, 5 and 7
    assert hours_left(configured(), 8, [pace]) == 0.0


def test_another_arm_takes_the_pace_in_proportion_to_its_work() -> None:
    pace = Pace(configured(), {"solve": 2.0, "grade": 1.0, "evolve": 0.5}, 0.0)
    twice = configured(**{"solve.attempts": 2 * configured().solve.attempts, "generations": 1, "benchmark.every": 0})
    attempts = (
        3 * configured().propose.groups * configured().propose.group_size * configured().matches * configured().solve.attempts
    )
    scoring = (2.0 + 1.0) / attempts * configured().population.students * 12 * 2
    assert hours_left(twice, 0, [pace]) == pytest.approx((2 * 2.0 + 2 * 1.0 + 0.5 + scoring) / 3600)


def test_a_pace_without_proposals_says_nothing_about_an_arm_with_teachers() -> None:
    generated = configured(**{"population.teachers": 0, "propose.curriculum": '"uniform"'})
    assert hours_left(configured(), 0, [Pace(generated, STAGES, 0.0)]) is None
    assert hours_left(generated, 0, [Pace(generated, STAGES, 0.0), Pace(configured(), STAGES, 0.0)]) == pytest.approx(
        8 * 11.5 / 3600 + _scores(generated) / 3600
    )


def _scores(config: RunConfig) -> float:
    """Seconds of the four benchmarks where attempts took three seconds a generation."""
    attempts = config.matches * config.proposals_per_teacher * config.solve.attempts
    return 4 * (2.0 + 1.0) / attempts * config.population.students * 12 * 2


def test_the_plan_takes_the_pace_of_runs_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(FILE)
    store, runs = str(tmp_path / "runs"), planned(read(file))
    write(store, runs[0], generations=1)
    lines = plan_text(read(file), runs, open_store(store)).splitlines()
    assert "1 of 2" in lines[3] and lines[3].endswith("as measured") and lines[5].endswith("as measured")
    assert lines[4].endswith("by the pace of another arm")
    nothing = plan_text(read(file), runs, open_store(str(tmp_path / "empty"))).splitlines()
    assert all(line.endswith("arithmetic on two CPU cores, completions at full length") for line in nothing[3:8])
    assert not [line for line in lines if line.startswith("money")]
    priced = [replace(one, config=one.config.model_copy(update={"cost": Cost(machine_hour=10, currency="EUR")})) for one in runs]
    line = plan_text(read(file), priced, open_store(store)).splitlines()[-1]
    assert line.startswith("money: ") and " EUR, " in line


def test_before_an_arm_has_begun_another_run_of_the_same_model_tells_the_pace(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(FILE)
    store, runs = str(tmp_path / "runs"), planned(read(file))
    write(store, replace(runs[0], run_id="mine"), generations=2)
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "run.json").write_text("{}")
    lines = plan_text(read(file), runs, open_store(store)).splitlines()[3:8]
    assert all("0 of 2" in line and line.endswith("by the pace of mine, a run of the same model") for line in lines)
    slower = [replace(one, config=one.config.model_copy(update={"threads": 7})) for one in runs]
    assert "by the pace" not in plan_text(read(file), slower, open_store(store)), "computed with another number of threads"


def test_an_arm_goes_on_at_the_pace_of_its_run_with_the_most_generations(tmp_path: Path) -> None:
    """The last seed to begin has one generation, in which engines started."""
    file = tmp_path / "tiny.toml"
    file.write_text(FILE.replace("[settings.benchmark]", "[settings]\ngenerations = 8\n\n[settings.benchmark]"))
    store, runs = str(tmp_path / "runs"), planned(read(file))
    many = [place for place, one in enumerate(runs) if one.arm == "many"]
    write(store, runs[many[0]], generations=5)
    before = plan_text(read(file), runs, open_store(store)).splitlines()[3:]
    run = Run(open_store(store), runs[many[1]].run_id)
    with hold(run.store, run.run_id) as epoch:
        run = Run(run.store, run.run_id, epoch)
        run.describe(dump(runs[many[1]].config), {"code": "c0de"}, {"started": 1.0})
        run.commit("start", None, [], [], {}, {}, {})
        run.commit("update", 0, [], [], clock={"seconds": 4000.0})
        run.commit("evolve", 0, [], [])
    after = plan_text(read(file), runs, open_store(store)).splitlines()[3:]
    assert "5 of 8" in before[many[0]] and "0 of 8" in before[many[1]] and "1 of 8" in after[many[1]]
    assert before[many[0]] == after[many[0]]
    assert float(after[many[1]].split()[4]) < 0.1 and after[many[1]].endswith("as measured")
