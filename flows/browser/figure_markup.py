"""The figures of a page that shows many: links to pictures in a browser, the figures themselves in a static export."""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from flows.pages.figure_pages import Draws

Writer = Callable[[Environment, str, Mapping[str, Any], Draws], str]
"""Renders a page with figures: `linked` for a browser, `inlined` for a static export."""


def linked(pages: Environment, template: str, values: Mapping[str, Any], draws: Draws) -> str:
    """Render a page with a link to a picture in the place of each figure. Nothing is drawn."""
    link = pages.get_template("figure_link.html")
    figures = {name: Markup(link.render({**values, "name": name})) for name in draws}
    return pages.get_template(template).render({**values, "figures": figures})


def inlined(pages: Environment, template: str, values: Mapping[str, Any], draws: Draws) -> str:
    """Render a page with its figures. Figures that cannot be drawn are an error, as any other part of the page."""
    plate = pages.get_template("plates.html")
    figures = {name: Markup(plate.render({**values, "one": draw()})) for name, draw in draws.items()}
    return pages.get_template(template).render({**values, "figures": figures})
