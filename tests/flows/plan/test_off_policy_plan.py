"""The plan of an update beside the rollouts: cards shared, or split between rolling out and training."""

import pytest

from flows.config import load
from flows.plan.card_rates import CARDS
from flows.plan.decoder_shape import KNOWN
from flows.plan.estimate import plan
from flows.plan.off_policy_plan import Division, best_division, shared_seconds
from flows.plan.stage_plan import StageTime, generation_seconds, spread, stage_times

SHAPE, LARGE = KNOWN["Qwen2.5-Coder-7B"], CARDS[-1]


@pytest.mark.parametrize(("update", "seconds"), [(4.0, 46.0), (6.0, 46.0), (20.0, 60.0)])
def test_shared_cards_train_while_the_sandbox_and_the_scheduler_keep_them_waiting(update: float, seconds: float) -> None:
    stages = [
        ("verify", 5.0, "sandbox"),
        ("solve", 40.0, "memory bandwidth"),
        ("rate", 1.0, "scheduling"),
        ("update", update, "store"),
    ]
    assert shared_seconds([StageTime(*one) for one in stages]) == seconds


def test_one_card_gains_nothing_and_many_are_split_where_the_longest_completion_holds_them_back() -> None:
    config = load("paper-8gpu")
    alone = generation_seconds(stage_times(spread(config, 1), SHAPE, LARGE, 1, 0.125))
    assert best_division(config, SHAPE, LARGE, 1, 0.125) == Division(alone, 1)
    for cards in (2, 8, 64):
        found = best_division(config, SHAPE, LARGE, cards, 0.125)
        after = generation_seconds(stage_times(spread(config, cards), SHAPE, LARGE, cards, 0.125))
        assert found.seconds < after and 1 <= found.shards <= cards
    rolling = {time.stage: time.seconds for time in stage_times(spread(config, found.shards), SHAPE, LARGE, found.shards, 0.125)}
    training = {
        time.stage: time.seconds
        for time in stage_times(spread(config, 64 - found.shards), SHAPE, LARGE, 64 - found.shards, 0.125)
    }
    rollouts = sum(rolling[stage] for stage in ("propose", "verify", "solve", "grade", "reward"))
    assert found.shards < 64
    assert found.seconds == pytest.approx(rolling["match"] + rolling["rate"] + max(rollouts, training["update"]))


def test_a_dry_run_names_the_seconds_and_the_shards() -> None:
    assert "off-policy" not in plan(load("paper-8gpu"))
    [line] = [one for one in plan(load("paper-8gpu", ["learning.off_policy_steps=1"])).splitlines() if "off-policy" in one]
    assert "if the update runs beside the rollouts, with engine.shards=1, " in line
