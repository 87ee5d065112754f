"""How an update is cut: by the arithmetic of its seconds, alike wherever the run is."""

import pytest

from flows.config import load
from flows.plan.card_rates import CARDS
from flows.plan.decoder_shape import KNOWN
from flows.plan.update_cut import adapters_time, rows_time, shares_of

SHAPE = KNOWN["Qwen2.5-Coder-7B"]
LARGE = CARDS[-1]


def paper(*settings: str):
    return load("paper", list(settings))


def test_one_shard_and_an_unknown_model_are_cut_by_adapters():
    assert shares_of(paper(), SHAPE, [9e6], 8) == 0
    assert shares_of(paper("engine.shards=8"), None, [9e6], 8) == 0


@pytest.mark.parametrize("chosen", ["adapters", "rows"])
def test_a_choice_of_the_configuration_is_taken(chosen):
    for shards in (1, 8):
        config = paper(f"learning.divide={chosen}", f"engine.shards={shards}")
        assert shares_of(config, None, [9e6], 8) == (shards if chosen == "rows" else 0)


def test_one_adapter_uses_all_cards_by_rows_if_it_has_much_to_learn():
    config = paper("mode=single", "population.teachers=1", "population.students=1", "engine.shards=8")
    assert shares_of(config, SHAPE, [8e6], 1) == 8
    assert shares_of(config, SHAPE, [1e3], 1) == 0, "eight gradients take longer than a thousand tokens"


def test_groups_of_equal_tokens_on_as_many_cards_need_no_rows_and_an_unequal_one_does():
    config = paper("engine.shards=8", "learning.adapters_per_group=1")
    assert shares_of(config, SHAPE, [1e6] * 8, 8) == 0
    assert shares_of(config, SHAPE, [8e6] + [1e4] * 7, 8) == 8


def test_the_seconds_by_adapters_are_those_of_the_busiest_card():
    config = paper("learning.gradient_checkpointing=false")
    for cards, flops in ((1, 60), (2, 30), (3, 30), (8, 30)):
        assert adapters_time(config, SHAPE, LARGE, cards, [30, 10, 20], 8).computed == pytest.approx(flops / LARGE.flops)
    assert adapters_time(config, SHAPE, LARGE, 1, [30], 8).stored == pytest.approx(8 * 24 * 80_740_352 / 1e9)


def test_the_seconds_by_rows_are_an_equal_share_and_the_gradients_of_a_pair_an_adapter_and_a_share():
    config = paper("learning.gradient_checkpointing=false")
    time = rows_time(config, SHAPE, LARGE, 4, 60, 2)
    assert time.computed == pytest.approx(15 / LARGE.flops)
    pairs, one = 5, 80_740_352 / 1e9
    assert time.stored == pytest.approx((3 * 4 * pairs + 2 * 24) * one)
    assert time.total == time.computed + time.stored


def test_there_are_no_more_shares_than_pay_for_their_gradients():
    found = [
        shares_of(paper(f"engine.shards={shards}", "learning.adapters_per_group=1"), SHAPE, [1e6] * 8, 8) for shards in (64, 512)
    ]
    assert found[0] == found[1] and 8 < found[0] < 64
