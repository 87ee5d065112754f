import math
import random
import statistics
from pathlib import Path

import pyarrow as pa
import pytest

from flows.config import dump, load
from flows.monitoring.alarms import Alarm, alarms, summary
from flows.monitoring.run_tables import RunTables
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core import tables
from stages.core.statistics.condensed import numbered
from tests.support.counted import lines_run
from tests.support.report_run import made


def metrics(*rows):
    """(generation, name, value, member, role) as METRICS with a column `generation`."""
    parts = [
        numbered(
            tables.table([{"name": name, "value": value, "member_id": member, "role": role, "kind": None}], tables.METRICS),
            generation,
        )
        for generation, name, value, member, role in rows
    ]
    return pa.concat_tables([numbered(tables.METRICS.empty_table(), 0), *parts])


def valid(*shares):
    return metrics(*((generation, "propose.valid_share", share, None, None) for generation, share in enumerate(shares)))


NO_RATINGS = numbered(tables.RATINGS.empty_table(), 0)


def names(found):
    return [(alarm.generation, alarm.name, alarm.subject) for alarm in found]


def test_valid_share_collapses_against_its_own_past_or_outright():
    assert names(alarms(valid(0.8, 0.7, 0.75, 0.3), NO_RATINGS, {})) == [(3, "collapse", "valid share")]
    assert names(alarms(valid(0.8, 0.7, 0.75, 0.4), NO_RATINGS, {})) == []
    assert names(alarms(valid(0.05, 0.7), NO_RATINGS, {})) == [(0, "collapse", "valid share")]
    assert str(alarms(valid(0.8, 0.7, 0.75, 0.3), NO_RATINGS, {})[0]) == (
        "g0003 collapse: only 30 % of proposals are valid; the median before was 75 %"
    )


def scored(*members, kind="deduction", role="student", problems=500, measure="pass@1 greedy"):
    rows = [
        {
            "suite": "probe-dev",
            "member_id": f"s{number}",
            "role": role,
            "adapter_id": f"s{number}-g0000",
            "adapter_sha256": "",
            "group": kind,
            "measure": measure,
            "score": score,
            "problems": problems,
            "attempts": 1,
            "stderr": None,
        }
        for number, score in enumerate(members)
    ]
    return tables.table(rows, tables.SCORES)


def test_students_forget_a_kind_against_the_best_score_so_far():
    """44 → 49 → 40 % of 500 problems: three standard errors from 49 % are 9.4 points, from 44 % 9.3."""

    def found(**scores):
        return alarms(metrics(), NO_RATINGS, {}, None, {int(name[1:]) - 1: table for name, table in scores.items()})

    assert found(g0=scored(0.44), g50=scored(0.49), g100=scored(0.40)) == []
    [alarm] = found(g0=scored(0.44), g50=scored(0.49), g100=scored(0.39))
    assert str(alarm) == "g0099 forgetting: 39 % of the deductions of the run's own suite are solved; earlier 49 %"
    assert found(g0=scored(0.44), g50=scored(0.39, 0.49)) == [], "the mean of the members counts"
    for other in ({"role": "teacher"}, {"kind": "deduction d4"}, {"measure": "pass@8"}, {"problems": 10}):
        assert found(g0=scored(0.9, **other), g50=scored(0.5, **other)) == []


def test_scores_are_read_from_the_run_s_own_suite_and_a_fault_is_read_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        run.describe(dump(load("smoke")), {"code": "c0de"}, {})
        run.commit("start", None, [], [])
        for generation, score in enumerate((0.7, 0.4)):
            places = {f"benchmarks/probe-dev/generation={generation:04d}/scores.parquet": scored(score, 0.6)}
            places[f"benchmarks/humaneval-plus/generation={generation:04d}/scores.parquet"] = scored(0.1)
            if generation == 0:
                places["benchmarks/probe-dev/start/scores.parquet"] = scored(0.7)
            refs = [run.write_table_at(uri, table, tables.SCORES) for uri, table in places.items()]
            run.commit("benchmark", generation, [], refs)
    file = tmp_path / "run" / "benchmarks/probe-dev/generation=0001/scores.parquet"
    kept = file.read_bytes()
    file.write_bytes(b"")
    watch = RunTables(Run(open_store(str(tmp_path)), "run")).look()
    assert sorted(watch.scores()) == [-1, 0] and watch.alarms() == [] and len(watch.faults) == 1
    file.write_bytes(kept)
    [alarm] = watch.alarms()
    assert str(alarm) == "g0001 forgetting: 50 % of the deductions of the run's own suite are solved; earlier 70 %"
    assert watch.faults == []


