"""Pages whose figures come last: the text is sent at once, and the figures when they are drawn. No script is needed for it."""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from flows.browser.errors import Fault, explain
from flows.browser.limits import ANSWER_SECONDS
from flows.run.manifest import Json

Late = Callable[[], Sequence[Json]]
"""Draws the figures of a page."""
Writer = Callable[[Environment, str, Mapping[str, Any], Late], Iterator[str]]
"""Renders a page with figures in pieces: `in_two` for readers who wait, `at_once` for a copy that must be whole."""

_LOG = logging.getLogger("populora.browser")
_DRAWING = ThreadPoolExecutor(8, thread_name_prefix="figures")
"""Threads that draw late figures. One that nobody waits for any more finishes by itself, with the store's own timeouts."""


def at_once(pages: Environment, template: str, values: Mapping[str, Any], late: Late) -> Iterator[str]:
    """Render a page with its figures in one piece. Figures that cannot be drawn are an error, as any other part of the page."""
    plates = Markup(pages.get_template("plates.html").render({**values, "figures": late(), "fault": None}))
    return iter([pages.get_template(template).render({**values, "figures": plates})])


def in_two(
    pages: Environment, template: str, values: Mapping[str, Any], late: Late, seconds: float = ANSWER_SECONDS
) -> Iterator[str]:
    """Render a page that has `figures` at one place, and return it up to there, its figures, and the rest.

    The page is rendered before this returns, so that what is wrong with it has a status of its own. Figures that cannot be
    drawn, or not within `seconds`, are a note on the page; the log has the error.
    """
    place = Markup(f"<!-- {secrets.token_hex(16)} -->")  # a text of the store cannot contain it
    before, after = pages.get_template(template).render({**values, "figures": place}).split(place)

    def pieces() -> Iterator[str]:
        yield before
        yield pages.get_template("plates.html").render({**values, **_drawn(template, late, seconds)})
        yield after

    return pieces()


def _drawn(template: str, late: Late, seconds: float) -> Json:
    """Return the figures, or the fault to show: the page has begun, so its status cannot say it any more."""
    drawing = _DRAWING.submit(late)
    try:
        return {"figures": drawing.result(seconds), "fault": None}
    except Exception as error:
        _LOG.exception("%s: the figures cannot be drawn", template)
        if isinstance(error, TimeoutError) and not drawing.done():
            drawing.cancel()
            return {"figures": [], "fault": Fault(503, "Too slow", f"they took more than {seconds:g} s. Load the page again.")}
        return {"figures": [], "fault": explain(error)}
