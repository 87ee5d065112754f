"""Ratings against the reference implementation, and against what the model says."""

import math

import numpy as np
import pytest
import trueskill

from stages.core.method.rating import Rating, Scale, play, win_chance

RESULTS = ("win", "draw", "loss")


def oracle(first: Rating, second: Rating, result: str, scale: Scale) -> list[trueskill.Rating]:
    """The trueskill package, with SciPy's normal distribution: its own is good to 1e-7 only."""
    environment = trueskill.TrueSkill(beta=scale.beta, tau=scale.tau, draw_probability=scale.draw_probability, backend="scipy")
    one, two = (environment.create_rating(rating.mu, rating.sigma) for rating in (first, second))
    if result == "loss":
        return list(reversed(environment.rate_1vs1(two, one)))
    return list(environment.rate_1vs1(one, two, drawn=result == "draw"))


def test_a_thousand_random_games_equal_the_reference():
    rng = np.random.default_rng(0)
    for game in range(1000):
        first, second = (Rating(rng.normal(25, 8), rng.uniform(0.5, 9)) for _ in range(2))
        scale = Scale(rng.uniform(1, 6), rng.uniform(0, 0.5), rng.uniform(0.01, 0.4))
        result = RESULTS[game % 3]
        for ours, theirs in zip(play(first, second, result, scale), oracle(first, second, result, scale), strict=True):
            assert ours.mu == pytest.approx(theirs.mu, abs=1e-6), (first, second, result)
            assert ours.sigma == pytest.approx(theirs.sigma, abs=1e-6), (first, second, result)


def test_a_long_history_equals_the_reference():
    rng = np.random.default_rng(1)
    scale = Scale()
    ours = [Rating() for _ in range(6)]
    theirs = [trueskill.Rating(25, 25 / 3) for _ in range(6)]
    for _ in range(200):
        i, j = rng.choice(6, size=2, replace=False)
        result = RESULTS[rng.integers(3)]
        ours[i], ours[j] = play(ours[i], ours[j], result, scale)
        theirs[i], theirs[j] = oracle(Rating(theirs[i].mu, theirs[i].sigma), Rating(theirs[j].mu, theirs[j].sigma), result, scale)
    assert [rating.mu for rating in ours] == pytest.approx([rating.mu for rating in theirs], abs=1e-6)
    assert [rating.sigma for rating in ours] == pytest.approx([rating.sigma for rating in theirs], abs=1e-6)


def test_published_example():
    """Two new players, the first wins: 29.396 and 20.604, both 7.171 (trueskill.org)."""
    winner, loser = play(Rating(), Rating(), "win", Scale())
    assert (winner.mu, loser.mu) == (pytest.approx(29.395832), pytest.approx(20.604168))
    assert winner.sigma == loser.sigma == pytest.approx(7.1714756)


def test_a_draw_pulls_together_and_equals_stay():
    strong, weak = play(Rating(30, 3), Rating(20, 3), "draw", Scale())
    assert strong.mu < 30
    assert weak.mu > 20
    assert [rating.mu for rating in play(Rating(), Rating(), "draw", Scale())] == [25.0, 25.0]


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("lead", [-4000.0, -300.0, 300.0, 4000.0])
def test_the_wildest_surprise_stays_finite(result, lead):
    for rating in play(Rating(25 + lead, 1.0), Rating(25, 1.0), result, Scale()):
        assert math.isfinite(rating.mu)
        assert 0 < rating.sigma < 1.1


@pytest.mark.parametrize("x", [-29.9999, -30.0001])
def test_the_tail_series_meets_the_exact_ratio(x):
    scale = Scale(beta=1.0, tau=0.0, draw_probability=0.0)
    lead = x * math.sqrt(2 + 0.02)
    winner, _ = play(Rating(lead, 0.1), Rating(0.0, 0.1), "win", scale)
    assert winner.mu - lead == pytest.approx(0.01 / math.sqrt(2.02) * 30.0332, rel=1e-4)


def test_win_chance():
    assert win_chance(Rating(), Rating(), 25 / 6) == 0.5
    assert win_chance(Rating(30, 2), Rating(25, 3), 4.0) == pytest.approx(0.77197, abs=1e-5)  # Phi(5 / sqrt(45))
    assert win_chance(Rating(30, 2), Rating(25, 3), 4.0) + win_chance(Rating(25, 3), Rating(30, 2), 4.0) == pytest.approx(1)


def test_fitness_is_the_lower_confidence_bound():
    assert Rating(25, 2).fitness(3.0) == 19.0
