"""Pages whose figures come last: the text is sent at once, and the figures when they are drawn. No script is needed for it."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from flows.browser.errors import explain
from flows.run.manifest import Json

Late = Callable[[], Sequence[Json]]
"""Draws the figures of a page."""


def in_two(pages: Environment, template: str, values: Mapping[str, Any], late: Late) -> Iterator[str]:
    """Render a page that has `figures` at one place, and return it up to there, its figures, and the rest.

    The page is rendered before this returns, so that what is wrong with it has a status of its own. Figures that cannot be
    drawn are a note on the page.
    """
    place = Markup(f"<!-- {secrets.token_hex(16)} -->")  # a text of the store cannot contain it
    before, after = pages.get_template(template).render({**values, "figures": place}).split(place)

    def pieces() -> Iterator[str]:
        yield before
        try:
            shown: Json = {"figures": late(), "fault": None}
        except Exception as error:  # the page has begun: its status cannot say it any more
            shown = {"figures": [], "fault": explain(error)}
        yield pages.get_template("plates.html").render({**values, **shown})
        yield after

    return pieces()
