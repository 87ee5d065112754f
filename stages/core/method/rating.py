"""Skill ratings: two-player TrueSkill with draws and dynamics (Herbrich, Minka, Graepel, NIPS 2006).

A rating is a belief N(mu, sigma^2) about skill; a performance adds noise of standard deviation beta; a game is drawn when the
performances differ by less than a margin e, with e = Phi^-1((1 + draw_probability) / 2) * sqrt(2) * beta. Before each game
both variances grow by tau^2. With c^2 = 2 beta^2 + sigma_w^2 + sigma_l^2 and t = (mu_w - mu_l) / c winner w and loser l move by

    mu_w += sigma_w^2 / c * v(t, e/c)        sigma_w^2 *= 1 - sigma_w^2 / c^2 * w(t, e/c)
    mu_l -= sigma_l^2 / c * v(t, e/c)        sigma_l^2 *= 1 - sigma_l^2 / c^2 * w(t, e/c)

where v and w are the first and second correction of a Gaussian truncated to the outcome. For two players this closed form is the
exact result of the factor graph; nothing is approximated beyond TrueSkill itself.

Ratings of one run are relative: a match moves its two sides in opposite directions. A flat rating is not a failure, and the mean
of both roles rises where evolution replaces their weakest by offspring that begin with a parent's rating.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

_NORMAL = NormalDist()
_TAIL = -30.0  # below it the ratio pdf/cdf is taken from its asymptotic series, since cdf would underflow

Result = Literal["win", "draw", "loss"]


@dataclass(frozen=True)
class Rating:
    """A belief about skill: mean and standard deviation."""

    mu: float = 25.0
    sigma: float = 25.0 / 3.0

    def fitness(self, kappa: float) -> float:
        """Return the lower confidence bound mu - kappa * sigma, by which selection ranks."""
        return self.mu - kappa * self.sigma


@dataclass(frozen=True)
class Scale:
    """TrueSkill's constants; the defaults are the paper's own."""

    beta: float = 25.0 / 6.0
    tau: float = 25.0 / 300.0
    draw_probability: float = 0.1

    @property
    def draw_margin(self) -> float:
        """The margin of performance inside which a game is drawn."""
        return _NORMAL.inv_cdf((1.0 + self.draw_probability) / 2.0) * math.sqrt(2.0) * self.beta


def win_chance(first: Rating, second: Rating, beta: float) -> float:
    """Return the chance that the first plays better: Phi((mu_1 - mu_2) / sqrt(sigma_1^2 + sigma_2^2 + 2 beta^2))."""
    spread = math.sqrt(first.sigma**2 + second.sigma**2 + 2.0 * beta**2)
    return _cdf((first.mu - second.mu) / spread)


def play(first: Rating, second: Rating, result: Result, scale: Scale) -> tuple[Rating, Rating]:
    """Return both ratings after one game; `result` is the first player's."""
    if result == "loss":
        second, first = play(second, first, "win", scale)
        return first, second
    variance_1, variance_2 = first.sigma**2 + scale.tau**2, second.sigma**2 + scale.tau**2
    spread = math.sqrt(2.0 * scale.beta**2 + variance_1 + variance_2)
    lead, margin = (first.mu - second.mu) / spread, scale.draw_margin / spread
    v, w = _won(lead - margin) if result == "win" else _drawn(lead, margin)
    return (
        _moved(first.mu, variance_1, v, w, spread),
        _moved(second.mu, variance_2, -v, w, spread),
    )


def _moved(mu: float, variance: float, v: float, w: float, spread: float) -> Rating:
    shrunk = variance * max(1.0 - variance / spread**2 * w, 1e-12)
    return Rating(mu + variance / spread * v, math.sqrt(shrunk))


def _won(x: float) -> tuple[float, float]:
    """Return v and w of a win, at x = t - e."""
    v = _pdf(x) / _cdf(x) if x > _TAIL else -x / (1.0 - 1.0 / x**2 + 3.0 / x**4)
    return v, v * (v + x)


def _drawn(lead: float, margin: float) -> tuple[float, float]:
    """Return v and w of a draw; if the outcome has no mass in floating point, their limits -t and 1."""
    upper, lower = margin - abs(lead), -margin - abs(lead)
    mass = _cdf(upper) - _cdf(lower)
    if mass <= 0.0:
        return math.copysign(upper, -lead) if lead else 0.0, 1.0
    v = (_pdf(lower) - _pdf(upper)) / mass
    w = v**2 + (upper * _pdf(upper) - lower * _pdf(lower)) / mass
    return math.copysign(v, -lead) if lead else 0.0, w


def _cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _pdf(x: float) -> float:
    return math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
