"""Files that pages load from the browser itself, and the policy that says what a page may load.

Scripts are listed here by name: no address can name another file. `vendor/` holds other people's files as they were published.
"""

from functools import cache
from importlib.resources import files

from flows.report.report_page import CSS
from flows.storage import NotStored

POLICY = (
    "default-src 'none'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Of every page: nothing runs and nothing comes from elsewhere, whatever a model wrote. Figures are SVG with style attributes."""

SCRIPTED_POLICY = f"{POLICY}; script-src 'self'; connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
"""Of a page with a script of ours: it may ask this server. The last two let no script turn a text into markup or into code."""

PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
"""Of a figure as a file of its own, which brings its colours."""

STYLES = ("browser.css", "vendor/uplot/uPlot.min.css")
LIVE_SCRIPTS = ("live.js",)
FIGURE_SCRIPTS = ("vendor/uplot/uPlot.iife.min.js", "figures.js")
SCRIPTS = (*LIVE_SCRIPTS, *FIGURE_SCRIPTS)


@cache
def script(name: str) -> bytes:
    """Return a script by its name. Raises NotStored for any other."""
    if name not in SCRIPTS:
        raise NotStored(f"There is no script {name[:60]!r}.")
    return files("flows.browser").joinpath("static", *name.split("/")).read_bytes()


@cache
def style_sheet() -> str:
    """Return the report's style sheet, the browser's additions, and those of its plots."""
    own = [files("flows.browser").joinpath("static", *name.split("/")).read_text(encoding="utf-8") for name in STYLES]
    return "\n".join([CSS, *own])
