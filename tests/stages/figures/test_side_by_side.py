"""One metric of several runs in one figure: bands, gaps, counts, and what is not measured."""

import numpy as np

from stages.figures.side_by_side import overlay, run_colours

ROWS = [
    {"run": run, "generation": generation, "value": 0.1 * generation, "n": 4 + generation, "stderr": error}
    for run, error in (("first", 0.02), ("second", None))
    for generation in (0, 1, 3)
]


def test_each_run_has_its_line_its_band_and_its_n() -> None:
    plate = overlay(ROWS, ["first", "second", "third"], "solve.rate")
    assert plate.figure is not None
    (ax,) = plate.figure.axes
    assert [line.get_label() for line in ax.lines] == ["first", "second"]
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 2
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [(0, 0.0), (1, 0.1), (3, 0.3)])
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].max(), 0.32)
    assert plate.caption == "Bands are ±1 standard error within a generation. n per generation: first 4 to 7, second 4 to 7."
    assert (plate.name, plate.question) == ("solve-rate", "Solve rate (share)")


def test_a_run_keeps_its_colour_where_others_measure_nothing() -> None:
    plate = overlay(ROWS[3:], ["first", "second"], "solve.rate")
    assert plate.figure is not None
    assert plate.figure.axes[0].lines[0].get_color() == run_colours(["first", "second"])["second"]
    assert plate.caption.startswith("One number per generation, without an error.")


def test_the_axis_may_be_an_amount_spent() -> None:
    rows = [{**row, "seconds": None if row["generation"] == 3 else 10.0 * row["generation"]} for row in ROWS]
    plate = overlay(rows, ["first"], "solve.rate", by="seconds")
    assert plate.figure is not None
    (ax,) = plate.figure.axes
    assert ax.get_xlabel() == "seconds" and ax.lines[0].get_xdata().tolist() == [0.0, 10.0]


def test_nothing_measured_is_said() -> None:
    plate = overlay([], ["first"], "benchmark gsm8k", "gsm8k, mean pass@1 (share)")
    assert plate.figure is None and plate.name == "benchmark-gsm8k" and "None of the runs" in plate.caption
