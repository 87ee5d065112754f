"""The page of a task: what of each attempt was trained, and what its trace added to its reward."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.config import RunConfig
from flows.run.addresses import Addresses
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core.method.top_up import replay_id
from stages.core.tables import GRADES, ROLLOUTS, table
from tests.support import example_run
from tests.support.rewarded_run import BEHIND, DOCUMENT, HALF, RIGHT, TASK, TRACED, WHOLE, build

POSED = (1, 20, 21, 40, 41, 43)
"""Generations that pose a task again."""


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


def test_the_link_of_an_attempt_at_a_task_posed_again_leads_to_the_page_that_shows_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    config = example_run.CONFIG.model_copy(update={"solve": example_run.CONFIG.solve.model_copy(update={"easy_share": 0.5})})
    with hold(store, "again") as epoch:
        run = example_run.build(Run(store, "again", epoch), 1, config)
        (first, *_), grades = run.read_table(0, "rollouts").to_pylist(), run.read_table(0, "grades").to_pylist()
        task = str(first["task_id"])
        for generation in range(1, 44):
            run.commit("match", generation, [], [], {}, {})
        found = {number: f"{replay_id(f'g{number:04d}-m00', task)}-r00" for number in POSED}
        for generation, attempt in found.items():
            for stage, name, row, schema in (("solve", "rollouts", first, ROLLOUTS), ("grade", "grades", grades[0], GRADES)):
                ref = run.write_table(generation, name, table([row | {"rollout_id": attempt}], schema))
                run.commit(stage, generation, [], [ref], {}, {})
    own = str(first["rollout_id"])
    links = {number: Addresses().attempt("again", attempt) for number, attempt in found.items()}
    assert Addresses().attempt("again", own) == f"/runs/again/tasks/{task}#{own}"
    assert links[20] == f"/runs/again/tasks/{task}#{found[20]}" and links[41] == f"/runs/again/tasks/{task}?later=3#{found[41]}"
    assert Addresses().attempt("again", "g0019-m00-seed-1-r00").startswith("/runs/again/tasks/seed-1#")
    assert Addresses().attempt("again", "g0020-m00-seed-1-r00").startswith("/runs/again/tasks/seed-1?later=2#")
    with TestClient(make_app(store.url), base_url="http://127.0.0.1") as pages:
        for number, link in links.items():
            assert f'id="{found[number]}"' in pages.get(link.partition("#")[0]).text, link
