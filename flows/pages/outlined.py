"""Figures that a page draws from a run's small tables, written as SVG: no plotting library, no task and no attempt is read."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from flows.monitoring.run_tables import RunTables
from flows.pages.figure_numbers import numbers, tables, zooms
from flows.run.manifest import Json
from stages.core.highlight import visible
from stages.figures import outlines
from stages.figures.family import OF_FAMILY, QUESTION, family_of
from stages.figures.panels import Numbered, Outline
from stages.figures.vector import curves_svg, family_svg


def run_figures(watch: RunTables) -> list[Json]:
    """Return the figures on the run's own page."""
    metrics, standings, offspring = watch.table("metrics"), watch.standings(), watch.columns("offspring", OF_FAMILY)
    family = family_of(standings, offspring)
    words = ("family", QUESTION, family.caption if family else "No generation has been rated yet.", ("ratings", "offspring"))
    tree = Outline(*words, listing=family.listing if family else ())
    return [
        drawn(outlines.solve_rate(metrics)),
        drawn(outlines.ratings(standings)),
        drawn(outlines.valid_share(metrics)),
        shown(tree, family_svg(family) if family else ""),
    ]


def ratings_figure(watch: RunTables) -> Json:
    """Return the rating curves of all members."""
    return drawn(outlines.ratings(watch.standings()))


def member_figure(rows: Sequence[Mapping[str, Any]]) -> Json | None:
    """Return the rating curve of one member, from its rating rows with their generations; None if there is only one."""
    return drawn(outlines.member_rating(rows)) if len(rows) > 1 else None


def drawn(outline: Outline) -> Json:
    """Return curves for a page."""
    return shown(outline, curves_svg(outline))


def shown(figure: Numbered, picture: str) -> Json:
    """Return a drawn figure for a page: the picture, its words and its numbers."""
    return {
        "name": figure.name,
        "question": figure.question,
        "caption": visible(figure.caption),
        "picture": Markup(picture),
        "zooms": zooms(figure),
        "numbers": numbers(figure),
        "tables": tables(figure),
    }
