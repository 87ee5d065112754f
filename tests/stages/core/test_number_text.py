"""Numbers for people: a minus sign, not a hyphen."""

from stages.core.number_text import fixed, minus, signed


def test_negative_numbers_have_a_minus_sign() -> None:
    assert (fixed(-0.94, 1), fixed(3.0, 2)) == ("−0.9", "3.00")
    assert (signed(-0.5, 3), signed(0.5, 1), signed(0.0, 2)) == ("−0.500", "+0.5", "+0.00")
    assert minus("-1.2e-05") == "−1.2e−05"
