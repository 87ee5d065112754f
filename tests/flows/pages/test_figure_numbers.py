"""A figure's numbers on pages and as JSON are those that were drawn."""

import json
import math

import numpy as np
import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.pages.figure_numbers import ROWS, numbers, tables, zooms
from flows.report.report_data import gather
from flows.report.report_figures import EVERY
from flows.run.run import Run
from flows.store.file_store import FileStore
from stages.core.statistics.estimates import only, series
from stages.figures.plates import Plate, canvas, curve, label, note
from tests.support.report_run import made

CURVES = {"solve-rate", "rewards", "zero-variance", "exploration", "lengths", "ratings", "valid-share", "complexity"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    with made(root, "run", 12):
        pass
    return root


@pytest.fixture(scope="module")
def pages(store):
    with TestClient(make_app(str(store)), base_url="http://127.0.0.1") as found:
        yield found


def test_the_json_is_what_was_estimated_and_drawn(store, pages):
    found = pages.get("/runs/run/figures/solve-rate.json").json()
    data = gather(Run(FileStore(store), "run"))
    lines = {line["name"]: line for line in found["panels"][0]["lines"]}
    assert list(lines) == ["deduction", "abduction", "induction", "all kinds"]
    for kind in ("deduction", "abduction", "induction"):
        expected = series(only(data.tables["grades"], kind=kind), "correct", "task_id")
        line = lines[kind]
        assert line["x"] == expected.generations.tolist() and line["n"] == expected.clusters.tolist()
        np.testing.assert_array_equal(line["y"], 100 * expected.mean)
        np.testing.assert_array_equal([math.nan if e is None else e for e in line["error"]], 100 * expected.stderr)
        assert line["colour"] == f"--{kind}" and line["broken"]
    axes = EVERY["solve-rate"](data).figure.axes[0]
    assert np.array_equal(axes.lines[0].get_ydata(), lines["deduction"]["y"])
    assert found["panels"][0] | {"lines": []} == {
        "x": "generation", "y": "attempts correct (%)", "title": "", "limits": [0.0, 100.0], "curves": True, "lines": [],
    }  # fmt: skip


def test_every_figure_has_a_table_and_curves_can_be_zoomed(store, pages):
    data = gather(Run(FileStore(store), "run"))
    drawn = {name: plate for name, draw in EVERY.items() if (plate := draw(data)).figure is not None}
    assert {name for name, plate in drawn.items() if zooms(plate)} >= CURVES
    for name, plate in drawn.items():
        assert tables(plate) and all(one["rows"] and len(one["rows"][0]) == len(one["heading"]) for one in tables(plate)), name
        json.dumps(numbers(plate), allow_nan=False)
        page = pages.get(f"/runs/run/figures/{name}").text
        assert page.count("<details>") >= 1
        assert (f'data-source="/runs/run/figures/{name}.json"' in page) == zooms(plate)
        assert pages.get(f"/runs/run/figures/{name}.json").json() == json.loads(json.dumps(numbers(plate)))
    page = pages.get("/runs/run/figures/solve-rate").text
    value = drawn["solve-rate"].panels[0].lines[0]
    assert f"{value.y[-1]:.4g} ± {value.error[-1]:.4g} (n = {value.n[-1]})" in page


def plate(x, y, error, n=()):
    figure, (ax,) = canvas("Why?")
    note(ax, "<b>\x1b", "#123456", x, y, error, n)
    label(ax, "share (%)")
    return Plate("why", "Why?", "", (), figure)


def test_a_table_has_the_newest_first_and_says_what_it_leaves_out():
    found = plate(range(250), [1.5] * 250, [0.25] * 250, [7] * 250)
    (table,) = tables(found)
    assert table["heading"] == ["generation", "<b>\x1b"] and table["rows"][0] == ["249", "1.5 ± 0.25 (n = 7)"]
    assert len(table["rows"]) == ROWS and table["more"] == 150
    assert numbers(found)["panels"][0]["lines"][0]["name"] == "<b>\\x1b"
    assert numbers(found)["panels"][0]["lines"][0]["colour"] == "#123456"


def test_what_is_unknown_is_null_and_a_dash():
    found = plate([0, 1], [math.nan, 2.0], [math.nan, math.nan])
    assert tables(found)[0]["rows"] == [["1", "2"], ["0", "–"]]
    line = numbers(found)["panels"][0]["lines"][0]
    assert line["y"] == [None, 2.0] and line["error"] == [None, None] and line["n"] == []


def test_negative_numbers_have_a_minus_sign_in_tables_and_a_hyphen_in_json():
    found = plate([0, 1], [-1.5, -2000.0], [0.5, math.nan])
    assert tables(found)[0]["rows"] == [["1", "−2,000"], ["0", "−1.5 ± 0.5"]]
    assert numbers(found)["panels"][0]["lines"][0]["y"] == [-1.5, -2000.0]


def test_a_curve_keeps_its_own_numbers():
    import pyarrow as pa

    rows = pa.table({"generation": [0, 0, 2, 2], "value": [1.0, 3.0, 5.0, 5.0], "at": ["a", "b", "a", "b"]})
    figure, (ax,) = canvas("Why?")
    curve(ax, series(rows, "value", "at"), "#0072b2", "students", scale=10)
    (panel,) = Plate("why", "Why?", "", (), figure).panels
    (line,) = panel.lines
    assert line.x == (0.0, 2.0) and line.y == (20.0, 50.0) and line.error == (10.0, 0.0) and line.n == (2, 2) and line.broken
