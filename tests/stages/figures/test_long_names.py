"""Figures of arms whose names are long: every name can be read, nothing is drawn over, and short names change nothing."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from stages.figures.comparison import forest, leak, scores, training
from stages.figures.difficulty import difficulty_of_arms
from stages.figures.plates import Plate

LONG = [f"population-of-{number}-teachers-and-mixed-results" for number in range(1, 5)]
SEEDS = (0, 1)


def _scores(arms: Sequence[str]) -> Plate:
    rows = [
        {"arm": arm, "seed": seed, "trained": at, "score": 0.5, "seconds": at} for arm in arms for seed in SEEDS for at in (0, 9)
    ]
    return scores(rows, arms, "seconds", "score", 0.05)


def _training(arms: Sequence[str]) -> Plate:
    rows = [{"arm": arm, "seed": seed, "trained": 3, "name": "solve.rate", "value": 0.5} for arm in arms for seed in SEEDS]
    return training(rows, arms, "solve.rate", 0.05)


def _forest(arms: Sequence[str]) -> Plate:
    known = {"n": 2, "model": "m", "label": "exploratory", "difference": 0.1, "detectable": 0.2, "low": 0.0, "high": 0.2}
    return forest(pa.Table.from_pylist([known | {"first": arms[0], "second": arm} for arm in arms[1:]]), 0.05)


def _leak(arms: Sequence[str]) -> Plate:
    return leak({arm: {0.0: ([0.3, 0.4], [0.5, 0.6]), 0.2: ([0.2, 0.3], [0.5, 0.4])} for arm in arms}, "score", 0.05)


def _difficulty(arms: Sequence[str]) -> Plate:
    row = {"group": "deduction band 1", "model": "seed", "score": 0.5, "problems": 9}
    rows = [row | {"arm": arm, "seed": seed, "trained": at} for arm in arms for seed in SEEDS for at in (0, 9)]
    return difficulty_of_arms(rows, arms)


DRAWN = pytest.mark.parametrize("draw", [_scores, _training, _forest, _leak, _difficulty])


@DRAWN
def test_long_names_are_inside_the_picture_and_leave_room_for_it(draw: Callable[[Sequence[str]], Plate]) -> None:
    figure = draw(LONG).figure
    assert figure is not None
    figure.draw_without_rendering()  # warns, which is an error here, where the axes have no room
    written = [text for ax in figure.axes for text in ax.get_yticklabels() if "n=" in text.get_text()]
    written += [text for one in figure.legends for text in one.get_texts()]
    said = " ".join(text.get_text().replace("-\n", "-") for text in written)
    assert all(name in said for name in LONG)
    for artist in (*written, *figure.axes, *figure.legends):
        shown = artist.get_window_extent()
        assert shown.x0 >= figure.bbox.x0 and shown.x1 <= figure.bbox.x1, artist
        assert shown.y0 >= figure.bbox.y0 and shown.y1 <= figure.bbox.y1, artist
    for ax in figure.axes:
        inches = ax.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        assert inches.width > 1.5 and inches.height > 1.4, "a panel that can be read"
        assert not any(one.get_window_extent().overlaps(ax.get_window_extent()) for one in figure.legends)


@DRAWN
def test_short_names_stay_above_the_axes(draw: Callable[[Sequence[str]], Plate]) -> None:
    figure = draw(["one", "two", "three"]).figure
    assert figure is not None and figure.legends == []
    assert draw is _forest or figure.axes[0].get_legend() is not None
    assert figure.get_figheight() < 3.2


def test_a_legend_that_fits_the_figure_but_not_its_left_panel_is_below_both() -> None:
    names = [f"eleven-let{number}" for number in range(3)]
    both, alone = _leak(names).figure, _training(names).figure
    assert both is not None and len(both.legends) == 1
    assert alone is not None and alone.legends == []
    alone.draw_without_rendering()
    assert all(text.get_window_extent().x1 <= alone.bbox.x1 for text in alone.axes[0].get_legend().get_texts())
