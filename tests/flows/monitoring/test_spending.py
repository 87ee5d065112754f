"""What steps cost together: one machine pays its hour once, measured and estimated energy are told apart."""

from dataclasses import replace

import pytest

from flows.monitoring.spending import Spent, spent, spent_by_stage
from flows.run.manifest import Manifest
from flows.settings import Cost


def clock(started: float | None = None, seconds: float = 10.0, host: str = "one", **more: object) -> Manifest:
    """The manifest of a step with this clock."""
    when = {} if started is None else {"started": started}
    return Manifest("r", 0, "solve", "", (), (), clock={"seconds": seconds, "host": host} | when | more)


def test_an_update_beside_the_rollouts_costs_what_it_adds_to_them() -> None:
    price = Cost(machine_hour=36.0, currency="EUR")

    def update(seconds: float, host: str = "one") -> Spent:
        steps = [
            ("propose", 0.0, 10.0, "one"),
            ("solve", 10.0, 30.0, "one"),
            ("reward", 40.0, 0.0, "one"),
            ("update", 0.0, seconds, host),
        ]
        made = [replace(clock(began, took, where, watts=100.0), stage=stage) for stage, began, took, where in steps]
        return spent_by_stage(made, price)["update"]

    for seconds, more in ((25.0, 0.0), (50.0, 10.0)):
        found = update(seconds)
        assert (found.seconds, found.machine_seconds, found.priced_seconds) == (seconds, more, more)
        assert found.joules == {"estimate": 100.0 * more} and found.money == {"EUR": pytest.approx(0.01 * more)}
    assert update(25.0, "two").machine_seconds == 25.0
    running = [replace(clock(0.0, 5.0), stage=stage) for stage in ("propose", "update.parts/00")]
    assert set(spent_by_stage(running, price)) == {"propose"}, "what it adds is not known yet"


def test_parts_on_the_cards_of_one_machine_pay_its_hour_once() -> None:
    price = {"machine_hour": 36.0, "kwh": 0.0, "currency": "EUR"}
    parts = [
        clock(0.0, 10.0, energy={"cards": {"a": 1000.0}, "processor": {"package-0": 500.0}}, price=price),
        clock(5.0, 10.0, energy={"cards": {"b": 2000.0}, "processor": {"package-0": 500.0}}, price=price),
    ]
    used = spent(parts, Cost())
    assert (used.seconds, used.machine_seconds) == (20.0, 15.0)
    assert used.money == {"EUR": pytest.approx(0.15)}
    assert used.joules == {"cards": pytest.approx(3000.0), "processor": pytest.approx(750.0)}, "one counter, 50 W for 15 s"
    assert used.energy_source == "measured" and used.energy_seconds == 15.0


def test_two_machines_pay_twice_and_a_gap_is_free() -> None:
    price = {"machine_hour": 36.0, "kwh": 0.0, "currency": "EUR"}
    used = spent([clock(0.0, host="one", price=price), clock(0.0, host="two", price=price)], Cost())
    assert used.machine_seconds == 20.0 and used.money == {"EUR": pytest.approx(0.2)}
    assert spent([clock(0.0), clock(50.0)], Cost()).machine_seconds == 20.0
    assert spent([clock(), clock()], Cost()).machine_seconds == 20.0, "without a start, nothing says that they overlap"


def test_what_is_measured_and_what_is_estimated() -> None:
    cards = {"energy": {"cards": {"a": 1000.0}}}
    assert spent([clock(0.0, **cards)], Cost()).energy_source == "measured"
    assert spent([clock(0.0, **cards, watts=50.0)], Cost()).joules == {"cards": 1000.0, "estimate": 500.0}
    assert spent([clock(0.0, **cards, watts=50.0)], Cost()).energy_source == "partly estimated"
    assert spent([clock(0.0)], Cost(watts=50.0)).energy_source == "estimated"
    assert spent([clock(0.0, energy={"processor": {"p": 9.0}})], Cost(watts=50.0)).joules == {"processor": pytest.approx(9.0)}
    assert spent([clock(0.0)], Cost()).kwh is None
    half = spent([clock(0.0, watts=50.0), clock(20.0)], Cost())
    assert (half.energy_seconds, half.machine_seconds) == (10.0, 20.0)
