"""Rendering of pages as HTML: Jinja with escaping always on, text made harmless before it is shown, coloured programs."""

import json
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flows.browser.commands import PLAIN, Commands
from flows.run import form_links
from flows.run.addresses import Addresses
from stages.core.highlight import python_html, visible
from stages.core.places import apart, is_place

SHOWN_TEXT = 65_536  # characters of a value on its own page; the download has the rest
SHOWN_CELL = 120


def environment(commands: Commands = PLAIN) -> Environment:
    """Return the templates with their filters. Text that is not markup is escaped, and its hidden characters are made visible."""
    made = Environment(
        loader=PackageLoader("flows.browser"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    made.filters |= {
        "number": number,
        "percent": percent,
        "seconds": seconds,
        "when": when,
        "code": code,
        "cut": cut,
        "json": readable,
        "digest": digest,
        "apart": apart,
        "commands": commands.named,
    }
    made.tests["place"] = is_place
    made.globals["at"] = Addresses()
    made.globals["forms"] = form_links.of_environment()  # none in a browser that no UI belongs to
    return made


def number(value: float | None, digits: int = 4) -> str:
    """Format a number; a dash if there is none."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}g}" if value == value else "–"


def percent(value: float | None) -> str:
    """Format a share as a percentage."""
    return "–" if value is None or value != value else f"{100 * value:.0f} %"


def seconds(value: float | None) -> str:
    """A duration."""
    if value is None:
        return "–"
    if value >= 7200:
        return f"{value / 3600:.1f} h"
    if value >= 120:
        return f"{value / 60:.1f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


def when(value: float | None) -> str:
    """Format a time of the machine that ran the stage, in UTC."""
    return "–" if value is None else datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def code(text: str) -> Markup:
    """Return a program with coloured syntax."""
    return Markup(python_html(text, SHOWN_TEXT))


def cut(value: object, limit: int = SHOWN_CELL) -> str:
    """Return the beginning of a long text, with a note of how much is missing."""
    return visible(str(value), limit)


def readable(value: Any) -> str:
    """Return indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)


def digest(text: str) -> str:
    """Return the beginning of a digest."""
    return text[:12]


def _plain(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
