"""The page of a task: what of each attempt was trained, and what its trace added to its reward."""

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.config import RunConfig
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support.rewarded_run import BEHIND, DOCUMENT, HALF, RIGHT, TASK, TRACED, WHOLE, build


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A run whose answers go on, the same as an earlier version stored it, and one that rewards traces."""
    store = open_store(str(tmp_path_factory.mktemp("store")))

    def add(name: str, config: RunConfig, written: tuple[dict[str, Any], dict[str, Any]]) -> None:
        with hold(store, name) as epoch:
            build(Run(store, name, epoch), config, written, ("wrong", "correct"))

    without = [{key: value for key, value in one.items() if key != "answer_tokens"} for one in (BEHIND, WHOLE)]
    add("document", DOCUMENT, (BEHIND, WHOLE))
    add("old", DOCUMENT, (without[0], without[1]))
    add("traced", TRACED, (HALF, RIGHT))
    with TestClient(make_app(store.url), base_url="http://127.0.0.1") as found:
        yield found


def attempts(pages: TestClient, run: str) -> list[str]:
    """The attempts of the page as text without markup, one line each."""
    page = pages.get(f"/runs/{run}/tasks/{TASK}")
    assert page.status_code == 200
    found = re.findall(r"<article.*?</article>", page.text, re.DOTALL)
    apart = (re.sub(r"</?(p|div|pre|br|summary)\b[^>]*>", " ", one) for one in found)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", "", one)).split()) for one in apart]


def test_text_behind_the_answer_is_set_apart(pages: TestClient) -> None:
    first, second = attempts(pages, "document")
    assert "wrong [1, 2] Behind the answer, not judged: , 'a message' 10 tokens, 2 trained · seed " in first
    assert "correct [1, 2] 3 tokens · seed " in second and "trained" not in second


def test_a_table_without_the_column_is_shown_as_before(pages: TestClient) -> None:
    first, second = attempts(pages, "old")
    assert "wrong [1, 2] 10 tokens · seed " in first and "correct [1, 2] 3 tokens · seed " in second


def test_a_rewarded_trace_says_how_many_steps_were_right(pages: TestClient) -> None:
    first, second = attempts(pages, "traced")
    assert (
        first.endswith("Trace: 2 of 3 steps right, +0.333 in the reward c=12 h=24 k=7⟨out⟩7")
        and "reward −0.167, baseline" in first
    )
    assert "correct" in second and "Trace:" not in second
