"""The line that says what a run has learned since its start."""

from pathlib import Path

import pyarrow as pa
import pytest

from flows.benchmarks.learned import learned_text
from flows.benchmarks.schedule import panels
from flows.benchmarks.suite_changes import suite_change
from flows.config import RunConfig, apply, dump, load
from flows.run.lease import hold
from flows.run.manifest import Ref
from flows.run.planned import benchmarks_at
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import open_store
from flows.suites.own_suites import OwnSuites
from stages.core import tables
from stages.core.suites.scores import Contestant, probe_scores
from tests.support import example_run

CONFIG = load("chaos", ["generations=3", "benchmark.every=0", "benchmark.start=true"])
UNSCORED = load("chaos", ["generations=3", "benchmark.every=0"])


def answers(members: dict[str, str]) -> list[dict[str, object]]:
    """Greedy answers of members to four deductions; `members` maps a member to a mark for each: r is right, w is wrong."""
    return [
        {
            "suite": "probe-dev",
            "adapter_id": member,
            "adapter_sha256": "0" * 64,
            "member_id": member,
            "problem_id": f"deduction-{place}",
            "kind": "deduction",
            "band": 1,
            "attempt": 0,
            "greedy": True,
            "text": "1",
            "answer": "1",
            "status": "correct" if mark == "r" else "wrong",
            "correct": mark == "r",
        }
        for member, marks in members.items()
        for place, mark in enumerate(marks)
    ]


def written(run: Run, folder: str, table: pa.Table, who: list[Contestant]) -> list[Ref]:
    place = f"benchmarks/probe-dev/{folder}"
    scores = run.write_table_at(f"{place}/scores.parquet", probe_scores(table, who), tables.SCORES)
    return [run.write_table_at(f"{place}/answers.parquet", table, tables.ANSWERS), scores]


def scored(run: Run, generation: int, panels: dict[str, dict[str, str]], suite: str = "") -> None:
    refs: list[Ref] = []
    for folder, of in panels.items():
        table = tables.table(answers(of), tables.ANSWERS)
        who = [Contestant(member, "teacher" if member.startswith("t") else "student", member, "0" * 64) for member in of]
        refs += written(run, folder, table, who)
    run.commit("benchmark", generation, [], refs, {}, {"suite": suite} if suite else {})


@pytest.mark.parametrize("config", [CONFIG, UNSCORED, apply(dump(CONFIG), ["benchmark.members=all"])])
def test_the_start_is_scored_in_the_first_generation_where_it_is_asked_for(config: RunConfig, tmp_path: Path) -> None:
    assert [at for at in range(3) if benchmarks_at(config, at)] == ([0, 2] if config.benchmark.start else [2])
    store = open_store(str(tmp_path))
    with hold(store, "run") as epoch:
        run = example_run.build(Run(store, "run", epoch), 1, config)
        io = StageIO(run, "benchmark", 0, None, "m", 1.0)
        found = [(panel.folder, [one.adapter_id for one in panel.contestants]) for panel in panels(io, config)]
    assert found == ([("benchmarks/probe-dev/start", ["s0-start"])] if config.benchmark.start else [])


def test_the_change_is_from_the_start_to_the_newest_benchmark_and_over_all_members(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        assert learned_text(run, CONFIG) is None
        scored(run, 0, {"start": {"s0": "rwww"}})
        assert learned_text(run, CONFIG) is None
        scored(run, 1, {"generation=0001": {"s0": "wwww"}})
        scored(
            run, 2, {"generation=0002": {"s0": "rrww", "s1": "rrrw", "t0": "rrrr"}, "generation=0002/children": {"s1": "rrrr"}}
        )
        found = learned_text(run, CONFIG)
    # a problem's change: 0, 1, 0.5 and 0 points; their mean is 0.375, its error 0.239
    assert found == (
        "+37.5 ± 23.9 points on 4 held-out problems (probe-dev): 25.0 → 62.5 % after generation 2 (mean of 2 members, greedy)"
    )


def test_sampled_attempts_are_told_beside_the_greedy_one(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))

    def both(greedy: str, sampled: str) -> pa.Table:
        drawn = [row | {"greedy": False, "attempt": 1} for row in answers({"s0": sampled})]
        rows = answers({"s0": greedy}) + drawn
        return tables.table([row | {"band": 5 + int(str(row["problem_id"])[-1]) // 2} for row in rows], tables.ANSWERS)

    with hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        for generation, folder, table in ((0, "start", both("rwww", "wwww")), (1, "generation=0001", both("rwww", "rrww"))):
            run.commit("benchmark", generation, [], written(run, folder, table, [Contestant("s0", "student", "s0", "0" * 64)]))
        found = learned_text(run, CONFIG)
    assert found == (
        "+0.0 ± 0.0 points on 4 held-out problems (probe-dev): 25.0 → 25.0 % after generation 1 (one member, "
        "greedy); one sample: +50.0 ± 28.9, 0.0 → 50.0 %\n"
        "           deduction by band, percent that one sample solves: 5: 0 → 100  6: 0 → 0"
    )


def test_a_change_over_two_versions_of_the_suite_is_not_known_and_a_resume_says_that_the_suite_has_changed(
    tmp_path: Path,
) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        assert suite_change(run, "probe-dev") is None
        scored(run, 0, {"start": {"s0": "rwww"}}, suite="old")
        said = "probe-dev has changed since generation 0 was scored: later scores do not compare with earlier ones"
        assert suite_change(run, "probe-dev") == said and suite_change(run, "staircase-dev") is None
        scored(run, 1, {"generation=0001": {"s0": "rrww"}}, suite=OwnSuites().digest("probe-dev"))
        assert suite_change(run, "probe-dev") is None
        found = learned_text(run, CONFIG)
    assert (
        found
        == "not known: probe-dev has changed since the start was scored, so that its scores do not compare with those of now"
    )


def test_a_run_whose_start_was_not_scored_says_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "run") as epoch:
        run = Run(store, "run", epoch)
        scored(run, 0, {"generation=0000": {"s0": "rrww"}})
        assert learned_text(run, UNSCORED) is None
