"""A page with many figures: a browser gets links to pictures, and nothing is drawn; a static export gets the figures."""

from typing import Any

import pytest
from jinja2 import DictLoader, Environment

from flows.browser.figure_markup import inlined, linked
from flows.browser.render import environment
from flows.storage import StoreUnavailable

PAGE = "<p>{{ text }}</p>{{ figures.one }}<hr>{{ figures.two }}<footer></footer>"


@pytest.fixture
def pages() -> Environment:
    made = environment()
    made.loader = DictLoader({"page.html": PAGE, "plates.html": "{{ one }}", "figure_link.html": "<{{ run }} {{ name }}>"})
    return made


def away() -> Any:
    raise StoreUnavailable("away")


def test_in_a_browser_each_figure_is_a_link_and_none_is_drawn(pages: Environment) -> None:
    text = linked(pages, "page.html", {"text": "<script>", "run": "r"}, {"one": away, "two": away})
    assert text == "<p>&lt;script&gt;</p><r one><hr><r two><footer></footer>"


def test_an_export_has_its_figures_or_is_an_error(pages: Environment) -> None:
    draws: Any = {"one": lambda: "a", "two": lambda: "<b>"}
    assert inlined(pages, "page.html", {"text": "t"}, draws) == "<p>t</p>a<hr>&lt;b&gt;<footer></footer>"
    with pytest.raises(StoreUnavailable):
        inlined(pages, "page.html", {"text": "t"}, {"one": away, "two": away})
