"""Time left, from manifests' clocks and the reading of the running step."""

import pytest

from flows.monitoring.meter import Reading
from flows.monitoring.time_left import Benchmarks, TimeLeft, elapsed, overlap, time_left, usual_seconds
from flows.monitoring.working import Step
from flows.run.manifest import Manifest
from flows.stages import REQUIRED

USUAL = dict.fromkeys(REQUIRED, 10.0)
DUE = Benchmarks({2, 3, 9}, 4.0)


def manifest(stage, **clock):
    return Manifest("run", 0, stage, "", (), (), {}, {}, clock)


def test_parts_at_the_same_time_count_once_and_a_break_does_not_count():
    together = [manifest("solve.parts/00", started=100.0, seconds=10.0), manifest("solve.parts/01", started=101.0, seconds=12.0)]
    assert elapsed([*together, manifest("solve", started=113.5, seconds=1.0)]) == {"solve": 14.5}
    apart = [manifest("update.parts/00", started=100.0, seconds=10.0), manifest("update", started=9000.0, seconds=2.0)]
    assert elapsed(apart) == {"update": 12.0}
    assert elapsed([manifest("match", seconds=0.5), manifest("rate")]) == {"match": 0.5, "rate": 0.0}


def test_an_update_beside_the_rollouts_shares_its_time_with_them():
    early = [manifest(f"update.parts/{part:02d}", started=100.0 + part, seconds=30.0) for part in range(2)]
    others = [manifest("propose", started=99.0, seconds=11.0), manifest("solve", started=112.0, seconds=8.0)]
    ended = [manifest("reward", started=133.0, seconds=1.0), manifest("update", started=134.0, seconds=2.0)]
    found = elapsed([*early, *others, *ended])
    assert found == {"update": 33.0, "propose": 11.0, "solve": 8.0, "reward": 1.0}
    assert overlap([*early, *others, *ended]) == 18.0
    assert sum(found.values()) - 18.0 == 136.0 - 99.0 - 2.0, "nothing was at work for 2 s before reward"
    assert overlap([*others, *ended]) == 0.0


def test_what_stages_share_is_not_left_twice():
    usual = USUAL | {"update": 30.0}
    alone, shared = (time_left("solve", 2, 4, [], 0.0, usual, share) for share in (0.0, 25.0))
    assert alone.generation is not None and alone.run is not None
    assert shared == TimeLeft(alone.stage, alone.generation - 25.0, alone.run - 2 * 25.0)
    late = time_left("rate", 2, 4, [], 0.0, usual, 25.0)
    assert late.generation == time_left("rate", 2, 4, [], 0.0, usual).generation


def test_usual_is_the_median_of_stages_that_every_generation_has():
    history = [{"match": 1.0, "solve": seconds} for seconds in (5.0, 6.0, 50.0)]
    history[0]["benchmark"] = 9.0
    assert usual_seconds(history) == {"match": 1.0, "solve": 6.0}
    assert usual_seconds([]) == {}


def test_a_reading_of_the_whole_stage_is_believed_first():
    reading = Reading((("completions", 1.0, 4.0),), 0, None, 33.0, "completions")
    found = time_left("evolve", 2, 4, [Step("evolve", 2, None, 5.0, reading)], 0.0, USUAL, 0.0, DUE)
    assert found == TimeLeft(33.0, 33.0, 33.0 + 94.0)


def test_benchmarks_count_where_they_are_due_and_as_long_as_the_newest_took():
    def left(stage, generation):
        return time_left(stage, generation, 50, [], 0.0, USUAL, 0.0, Benchmarks({9, 19, 49}, 40.0))

    assert left("rate", 18) == TimeLeft(10.0, 20.0, 20.0 + 31 * 90.0 + 2 * 40.0)
    assert left("rate", 19) == TimeLeft(10.0, 60.0, 60.0 + 30 * 90.0 + 40.0)
    assert left("benchmark", 19) == TimeLeft(40.0, 50.0, 50.0 + 30 * 90.0 + 40.0)
    assert left("evolve", 49) == TimeLeft(10.0, 10.0, 10.0)
    assert time_left("benchmark", 9, 50, [], 0.0, USUAL, 0.0, Benchmarks({9})) == TimeLeft(), "nobody knows the first one"


@pytest.mark.parametrize(
    ("stage", "seconds", "done", "left"),
    [("evolve", 4.0, 0.0, (6.0, 6.0, 100.0)), ("evolve", 40.0, 0.0, (0.0, 0.0, 94.0)), ("rate", 1.0, 2.0, (7.0, 21.0, 115.0))],
)
def test_without_one_it_is_what_the_stage_usually_takes(stage, seconds, done, left):
    assert time_left(stage, 2, 4, [Step(stage, 2, None, seconds)], done, USUAL, 0.0, DUE) == TimeLeft(*left)


def test_before_the_first_generation_is_complete_only_the_step_is_known():
    reading = Reading((("completions", 1.0, 4.0),), 0, None, 33.0, "completions")
    assert time_left("solve", 0, 4, [Step("solve", 0, None, 5.0, reading)], 0.0, {}) == TimeLeft(33.0)
    assert time_left("start", None, 4, [], 0.0, {}) == TimeLeft()
