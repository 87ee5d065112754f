"""One metric of several runs in one figure: bands, gaps, counts, and what is not measured."""

import math

from stages.figures.measures import colours_of
from stages.figures.side_by_side import overlay
from stages.figures.vector import curves_svg

ROWS = [
    {"run": run, "generation": generation, "value": 0.1 * generation, "n": 4 + generation, "stderr": error}
    for run, error in (("first", 0.02), ("second", None))
    for generation in (0, 1, 3)
]


def test_each_run_has_its_line_its_band_and_its_n() -> None:
    outline = overlay(ROWS, ["first", "second", "third"], "solve.rate")
    (panel,) = outline.panels
    first, second = panel.lines
    assert (first.name, second.name) == ("first", "second")
    assert len({(line.colour, line.dashes) for line in panel.lines}) == 2
    assert first.x == (0.0, 1.0, 3.0) and first.y == (0.0, 0.1, 0.1 * 3) and first.n == (4, 5, 7)
    assert first.error == (0.02,) * 3 and all(math.isnan(error) for error in second.error)
    assert outline.caption == "Bands are ±1 standard error within a generation. n per generation: first 4 to 7, second 4 to 7."
    assert (outline.name, outline.question, panel.x) == ("solve-rate", "Solve rate (share)", "generation")
    assert curves_svg(outline).count("fill-opacity") == 1, "one band: the second run has no errors"


def test_a_run_keeps_its_colour_where_others_measure_nothing() -> None:
    outline = overlay(ROWS[3:], ["first", "second"], "solve.rate")
    assert outline.panels[0].lines[0].colour == colours_of(["first", "second"])["second"]
    assert outline.caption.startswith("One number per generation, without an error.")


def test_the_axis_may_be_an_amount_spent() -> None:
    rows = [{**row, "seconds": None if row["generation"] == 3 else 10.0 * row["generation"]} for row in ROWS]
    (panel,) = overlay(rows, ["first"], "solve.rate", by="seconds").panels
    assert panel.x == "seconds" and panel.lines[0].x == (0.0, 10.0)


def test_nothing_measured_is_said() -> None:
    outline = overlay([], ["first"], "benchmark gsm8k", "gsm8k, mean pass@1 (share)")
    assert outline.panels == () and outline.name == "benchmark-gsm8k" and "None of the runs" in outline.caption
    assert curves_svg(outline) == ""
