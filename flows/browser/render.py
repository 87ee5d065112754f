"""Rendering of pages as HTML: Jinja with escaping always on, text made harmless before it is shown, coloured programs."""

import json
import re
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from flows import form_links
from flows.program import PLAIN, Commands
from flows.run.addresses import Addresses
from stages.core import number_text
from stages.core.highlight import python_html, visible
from stages.core.places import apart, is_place

SHOWN_TEXT = 65_536  # characters of a value on its own page; the download has the rest
SHOWN_CELL = 120
PREVIEW_LINES = 3  # of a text in a table


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
        "fixed": number_text.fixed,
        "signed": signed,
        "percent": percent,
        "seconds": seconds,
        "when": when,
        "code": code,
        "cut": cut,
        "preview": preview,
        "breakable": breakable,
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
        return number_text.minus(f"{value:,}")
    return number_text.minus(f"{value:.{digits}g}") if value == value else "–"


def signed(value: float | None, digits: int = 3) -> str:
    """Format a number with its sign; a dash if there is none."""
    return "–" if value is None else number_text.signed(value, digits)


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


def breakable(key: str) -> Markup:
    """Return a dotted key that a narrow column may break between its words."""
    return Markup(re.sub(r"([._])(?=\w)", r"\1<wbr>", str(escape(visible(key)))))


def preview(text: str) -> str:
    """Return the first lines of a text with several, each cut, with a note of how many lines are missing."""
    whole = text.rstrip("\n") or text
    lines = whole.split("\n", PREVIEW_LINES)[:PREVIEW_LINES]
    shown = [line if len(line) <= SHOWN_CELL else f"{line[:SHOWN_CELL]}…" for line in lines]
    more = whole.count("\n") + 1 - len(lines)
    return "\n".join([*shown, f"… {more:,} more line{'s' if more > 1 else ''}"] if more else shown)


def readable(value: Any) -> str:
    """Return indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)


def digest(text: str) -> str:
    """Return the beginning of a digest."""
    return text[:12]


def _plain(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
