"""Figures as pages and as pictures, and which runs' figures are drawn: what counts is the tables that figures read."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.browser.assets import PICTURE_POLICY
from flows.monitoring.run_tables import RunTables
from flows.pages import figure_pages
from flows.pages.figure_pages import FigureCache, for_page, standalone
from flows.report.report_data import RunData
from flows.report.report_figures import EVERY
from flows.report.report_page import THEME
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.figures.plates import Plate
from tests.support import example_run
from tests.support.compared_runs import score_later


def test_an_index_of_many_tasks_hides_no_figure_but_a_large_table_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 4)
    rows = {ref.uri: ref.rows or 0 for number in range(4) for one in run.history.of_generation(number) for ref in one.outputs}
    drawn, index = (
        max(count for uri, count in rows.items() if uri.endswith(".parquet") and ("/earlier_" in uri) == earlier)
        for earlier in (False, True)
    )
    assert index > drawn, "the index holds the tasks of four generations"
    figures = FigureCache(lambda one: RunTables(one).look(), 60.0)
    monkeypatch.setattr(figure_pages, "LARGEST", drawn)
    assert figures.too_large(run) == ""
    monkeypatch.setattr(figure_pages, "LARGEST", drawn - 1)
    assert f"has {drawn} rows: figures of more than {drawn - 1} are drawn by populora report smoke only" in figures.too_large(run)


def test_the_page_of_all_figures_draws_none_and_each_picture_is_whole(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        example_run.build(Run(store, "smoke", epoch), 3)
    with TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as pages:
        page = pages.get("/runs/smoke/figures").text
        pictures = re.findall(r'<img loading="lazy" src="(/runs/smoke/figures/[\w-]+\.svg)" alt="[\w ]+">', page)
        assert pictures == [f"/runs/smoke/figures/{name}.svg" for name in EVERY]
        for picture in pictures:
            answer = pages.get(picture)
            assert answer.status_code == 200 and answer.headers["content-security-policy"] == PICTURE_POLICY
            ElementTree.fromstring(answer.text)
            assert not re.search(r"(?<!xmlns=\")(?<!xmlns:xlink=\")https?://|<script|<image|data:", answer.text)
            assert set(re.findall(r"var\((--\w+)\)", answer.text)) <= set(re.findall(r"(--\w+):", THEME))
        assert "No benchmark" in pages.get("/runs/smoke/figures/benchmark.svg").text
        assert "No benchmark" in pages.get("/runs/smoke/figures/benchmark").text
    (tmp_path / "smoke" / "generation=0001" / "grades.parquet").unlink()
    with TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as pages:
        assert pages.get("/runs/smoke/figures").text == page, "no table of tasks or attempts is read"
        for _ in range(2):  # drawn, and from the cache
            assert "some tables could not be read" in pages.get("/runs/smoke/figures/solve-rate.svg").text
            assert "left out of every figure" in pages.get("/runs/smoke/figures/solve-rate").text
        assert "could not be read" not in pages.get("/runs/smoke/figures/ratings.svg").text
        assert "left out" not in pages.get("/runs/smoke/figures/ratings").text


def test_requests_at_the_same_time_draw_a_figure_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, drawn = open_store(str(tmp_path)), []
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 2)
    figures = FigureCache(lambda one: RunTables(one).look(), 60.0)
    draw = EVERY["ratings"]

    def counted(data: RunData) -> Plate:
        drawn.append(data.head)
        return draw(data)

    monkeypatch.setitem(cast(dict[str, Any], EVERY), "ratings", counted)
    with ThreadPoolExecutor(6) as pool:
        pictures = list(pool.map(lambda number: figures.svg(run, "ratings"), range(6)))
        assert len(set(pictures)) == 1 and len(drawn) == 1
        made = list(pool.map(lambda number: figures.png(run, "ratings") if number % 2 else figures.svg(run, "pairs"), range(6)))
    assert len({str(one) for one in made}) == 2


def test_a_benchmark_made_outside_the_chain_is_drawn(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 2)
        figures = FigureCache(lambda one: RunTables(one).look(), 60.0)
        assert not figures.page(run, "benchmark")["one"]["picture"]
        head = run.history.head()
        score_later(run, 1, lambda number: number < 4)
        assert run.history.head() == head and figures.page(run, "benchmark")["one"]["picture"]
        before = figures.numbers(run, "benchmark")
        score_later(run, 0, lambda number: number < 2)
        assert figures.numbers(run, "benchmark") != before


def test_an_equal_run_of_the_same_name_has_its_own_times(tmp_path: Path) -> None:
    store, figures = open_store(str(tmp_path)), FigureCache(lambda one: RunTables(one).look(), 60.0)
    heads, drawn = [], []
    for started in (1.0, 2.0):
        with hold(store, "smoke") as epoch:
            run = Run(store, "smoke", epoch)
            run.describe({}, {}, {"started": started})
            run.commit("match", 0, [], [], {}, {}, {"seconds": 10 * started})
        heads.append(run.history.head())
        drawn.append(figures.numbers(run, "seconds"))
        shutil.rmtree(tmp_path / "smoke")
    assert heads[0] == heads[1] and drawn[0] != drawn[1]


def test_hidden_characters_of_names_are_written_out(tmp_path: Path) -> None:
    """In an SVG of its own a control character would be an error of XML, and the picture missing."""
    plate = Plate("x", "Why \x1b?", "\u202e", (), None)
    drawing = for_page(plate, "<svg viewBox='0 0 1 1'>\x1b\u202e<a>t</a></svg>")
    text = standalone(drawing["picture"], "\x1b")
    ElementTree.fromstring(text)
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b" in text
