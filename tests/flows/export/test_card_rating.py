"""The rating on a model card, from tables of known content: the newest of the weights, and the matches up to it."""

from flows.export.card import rating_text
from flows.run.lineage import Lineage


class Rated(Lineage):
    """Tables of ratings alone: s0 meets two teachers a generation, steps in generation 0, not in 1, and is a parent of s1."""

    def __init__(self) -> None:
        self._tables = {
            (0, "ratings"): [row("s0-start", "s0-g0000", 20.0), row("s0-start", "s0-g0000", 22.0)],
            (1, "ratings"): [row("s0-g0000", "s0-g0000", 23.0), row("s0-g0000", "s0-g0000", 24.0)],
            (1, "offspring"): [{"adapter_id": "s1-start", "mu": 24.0, "sigma": 5.0}],
            (2, "ratings"): [row("s0-g0000", "s0-g0000", 25.0), row("s1-start", "s1-g0002", 26.0)],
        }

    def generations(self) -> list[int]:
        return [0, 1, 2]

    def rows(self, generation: int | None, name: str) -> list[dict]:
        return self._tables.get((generation, name), [])


def row(before: str, after: str, mu: float, result: str = "win", role: str = "student") -> dict:
    return {
        "adapter_id": before,
        "next_adapter_id": after,
        "mu": mu,
        "sigma": 5.0,
        "fitness": mu - 5,
        "result": result,
        "role": role,
    }


def test_matches_of_a_line_are_those_before_each_step() -> None:
    start, stepped = {"adapter_id": "s0-start", "generation": None}, {"adapter_id": "s0-g0000", "generation": 0}
    born, grown = {"adapter_id": "s1-start", "generation": 1}, {"adapter_id": "s1-g0002", "generation": 2}
    assert rating_text(Rated(), "s0-g0000", [stepped, start]).startswith(
        "TrueSkill mu 25.00, sigma 5.00, fitness 20.00, after generation 2; 5 rated"
    )
    assert rating_text(Rated(), "s1-start", [born, stepped, start]).startswith(
        "TrueSkill mu 24.00, sigma 5.00, after generation 1; 4 rated"
    )
    assert "after generation 2; 5 rated" in rating_text(Rated(), "s1-g0002", [grown, born, stepped, start])


def test_a_single_agent_is_not_rated() -> None:
    lineage = Rated()
    lineage._tables = {(0, "ratings"): [row("a0-start", "a0-g0000", 25.0, "draw", "both")]}
    steps = [{"adapter_id": "a0-g0000", "generation": 0}, {"adapter_id": "a0-start", "generation": None}]
    assert rating_text(lineage, "a0-g0000", steps) == "These weights were not rated: a single agent plays against itself."