def test_forgetting_is_within_one_version_of_the_suite(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        run.describe(dump(load("smoke")), {"code": "c0de"}, {})
        run.commit("start", None, [], [])
        for generation, (score, suite) in enumerate([(0.7, "old"), (0.4, "old"), (0.1, "new"), (0.1, "")]):
            place = f"benchmarks/probe-dev/generation={generation:04d}/scores.parquet"
            ref = run.write_table_at(place, scored(score), tables.SCORES)
            run.commit("benchmark", generation, [], [ref], {}, {"suite": suite} if suite else {})
    assert names(RunTables(Run(store, "run")).look().alarms()) == [(1, "forgetting", "deduction")]


def test_coverage_collapses_by_repetition_or_where_nothing_new_comes():
    rows = [(generation, "propose.duplicate_share", share, None, None) for generation, share in enumerate((0.5, 0.51, 0.1))]
    assert names(alarms(metrics(*rows), NO_RATINGS, {})) == [(1, "collapse", "coverage")]
    cells = [1, *[0] * 9, 2, *[0] * 11]
    rows = [(generation, "coverage.new_cells", float(count), None, None) for generation, count in enumerate(cells)]
    found = alarms(metrics(*rows), NO_RATINGS, {})
    assert names(found) == [(20, "collapse", "cells"), (21, "collapse", "cells")]
    assert found[1].message == "no new cell of the problem space for 11 generations"


def test_many_stretches_of_generations_are_counted():
    found = [Alarm(generation, "slow", "solve", "s") for generation in range(0, 14, 2)]
    assert summary(found) == ["slow, 7 of the generations 0 to 12: s"]
    assert summary(found[:6]) == ["slow, generations 0, 2, 4, 6, 8 and 10: s"]


def test_students_that_forget_are_a_collapse() -> None:
    def solved(*shares: float) -> pa.Table:
        return metrics(*((generation, "solve.rate", share, None, None) for generation, share in enumerate(shares)))

    assert alarms(solved(0.2, 0.5, 0.6, 0.26), NO_RATINGS, {}) == []
    [found] = alarms(solved(0.5, 0.5, 0.6, 0.2), NO_RATINGS, {})
    assert str(found) == "g0003 collapse: only 20 % of attempts are correct; the median before was 50 %"


def test_groups_count_once_whichever_member_they_belong_to_and_a_single_agent_counts_in_both_roles():
    name = "reward.zero_variance_share"
    rows = [(0, name, 1.0, "s0", "student"), (0, name, 0.75, "s1", "student"), (0, name, 0.79, None, "student")]
    assert alarms(metrics(*rows), NO_RATINGS, {}) == [], "s0 had one group, s1 sixty"
    rows = [(0, name, 0.85, None, "teacher"), (0, name, 0.81, None, "student"), (0, name, 0.83, "a0", "student")]
    found = alarms(metrics(*rows), NO_RATINGS, {})
    assert [alarm.message for alarm in found] == [
        "81 % of the students' groups have equal rewards or no advantage",
        "85 % of the teachers' groups have equal rewards or no advantage",
    ]
    assert alarms(metrics((0, name, 0.8, None, "student")), NO_RATINGS, {}) == []


def test_truncation_drift_lag_and_entropy():
    rows = [(0, "solve.truncated_share", 0.26, None, None), (0, "propose.truncated_share", 0.25, None, None)]
    rows += [(2, "update.nonfinite", 1.0, "t0", "teacher"), (2, "update.nonfinite", 0.0, "s0", "student")]
    rows += [(1, "update.drift_mean", 0.2, "s0", "student"), (1, "update.drift_mean", 0.01, "t0", "teacher")]
    rows += [(2, "update.lag_mean", 0.11, "s0", "student"), (2, "update.lag_mean", 0.09, "t0", "teacher")]
    rows += [(generation, "update.entropy", value, "s0", "student") for generation, value in enumerate((1.0, 0.9, 1.1, 0.2))]
    found = names(alarms(metrics(*rows), NO_RATINGS, {}, {1: 0.05}))
    assert found == [
        (0, "truncated", "solve"),
        (1, "drift", "student"),
        (2, "lag", "student"),
        (2, "not-finite", "teacher"),
        (3, "collapse", "entropy student"),
    ]


@pytest.mark.parametrize(("bound", "member"), [(0.0001, 0.00006), (0.05, 0.026), (0.2, 0.11)])
def test_drift_warns_before_the_run_stops_by_the_worst_member(bound: float, member: float) -> None:
    rows = [(0, "update.drift_mean", member * share, f"s{place}", "student") for place, share in enumerate((0.1, 1.0, 0.1))]
    rows += [(0, "update.drift_mean", bound / 2, "t0", "teacher"), (1, "update.drift_mean", member, "s1", "student")]
    (alarm,) = alarms(metrics(*rows), NO_RATINGS, {}, {0: bound})
    assert (alarm.generation, alarm.subject) == (0, "student")
    assert alarm.message == f"engine and trainer differ by {member:.2g} nats per token for a student; {bound:g} stop the run"


def test_the_bounds_of_drift_are_those_of_the_run(tmp_path: Path) -> None:
    for name, dtype, own, bound in (("a", "float32", 0.0, 0.0001), ("b", "bfloat16", 0.0, 0.05), ("c", "float32", 0.3, 0.3)):
        store = open_store(str(tmp_path))
        with hold(store, name) as epoch:
            run = Run(store, name, epoch)
            run.describe(dump(load("smoke", [f"engine.max_drift={own}"])), {}, {})
            run.commit("solve", 0, [], [], {}, {"engine": {"kind": "transformers", "dtype": dtype}})
            run.commit("grade", 1, [], [])
            assert list(RunTables(run).look().drift_bounds().values()) == [bound]


def test_an_agents_step_that_is_not_taken_is_not_of_a_role():
    (alarm,) = alarms(metrics((2, "update.nonfinite", 1.0, "a0", "both")), NO_RATINGS, {})
    assert alarm.message == "the agent's adapter took no step: the gradient, or the adapter after the step, was not finite"


def test_one_sided_ratings():
    rows = []
    for generation, chance in enumerate((0.5, 0.05, 0.95)):
        for member, role in (("t0", "teacher"), ("s0", "student")):
            row = dict.fromkeys(tables.RATINGS.names, "x") | {"member_id": member, "role": role, "born": 0, "expected": chance}
            numbers = dict.fromkeys(("mu_before", "sigma_before", "mu", "sigma", "fitness", "observed"), 0.5)
            rows.append(numbered(tables.table([row | numbers], tables.RATINGS), generation))
    found = alarms(metrics(), pa.concat_tables(rows), {})
    assert [alarm.message for alarm in found] == [
        "teachers are far ahead: by rating, a student has a chance of 5 % to win",
        "students are far ahead: by rating, a student has a chance of 95 % to win",
    ]


def test_a_stage_of_six_times_its_median_is_slow():
    clock = {generation: {"solve": 2.0, "grade": 0.1} for generation in range(5)}
    clock[2] = {"solve": 13.0, "grade": 1.0}  # a second is not worth an alarm
    assert names(alarms(metrics(), NO_RATINGS, clock)) == [(2, "slow", "solve")]
    events = {number: {"evolve": 60.0 if number == 9 else 0.1, "benchmark": 90.0 if number == 9 else 1.0} for number in range(10)}
    assert alarms(metrics(), NO_RATINGS, events) == [], "most generations have no event and score nothing"
    assert alarms(metrics(), NO_RATINGS, {0: {"solve": 1.0}, 1: {"solve": 100.0}}) == []


def test_a_slow_stage_is_measured_by_all_others_at_a_cost_that_grows_with_them():
    def clock_of(generations):
        drawn = random.Random(3)
        return {number: {"solve": drawn.choice((1.0, 2.0, 2.0, 5.5, 14.0)), "grade": 60.0} for number in range(generations)}

    for generations in range(1, 12):
        clock, usual = clock_of(generations), {}
        for number in clock:
            others = [spent["solve"] for other, spent in clock.items() if other != number]
            usual[number] = statistics.median(others) if len(others) >= 3 else math.inf
        slow = [number for number, middle in usual.items() if clock[number]["solve"] > max(6 * middle, middle + 5)]
        found = alarms(metrics(), NO_RATINGS, clock)
        assert names(found) == [(number, "slow", "solve") for number in slow]
        assert all(f"generations is {usual[alarm.generation]:.1f} s" in alarm.message for alarm in found)
    few, many = (lines_run(lambda: alarms(metrics(), NO_RATINGS, clock_of(count))) for count in (200, 800))  # noqa: B023
    assert many < 5 * few


def test_summary_joins_generations():
    found = [Alarm(generation, "truncated", "solve", f"{generation}") for generation in (1, 2, 3, 7)] + [
        Alarm(4, "slow", "solve", "s")
    ]
    assert summary(found) == ["truncated, generations 1 to 3 and 7: 7", "slow, generation 4: s"]
    assert summary([Alarm(2, "slow", "a", "x"), Alarm(3, "slow", "a", "y")]) == ["slow, generations 2 to 3: y"]
    assert summary([]) == []


def test_alarms_of_a_stored_run(tmp_path):
    with made(tmp_path, "run", 9) as run:
        (tmp_path / "run" / "generation=0001" / "metrics.parquet").write_bytes(b"damaged")
        assert (7, "slow", "grade") in names(RunTables(run).look().alarms())
