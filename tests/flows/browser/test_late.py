"""Pages whose figures come last: the text does not wait for them, and a fault of theirs is a note."""

from threading import Event
from typing import Any

import pytest
from jinja2 import DictLoader, Environment, UndefinedError

from flows.browser.late import at_once, in_two
from flows.browser.render import environment
from flows.storage import StoreUnavailable

PAGE = "<p>{{ text }}</p>{% if figures %}<h2>Figures</h2>{{ figures }}{% endif %}<footer></footer>"


@pytest.fixture
def pages() -> Environment:
    made = environment()
    made.loader = DictLoader({"page.html": PAGE, "plates.html": "{{ fault.message if fault else figures|join(',') }}"})
    return made


def test_the_text_is_there_before_a_figure_is_drawn(pages: Environment) -> None:
    drawn: list[str] = []

    def late() -> Any:
        drawn.append("yes")
        return ["a", "<b>"]

    pieces = in_two(pages, "page.html", {"text": "<script>"}, late)
    assert next(pieces) == "<p>&lt;script&gt;</p><h2>Figures</h2>" and drawn == []
    assert list(pieces) == ["a,&lt;b&gt;", "<footer></footer>"] and drawn == ["yes"]


def test_what_cannot_be_drawn_is_said_and_the_page_ends(pages: Environment) -> None:
    def late() -> Any:
        raise StoreUnavailable("the bucket <is> away")

    assert list(in_two(pages, "page.html", {"text": ""}, late))[1:] == ["the bucket &lt;is&gt; away", "<footer></footer>"]


def test_a_fault_of_the_text_comes_before_the_page_begins(pages: Environment) -> None:
    with pytest.raises(UndefinedError):
        in_two(pages, "page.html", {}, list)


def test_the_error_behind_a_note_is_in_the_log(pages: Environment, caplog: pytest.LogCaptureFixture) -> None:
    def late() -> Any:
        raise ZeroDivisionError("of the drawing")

    assert "The browser&#39;s own log has the details." in list(in_two(pages, "page.html", {"text": ""}, late))[1]
    assert "ZeroDivisionError: of the drawing" in caplog.text and "Traceback" in caplog.text


def test_figures_that_never_come_are_a_note_and_the_page_ends(pages: Environment) -> None:
    ended = Event()

    def late() -> Any:
        ended.wait(60)
        return []

    try:
        found = list(in_two(pages, "page.html", {"text": ""}, late, seconds=0.05))
        assert found[1:] == ["they took more than 0.05 s. Load the page again.", "<footer></footer>"] and not ended.is_set()
    finally:
        ended.set()


def test_a_page_in_one_piece_has_its_figures_or_is_an_error(pages: Environment) -> None:
    def late() -> Any:
        raise StoreUnavailable("away")

    figures: Any = ["a", "<b>"]
    whole = "<p>t</p><h2>Figures</h2>a,&lt;b&gt;<footer></footer>"
    assert list(at_once(pages, "page.html", {"text": "t"}, lambda: figures)) == [whole]
    with pytest.raises(StoreUnavailable):
        at_once(pages, "page.html", {"text": "t"}, late)
